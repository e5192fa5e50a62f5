"""`gatebench train` and `gatebench extend`: one run directory, start to finish."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench import metrics
from gatebench.cli.options import Overrides, Recipe, RunDirectory, Threads
from gatebench.errors import EarlyExit, UserError

if TYPE_CHECKING:
    from gatebench.config import RunConfig

SHOWN = ("avg_ppl", "first_token_share", "first_token_floor", "m_act", "gate_mean", "tokens_per_s")


def train(
    variant: Annotated[
        str | None,
        typer.Option(help="A variant: `gatebench list`, or any name of the grammar.", show_default=False),
    ] = None,
    recipe: Recipe = "quick",
    seed: Annotated[int, typer.Option(help="Seed of initial values and data order, 0 or more.")] = 0,
    overrides: Overrides = [],  # noqa: B006
    out: RunDirectory = None,
    threads: Threads = None,
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
    from gatebench.training.attempt import die_with_launcher

    die_with_launcher()
    config = _config(variant, recipe, seed, overrides, resume, out)  # refuse bad input before torch is loaded
    _train(config, resume or out, threads, takeover=takeover, as_json=as_json)


def extend(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run directory to go on from.")],
    tokens: Annotated[float, typer.Option(help="Tokens to train on, rounded up to whole steps (2e6).")],
    seq_len: Annotated[str, typer.Option(help="The new window: tokens, or a multiple of the old one (4x).")] = "1x",
    rope_theta: Annotated[float | None, typer.Option(help="The new base of RoPE.", show_default="the run's")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate.", show_default="the run's")] = None,
    settings: Annotated[
        list[str], typer.Option("--set", help="Any further setting: section.key=value. Repeatable.")
    ] = [],  # noqa: B006
    out: RunDirectory = None,
    threads: Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a finished run further as a run of its own: its weights, a new optimiser and schedule, longer windows.

    Killed at any moment, the same line resumes it bit for bit.
    """
    from gatebench.training.extension import extended_run

    words = {"tokens": tokens, "seq_len": seq_len, "rope_theta": rope_theta, "lr": lr, "set": settings}
    config = extended_run(run_dir, words)
    _train(config, out, threads, as_json=as_json)


def _train(
    config: RunConfig, out: Path | None, threads: int | None, *, takeover: bool = False, as_json: bool = False
) -> None:
    """Train and evaluate a run, and print its summary."""
    from gatebench.training.startup import import_torchmetrics

    import_torchmetrics()
    from gatebench.evaluation.evaluate import evaluate
    from gatebench.paths import runs_dir
    from gatebench.training.run import InterruptedRun, run

    try:
        summary = run(config, evaluate, out=out, threads=threads, takeover=takeover)
    except InterruptedRun as error:
        raise EarlyExit([f"{error}; run the same line again to go on"], 1) from None
    if as_json:
        print(json.dumps(summary, indent=1))
        return
    extends = f": extends {config.init.run}" if config.init else ""
    where = out or runs_dir() / summary["run"]
    print(f"{summary['run']}{extends}: {describe(summary)}\n{where}", file=sys.stderr)


def _config(
    variant: str | None, recipe: str, seed: int, overrides: list[str], resume: Path | None, out: Path | None
) -> RunConfig:
    """Return what to train: the recipe's run, or the one that a directory holds."""
    from gatebench.recipes import make_run

    if resume is None:
        if variant is None:
            raise UserError("--variant is missing: legal are the names of `gatebench list`, for example g1_headwise")
        return make_run(recipe, variant, seed, overrides)
    if variant is not None or overrides or out is not None:
        raise UserError(
            f"--resume {resume}: says what to train and where; legal beside it: --threads, --takeover, --json"
        )
    from gatebench.training.rundir import RunDirectory as Directory

    if not (resume / "config.yaml").is_file():
        raise UserError(f"--resume {resume}: holds no config.yaml; legal: the directory of a run that has begun")
    return Directory(resume).read_config()


def describe(summary: dict[str, Any]) -> str:
    """Return the main figures of a summary in one line."""
    if summary["status"] == "diverged":
        return f"diverged at step {summary['diverged_step']}"
    text = {key: metrics.get(key).text(summary[key]) for key in SHOWN}
    gate = "" if summary["gate_mean"] is None else f", mean gate {text['gate_mean']}"
    return (
        f"Avg PPL {text['avg_ppl']}, first-token share {text['first_token_share']} "
        f"(floor {text['first_token_floor']}), M-Act {text['m_act']}{gate}, {text['tokens_per_s']} tokens/s"
    )
