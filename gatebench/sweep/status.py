"""How the runs of a study stand, read from the disk alone. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gatebench.sweep.plan import PlannedRun
from gatebench.training.attempt import current_attempt
from gatebench.training.rundir import RunDirectory, read_json, seconds_left

Standing = Literal["done", "diverged", "running", "stale", "failed", "missing"]
STANDINGS: tuple[Standing, ...] = ("done", "diverged", "running", "stale", "failed", "missing")
"""running: signs of life. stale: none, and nothing says why (killed, machine lost). failed: it said why it ended."""


@dataclass(frozen=True)
class RunStatus:
    """How one run stands."""

    standing: Standing
    reason: Literal["outside", "own"] | None = None
    """Why it failed: from outside, which `gatebench sweep` tries again, or by an error of its own."""
    message: str | None = None
    attempt: int | None = None
    host: str | None = None
    in_slurm: bool = False
    """Whether a SLURM job works on it."""
    heartbeat_age_s: float | None = None
    step: int | None = None
    loss: float | None = None
    left_s: float | None = None
    """Training time left at the present speed."""

    @property
    def finished(self) -> bool:
        """Whether the run has its result."""
        return self.standing in ("done", "diverged")


def run_status(directory: Path | None, steps: int) -> RunStatus:
    """Return how the run in `directory` stands, of `steps` steps."""
    if directory is None:
        return RunStatus("missing")
    files = RunDirectory(directory)
    if (result := files.result()) is not None:
        return RunStatus(result)
    attempt = current_attempt(files)
    if attempt is None:
        return RunStatus("stale" if files.metrics.is_file() else "missing")
    row = files.last_row()
    owner, failure = read_json(attempt.heartbeat) or {}, read_json(attempt.failure)
    standing: Standing = "failed" if failure else "running" if attempt.is_alive() else "stale"
    return RunStatus(
        standing,
        reason=failure["reason"] if failure else None,
        message=failure["message"] if failure else None,
        attempt=attempt.number,
        host=owner.get("node") or owner.get("host"),
        in_slurm=owner.get("launch") is not None,
        heartbeat_age_s=attempt.age(),
        step=row["step"] if row else None,
        loss=row["loss"] if row else None,
        left_s=seconds_left(row, steps) if row else None,
    )


def study_status(planned: Sequence[PlannedRun]) -> list[RunStatus]:
    """Return how each planned run stands; each directory is looked at once, and only where it is there."""
    there: dict[Path, set[str]] = {}
    standing: dict[Path, RunStatus] = {}
    for run in planned:
        directory = run.directory
        if directory is None or directory in standing:
            continue
        if directory.parent not in there:
            there[directory.parent] = set(os.listdir(directory.parent)) if directory.parent.is_dir() else set()
        known = directory.name in there[directory.parent]
        standing[directory] = run_status(directory, run.config.train.steps) if known else RunStatus("missing")
    return [RunStatus("missing") if run.directory is None else standing[run.directory] for run in planned]
