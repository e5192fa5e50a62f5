"""`gatebench speed`: training throughput on this machine, by ratio."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gatebench.cli.options import Overrides, Recipe
from gatebench.cli.output import stderr_console, stdout_console, terminal_table

_VARIANTS = ["baseline", "g1_headwise", "g1_elementwise"]


def speed(
    recipe: Recipe = "quick",
    variant: Annotated[list[str], typer.Option(help="Variants to time. Repeatable.")] = _VARIANTS,
    overrides: Overrides = [],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, help="Turns that each contender takes.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps a turn.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")] = None,
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Time the first variant compiled, too.")
    ] = True,
    qwen3: Annotated[
        bool, typer.Option("--qwen3/--no-qwen3", help="Time a plain loop around transformers' Qwen3.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time training steps: variants, compiled and not, beside a plain loop around transformers' Qwen3 of that shape.

    With experts (moe_tiny), the dense model of equal active width is timed, too.
    """
    from gatebench.recipes import make_run

    configs = [make_run(recipe, name, 0, overrides) for name in variant]

    import torch

    from gatebench.training import speed

    if threads:
        torch.set_num_threads(threads)
    timed = speed.contenders(configs, compiled=compiled, qwen3=qwen3)
    with stderr_console().status("timing"):
        speed.take_turns(timed, rounds, steps)
    found = speed.results(timed, configs[0])
    if as_json:
        print(json.dumps({"recipe": recipe, "overrides": overrides, **found}, indent=1))
        return
    where = found["environment"]
    machine = f"{recipe}: {where['machine']}, {where['threads']} thread(s), {where['precision']}"
    rows = [
        (c["contender"], f"{c['tokens_per_s']:,.0f}", f"{c['ratio']:.3f}", f"{c['compile_s']:.1f}", str(c["steps"]))
        for c in found["results"]
    ]
    columns = ("contender", "tokens/s (median)", f"ratio to {rows[0][0]}", "compile, s", "steps timed")
    tokens = configs[0].train.batch_size * configs[0].data.seq_len
    stdout_console().print(terminal_table(columns, rows, title=f"{machine}, {tokens:,} tokens a step"))
