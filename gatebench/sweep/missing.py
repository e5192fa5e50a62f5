"""What of a study is to be trained now, checked and with its directories made."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from gatebench.data.presets import PRESETS, ensure_corpus
from gatebench.sweep.job import Job
from gatebench.sweep.plan import PlannedRun, plan
from gatebench.sweep.status import RunStatus, run_status
from gatebench.sweep.study import Study


@dataclass
class Missing:
    """The runs of a study, each once, by what is to be done about them."""

    planned: list[PlannedRun]
    jobs: list[Job] = field(default_factory=list)
    """All, those that are done too."""
    waiting: list[Job] = field(default_factory=list)
    """To be trained."""
    elsewhere: list[Job] = field(default_factory=list)
    """Going on in a SLURM job or on another machine."""
    failed: list[Job] = field(default_factory=list)
    """Ended by an error of their own; left alone unless asked."""


def missing_runs(study: Study, console: Console, *, retry_failed: bool, on_cluster: bool = False) -> Missing:
    """Build the corpora, check every run that is missing, and claim its directory.

    Progress goes to `console`; what is done is left alone. `on_cluster` checks no device of this machine. Raises
    UserError before anything is trained.
    """
    configs = study.runs()  # refuse what is not legal before a corpus is built
    for corpus in dict.fromkeys(config.data.corpus for config in configs):
        if corpus in PRESETS:
            ensure_corpus(corpus, log=console.print)
    found = Missing(plan(study))
    if all(run.finished for run in found.planned):
        return found

    from gatebench.training.run import prepare, run_directory

    by_directory: dict[Path, Job] = {}  # two combinations may mean the same run
    for run in found.planned:
        prepared = run.config if run.finished else prepare(run.config, elsewhere=on_cluster)[0]
        directory = run.directory or run_directory(prepared).path
        job = Job(prepared, directory, run.recipe, run.combination.overrides, run.combination.label)
        by_directory.setdefault(directory, job)
    found.jobs = list(by_directory.values())
    for job in found.jobs:
        status = run_status(job.directory, job.config.train.steps)
        if status.finished:
            continue
        if status.standing == "running" and _is_elsewhere(status):
            job.state = "running"
            found.elsewhere.append(job)
        elif status.standing == "failed" and status.reason == "own" and not retry_failed:
            job.state = "failed"
            found.failed.append(job)
        else:
            run_directory(job.config).claim(job.config)
            found.waiting.append(job)
    return found


def _is_elsewhere(status: RunStatus) -> bool:
    """A run of this machine that is on its way out is waited for; others are left alone."""
    return status.in_slurm or status.host != socket.gethostname()
