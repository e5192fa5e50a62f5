"""`gatebench tune`: search the settings of each variant of a study."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gatebench.cli.output import stdout_console
from gatebench.cli.sweep import AsJson, StudyName, print_written
from gatebench.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from gatebench.sweep.tuning.worker import Tuning

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

    from rich.console import Console

    from gatebench.report.tables import tune_table
    from gatebench.sweep.study import load_study
    from gatebench.sweep.tuning.outcome import outcomes
    from gatebench.sweep.tuning.search import default_storage, tune_folder, with_trials
    from gatebench.sweep.tuning.worker import Options, open_tuning

    loaded = with_trials(load_study(study), trials)
    if storage is None:
        storage = default_storage(loaded)
    elif "://" not in storage:
        storage = str(Path(storage).resolve())
    console = Console(stderr=True)
    tuning = open_tuning(loaded, Options(storage, max_retries, stale_after))
    if not tuning.is_planned() or tuning.open_trials():
        word = str(Path(study).resolve()) if study.endswith((".yaml", ".yml")) else study
        _work(tuning, word, console, on, profile, workers, detach)
    found = outcomes(tuning)
    if as_json:
        print(json.dumps(tune_table.to_dict(found), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        for table in tune_table.to_rich(found):
            stdout_console().print(table)
    print_written(console, tune_table.write(found, tune_folder(loaded)))


def tune_worker(
    study: StudyName,
    trials: Trials = None,
    max_retries: MaxRetries = 2,
    stale_after: StaleAfter = 90.0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each run.")] = 1,
) -> None:
    """Take trials of a study until none is free; the storage is in GATEBENCH_STORAGE. `gatebench tune` starts these."""
    from gatebench.sweep.launch import die_with_launcher, sigterm_ends_with_cleanup

    die_with_launcher()
    from rich.console import Console

    from gatebench.sweep.study import load_study
    from gatebench.sweep.tuning.search import STORAGE, with_trials
    from gatebench.sweep.tuning.worker import Options, open_tuning, work

    storage = os.environ.get(STORAGE)
    if storage is None:
        raise UserError(f"{STORAGE} is not set; legal: `gatebench tune`, which sets it for its workers")
    with sigterm_ends_with_cleanup():
        tuning = open_tuning(with_trials(load_study(study), trials), Options(storage, max_retries, stale_after))
        work(tuning, threads, Console(stderr=True))


def _work(
    tuning: Tuning,
    word: str,
    console: Console,
    on: Literal["local", "slurm"],
    profile: str | None,
    n_workers: int | None,
    detach: bool,
) -> None:
    """Bring every trial to its end; where the workers cannot, say so and exit."""
    from gatebench.sweep.tuning import cluster, pool
    from gatebench.sweep.tuning.prepare import prepare
    from gatebench.sweep.tuning.progress import Progress

    if on == "slurm":
        from gatebench.sweep import slurm
        from gatebench.sweep.profiles import load_profile

        slurm.check_available()
        site = load_profile(profile or "default")
    prepare(tuning.searches, console, elsewhere=on == "slurm")
    tuning.plan()
    try:
        with Progress(tuning, console) as progress:
            if on == "slurm":
                cluster.run(tuning, word, site, n_workers, progress, detach=detach)
            else:
                pool.Pool(tuning, word, pool.worker_slots(tuning, n_workers), progress).run()
    except pool.WorkersFail as error:
        print(f"gatebench: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
