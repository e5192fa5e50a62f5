"""`gatebench tune`: search the settings of each variant of a study."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gatebench.cli.options import AsJson, StudyName
from gatebench.cli.output import print_written, stderr_console, stdout_console
from gatebench.errors import EarlyExit, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from gatebench.sweep.search import Tuning

Trials = Annotated[int | None, typer.Option(min=1, help="Trials for each variant instead of the study's.")]
MaxRetries = Annotated[int, typer.Option(min=0, help="How often a trial is tried again after an error in training.")]
StaleAfter = Annotated[
    float, typer.Option(min=1, help="Seconds without a sign of life after which another worker takes a trial over.")
]


def tune(
    study: StudyName,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Trials side by side (default: one a GPU; on CPU one a core).")
    ] = None,
    on: Annotated[Literal["local", "slurm"], typer.Option(help="Where the workers are.")] = "local",
    storage: Annotated[
        str | None,
        typer.Option(
            envvar="GATEBENCH_STORAGE",
            help="Path of a journal, or postgresql://user@host/base (default: results/<study>/tune/journal.log).",
            show_default=False,
        ),
    ] = None,
    trials: Trials = None,
    max_retries: MaxRetries = 2,
    stale_after: StaleAfter = 90.0,
    profile: Annotated[
        str | None, typer.Option(help="SLURM: a profile of experiments/clusters/, or the path of one.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="SLURM: submit and return.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search the settings of each variant of a study; repeated, the same line goes on where it stopped."""
    if on == "local" and (profile is not None or detach):
        raise UserError(f"--{'detach' if detach else 'profile'}: goes with --on slurm; legal here: without it")

    from gatebench.report.tables import tune_table
    from gatebench.sweep.search import default_storage, open_tuning, tune_folder, with_trials
    from gatebench.sweep.study import load_study
    from gatebench.training.attempt import STALE_AFTER

    os.environ[STALE_AFTER] = str(stale_after)  # for the runs, and the workers on a cluster
    loaded = with_trials(load_study(study), trials)
    if storage is None:
        storage = default_storage(loaded)
    elif "://" not in storage:
        storage = str(Path(storage).resolve())
    console = stderr_console()
    tuning = open_tuning(loaded, storage)
    if not tuning.is_planned() or tuning.open_trials():
        word = str(Path(study).resolve()) if study.endswith((".yaml", ".yml")) else study
        _bring_to_end(tuning, word, console, on, profile, workers, max_retries, detach)
    outcomes = tuning.outcomes()
    best, trials_of_each = tune_table.best(outcomes), tune_table.trials(outcomes)
    if as_json:
        sys.stdout.write(trials_of_each.to_json())
    else:
        stdout_console().print(best.to_rich(), trials_of_each.to_rich())
    folder = tune_folder(loaded)
    print_written([*best.write(folder), *trials_of_each.write(folder)])
    if tuning.open_trials() and not detach:
        raise EarlyExit(["the workers have left the queue before all trials ended: the same line again"], 1)


def tune_worker(
    study: StudyName,
    trials: Trials = None,
    max_retries: MaxRetries = 2,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each run.")] = 1,
) -> None:
    """Take trials of a study until none is free; the storage is in GATEBENCH_STORAGE. Jobs of `gatebench tune` do."""
    from gatebench.training.attempt import die_with_launcher

    die_with_launcher()

    from gatebench.sweep.pool import Slots
    from gatebench.sweep.search import open_tuning, with_trials
    from gatebench.sweep.storage import STORAGE
    from gatebench.sweep.study import load_study
    from gatebench.sweep.tune import Progress, tune_here

    storage = os.environ.get(STORAGE)
    if storage is None:
        raise UserError(f"{STORAGE} is not set; legal: `gatebench tune`, which sets it for its workers")
    tuning = open_tuning(with_trials(load_study(study), trials), storage)
    with Progress(tuning, stderr_console()) as progress:
        tune_here(tuning, Slots(1, threads), max_retries, progress, as_worker=True)


def _bring_to_end(
    tuning: Tuning,
    word: str,
    console: Console,
    on: Literal["local", "slurm"],
    profile: str | None,
    n_workers: int | None,
    max_retries: int,
    detach: bool,
) -> None:
    """Bring every trial to its end, here or on a cluster."""
    from gatebench.sweep import slurm
    from gatebench.sweep.profiles import load_profile
    from gatebench.sweep.tune import Progress, prepare, tune_here, tune_on_cluster, tune_slots

    if on == "slurm":
        slurm.check_available()
        site = load_profile(profile or "default")
    prepare(tuning.searches, console, elsewhere=on == "slurm")
    tuning.plan()
    with Progress(tuning, console) as progress:
        if on == "slurm":
            tune_on_cluster(tuning, word, site, n_workers, max_retries, progress, detach=detach)
        else:
            tune_here(tuning, tune_slots(tuning, n_workers), max_retries, progress)
