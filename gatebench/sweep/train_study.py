"""Train the unfinished runs of a study, where the user says: on this machine or on a cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.console import Console

from gatebench.errors import EarlyExit, UserError
from gatebench.sweep.job import Job
from gatebench.sweep.plan import PlannedRun
from gatebench.sweep.study import Study


@dataclass(frozen=True)
class Launch:
    """How the unfinished runs of a study are trained. Raises UserError for options that do not go together."""

    on: Literal["local", "slurm"] = "local"
    max_parallel: int | None = None
    gpus_per_run: float | None = None
    profile: str | None = None
    retry_failed: bool = False
    detach: bool = False

    def __post_init__(self) -> None:
        if self.on == "local" and (self.profile is not None or self.detach):
            raise UserError(f"--{'detach' if self.detach else 'profile'}: goes with --on slurm; legal here: without it")
        if self.gpus_per_run is not None and self.gpus_per_run <= 0:
            raise UserError(f"--gpus-per-run={self.gpus_per_run:g}: must be above 0")


def train_study(study: Study, console: Console, launch: Launch) -> list[PlannedRun]:
    """Train the unfinished runs and return the plan, every run of which has its result.

    A study with `extend` trains everything that is to be extended first. Raises EarlyExit where runs have no result.
    """
    if study.extend is not None:
        train_study(study.first_stage(), console, launch)
    planned, left = _train_unfinished(study, console, launch)
    if left:
        messages = [f"{job.name} {_why(job)} ({job.directory / 'log.txt'})" for job in left]
        if any(job.state == "failed" and job.starts == 0 for job in left):
            messages.append("runs that ended by an error of their own: --retry-failed tries them again")
        raise EarlyExit(messages, 2 if all(job.exit_code == 2 for job in left) else 1)
    if not all(run.finished for run in planned):
        raise EarlyExit([], 0)  # submitted, and not waited for
    return planned


def _train_unfinished(study: Study, console: Console, launch: Launch) -> tuple[list[PlannedRun], list[Job]]:
    options: dict[str, Any] = asdict(launch)
    on, profile, detach = (options.pop(name) for name in ("on", "profile", "detach"))
    if on == "slurm":
        from gatebench.sweep import slurm
        from gatebench.sweep.profiles import load_profile

        return slurm.train_on_cluster(study, console, load_profile(profile or "default"), **options, detach=detach)
    from gatebench.sweep.unfinished import train_here

    return train_here(study, console, **options)


def _why(job: Job) -> str:
    """Say why a run has no result."""
    if job.state == "running":
        return "is going on elsewhere: the same line again, once it is done"
    return f"failed: {job.last_message()}"
