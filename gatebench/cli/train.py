"""`gatebench train`: one run directory, start to finish."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gatebench.config import RunConfig

Recipe = Annotated[str, typer.Option(help="Recipe of experiments/, or the path of one.")]
Overrides = Annotated[
    list[str], typer.Option("--set", help="Override a key of the recipe: section.key=value. Repeatable.")
]


def train(
    variant: Annotated[
        str | None,
        typer.Option(help="A variant: `gatebench list`, or any name of the grammar.", show_default=False),
    ] = None,
    recipe: Recipe = "quick",
    seed: Annotated[int, typer.Option(help="Seed of initial values and data order, 0 or more.")] = 0,
    overrides: Overrides = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Run directory (default: results/runs/<recipe>/<run>).")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="A run directory to go on with, whatever recipe files say now.", show_default=False),
    ] = None,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Shut out another process that seems to be at work on the run.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train one run, or resume it, or find it done. Killed at any moment, the same line resumes it bit for bit."""
    from gatebench.sweep.launch import die_with_launcher

    die_with_launcher()
    config = _config(variant, recipe, seed, overrides, resume, out)  # refuse bad input before torch is loaded
    train_and_tell(config, resume or out, threads, takeover=takeover, as_json=as_json)


def train_and_tell(
    config: RunConfig, out: Path | None, threads: int | None, *, takeover: bool = False, as_json: bool = False
) -> None:
    """Train and evaluate a run, and print its summary; where it was interrupted, say so and exit."""
    from gatebench.evaluation.evaluate import evaluate
    from gatebench.training.run import InterruptedRun, prepare, run, run_directory

    try:
        summary = run(config, evaluate, out=out, threads=threads, takeover=takeover)
    except InterruptedRun as error:
        print(f"gatebench: {error}; run the same line again to go on", file=sys.stderr)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(summary, indent=1))
        return
    directory = run_directory(prepare(config)[0], out)
    extends = f": extends {config.init.run}" if config.init else ""
    print(f"{summary['run']}{extends}: {describe(summary)}\n{directory.path}", file=sys.stderr)


def _config(
    variant: str | None, recipe: str, seed: int, overrides: list[str], resume: Path | None, out: Path | None
) -> RunConfig:
    """Return what to train: the recipe's run, or the one that a directory holds."""
    from gatebench.errors import UserError
    from gatebench.recipes import make_run, run_from_yaml

    if resume is None:
        if variant is None:
            raise UserError("--variant is missing: legal are the names of `gatebench list`, for example g1_headwise")
        return make_run(recipe, variant, seed, overrides)
    if variant is not None or overrides or out is not None:
        raise UserError(
            f"--resume {resume}: says what to train and where; legal beside it: --threads, --takeover, --json"
        )
    path = resume / "config.yaml"
    if not path.is_file():
        raise UserError(f"--resume {resume}: holds no config.yaml; legal: the directory of a run that has begun")
    return run_from_yaml(path.read_text(encoding="utf-8"), str(path))


def describe(summary: dict[str, object]) -> str:
    """Return the main figures of a summary in one line."""
    if summary["status"] == "diverged":
        return f"diverged at step {summary['diverged_step']}"
    gate = "" if summary["gate_mean"] is None else f", mean gate {summary['gate_mean']:.3f}"
    return (
        f"Avg PPL {summary['avg_ppl']:.2f}, first-token share {summary['first_token_share']:.4f} "
        f"(floor {summary['first_token_floor']:.4f}), M-Act {summary['m_act']:.1f}{gate}, "
        f"{summary['tokens_per_s']:,.0f} tokens/s"
    )
