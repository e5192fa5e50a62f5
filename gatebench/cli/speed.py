"""`gatebench bench`: training throughput on this machine, by ratio."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gatebench.cli.output import stdout_console
from gatebench.cli.train import Overrides, Recipe

_VARIANTS = ["baseline", "g1_headwise", "g1_elementwise"]


def bench(
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
    from rich.console import Console
    from rich.table import Table

    from gatebench.training import hardware
    from gatebench.training import speed as benchmark

    if threads:
        torch.set_num_threads(threads)
    contenders = [benchmark.gatebench_contender(config, compiled=False) for config in configs]
    if configs[0].model.moe is not None:
        dense = benchmark.dense_counterpart(configs[0])
        contenders.append(benchmark.gatebench_contender(dense, compiled=False, label=", dense of equal active width"))
    if compiled:
        contenders.append(benchmark.gatebench_contender(configs[0], compiled=True))
    if qwen3:
        contenders.append(benchmark.qwen3_contender(configs[0]))
    with Console(stderr=True).status("timing"):
        benchmark.take_turns(contenders, rounds, steps)

    config = configs[0]
    device = hardware.resolve_accelerator(config.train.accelerator)
    precision = hardware.resolve_precision(config.train.precision, device)
    per_step = config.train.batch_size * config.data.seq_len
    first = contenders[0].tokens_per_s(per_step)
    rows = [
        {
            "contender": c.name,
            "tokens_per_s": round(c.tokens_per_s(per_step), 1),
            "ratio": round(c.tokens_per_s(per_step) / first, 4),
            "compile_s": round(c.setup_s, 1),
            "steps": len(c.seconds),
        }
        for c in contenders
    ]
    facts = hardware.environment(config, device, precision, compiled=False)
    if as_json:
        print(json.dumps({"recipe": recipe, "overrides": overrides, "environment": facts, "results": rows}, indent=1))
        return
    table = Table(
        title=f"{recipe}: {facts['machine']}, {facts['threads']} thread(s), {precision}, {per_step:,} tokens a step"
    )
    for column in ("contender", "tokens/s (median)", f"ratio to {rows[0]['contender']}", "compile, s", "steps timed"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for row in rows:
        table.add_row(
            str(row["contender"]),
            f"{row['tokens_per_s']:,.0f}",
            f"{row['ratio']:.3f}",
            f"{row['compile_s']:.1f}",
            str(row["steps"]),
        )
    stdout_console().print(table)
