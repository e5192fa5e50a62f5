"""`gatebench extend`: train a finished run further, on longer windows and with another RoPE base."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gatebench.cli.train import train_and_tell


def extend(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory to go on from.")],
    tokens: Annotated[float, typer.Option(help="Tokens to train on, rounded up to whole steps (2e6).")],
    seq_len: Annotated[str, typer.Option(help="The new window: tokens, or a multiple of the old one (4x).")] = "1x",
    rope_theta: Annotated[float | None, typer.Option(help="The new base of RoPE.", show_default="the run's")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.", show_default="the run's")] = None,
    settings: Annotated[
        list[str], typer.Option("--set", help="Any further setting: section.key=value. Repeatable.")
    ] = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Run directory (default: results/runs/<recipe>/<run>).")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a finished run further as a run of its own: its weights, a new optimiser and schedule, longer windows.

    Killed at any moment, the same line resumes it bit for bit.
    """
    from pydantic import ValidationError

    from gatebench.errors import UserError
    from gatebench.paths import runs_dir
    from gatebench.training.extension import Extension, extended, read_parent
    from gatebench.validation import one_line

    try:
        words: dict[str, Any] = {"tokens": tokens, "seq_len": seq_len, "rope_theta": rope_theta, "lr": lr}
        extension = Extension(**words, set=settings)
    except ValidationError as error:
        raise UserError(f"extend: {one_line(error, Extension)}") from None
    parent = read_parent(run_dir)
    is_in_place = (runs_dir() / parent.run_name).resolve() == run_dir.resolve()
    config = extended(parent, extension, None if is_in_place else run_dir.resolve())
    train_and_tell(config, out, threads, as_json=as_json)
