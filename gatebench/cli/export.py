"""`gatebench export`: a trained run as a directory that transformers, or the paper's released code, loads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def export(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="A finished run's directory, or a checkpoint to write again.")
    ],
    to: Annotated[Path, typer.Option(help="New directory to write.", show_default=False)],
    layout: Annotated[
        str, typer.Option(help="qwen3, released or gatebench; auto is the first of them that holds the variant.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write weights, config, tokenizer and a model card: a stock Qwen3, the released code's layout, or gatebench's."""
    from gatebench import hf
    from gatebench.hf.card import imported_card, run_card
    from gatebench.hf.export import choose_layout
    from gatebench.training.rundir import RunDirectory

    model, tokenizer = hf.load(source)
    variant = model.config.variant
    chosen = choose_layout(model, layout)
    is_run = RunDirectory(Path(source)).config.is_file()
    card = run_card(Path(source), chosen) if is_run else imported_card(source, variant, chosen)
    hf.export(model, tokenizer, to, layout=chosen, card=card)
    if as_json:
        print(json.dumps({"variant": variant, "layout": chosen, "to": str(to)}, indent=1))
        return
    print(f"{variant} -> {to} ({chosen} layout)", file=sys.stderr)
