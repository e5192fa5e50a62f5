"""The runs of a study that are not finished: found, checked, and trained on this machine."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from gatebench.data.presets import PRESETS, ensure_corpus
from gatebench.sweep import pool
from gatebench.sweep.job import Job
from gatebench.sweep.plan import PlannedRun, plan, refreshed
from gatebench.sweep.status import RunStatus, run_status
from gatebench.sweep.study import Study


@dataclass
class Unfinished:
    """The runs of a study, each once, by what is to be done about them."""

    planned: list[PlannedRun]
    jobs: list[Job] = field(default_factory=list)
    """All, those that are done too."""
    waiting: list[Job] = field(default_factory=list)
    """To be trained now."""
    elsewhere: list[Job] = field(default_factory=list)
    """Going on in a SLURM job or on another machine."""
    failed: list[Job] = field(default_factory=list)
    """Ended by an error of their own; left alone unless asked."""


def unfinished_runs(study: Study, console: Console, *, retry_failed: bool, on_cluster: bool = False) -> Unfinished:
    """Return the runs of a study that are not finished, checked, each with its directory; build their corpora before.

    Progress goes to `console`. `on_cluster` checks no device of this machine. Raises UserError for what cannot train.
    """
    configs = study.runs()  # refuse what is not legal before a corpus is built
    for corpus in dict.fromkeys(config.data.corpus for config in configs):
        if corpus in PRESETS:
            ensure_corpus(corpus, log=console.print)
    runs = Unfinished(plan(study))
    if all(run.finished for run in runs.planned):
        return runs

    from gatebench.training.run import prepare, run_directory

    by_directory: dict[Path, Job] = {}  # two combinations may mean the same run
    for run in runs.planned:
        prepared = run.config if run.finished else prepare(run.config, elsewhere=on_cluster)[0]
        directory = run.directory or run_directory(prepared).path
        job = Job(prepared, directory, run.combination.label)
        by_directory.setdefault(directory, job)
    runs.jobs = list(by_directory.values())
    for job in runs.jobs:
        status = run_status(job.directory, job.config.train.steps)
        if status.finished:
            continue
        if status.standing == "running" and _is_elsewhere(status):
            job.state = "running"
            runs.elsewhere.append(job)
        elif status.standing == "failed" and status.reason == "own" and not retry_failed:
            job.state = "failed"
            runs.failed.append(job)
        else:
            run_directory(job.config).claim(job.config)
            runs.waiting.append(job)
    return runs


def _is_elsewhere(status: RunStatus) -> bool:
    """Return whether the run goes on where this command cannot see it end; one of this machine is waited for."""
    return status.in_slurm or status.host != socket.gethostname()


def train_here(
    study: Study,
    console: Console,
    *,
    max_parallel: int | None = None,
    gpus_per_run: float | None = None,
    retry_failed: bool = False,
) -> tuple[list[PlannedRun], list[Job]]:
    """Train the unfinished runs of a study side by side; return its plan and the jobs that have no result.

    Progress goes to `console`. Raises UserError before anything is trained.
    """
    runs = unfinished_runs(study, console, retry_failed=retry_failed)
    if all(run.finished for run in runs.planned):
        return runs.planned, []

    import torch

    on_gpus = all(job.config.train.accelerator in ("auto", "gpu") for job in runs.waiting)
    slots = pool.local_slots(
        len(runs.jobs),
        n_gpus=torch.cuda.device_count() if on_gpus else 0,
        devices=max((job.config.train.devices for job in runs.waiting), default=1),
        max_parallel=max_parallel,
        gpus_per_run=gpus_per_run,
    )
    left = runs.failed + runs.elsewhere
    console.print(
        f"{len(runs.jobs)} runs, {len(runs.jobs) - len(runs.waiting) - len(left)} done, "
        f"{slots.n} at a time with {slots.threads} thread(s) each",
        highlight=False,
        soft_wrap=True,
    )
    failed = pool.run_all([job for job in runs.jobs if job not in left], slots, console, study.name)
    return refreshed(runs.planned), failed + left
