"""What of the runs and submissions on disk can go, and removing it.

Runs that are queued or going on stay; so do done ones, unless they are asked for.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gatebench.paths import runs_dir
from gatebench.sweep.plan import PlannedRun
from gatebench.sweep.squeue import Place
from gatebench.sweep.status import run_status
from gatebench.sweep.submissions import FOLDER, Submission, queued, submissions

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Leftover:
    """A folder that can go."""

    path: Path
    what: str
    """A run's standing, or "submission"."""
    size: int
    """Bytes."""
    changed: float
    """Seconds since the epoch, of its newest file."""


def leftovers_of_study(study: str, planned: Iterable[PlannedRun], *, done: bool) -> list[Leftover]:
    """Return what a study has left unfinished, its ended submissions, and with `done` its results too."""
    directories = dict.fromkeys(run.directory for run in planned if run.directory is not None)
    places = queued()
    return [*_runs(directories, places, done=done), *_submissions(submissions(study), places)]


def older_leftovers(days: float, *, done: bool) -> list[Leftover]:
    """Return what was left unfinished anywhere below the runs and has not changed for `days` days."""
    before = time.time() - days * _DAY_S
    directories = [path.parent for path in sorted(runs_dir().glob("*/*/config.yaml")) if FOLDER not in path.parts]
    places = queued()
    leftovers = [*_runs(directories, places, done=done), *_submissions(submissions(), places)]
    return [leftover for leftover in leftovers if leftover.changed < before]


def remove(leftovers: Iterable[Leftover]) -> None:
    """Delete them."""
    for leftover in leftovers:
        shutil.rmtree(leftover.path, ignore_errors=True)


def _runs(directories: Iterable[Path], places: dict[Place, Path] | None, *, done: bool) -> Iterator[Leftover]:
    in_queue = set((places or {}).values())
    for directory in directories:
        if not directory.is_dir() or directory in in_queue:
            continue
        status = run_status(directory, 1)
        if status.standing != "running" and (done or not status.finished):
            what = "not begun" if status.standing == "missing" else status.standing
            yield Leftover(directory, what, *_size_and_change(directory))


def _submissions(candidates: Iterable[Submission], places: dict[Place, Path] | None) -> Iterator[Leftover]:
    """Submissions none of whose jobs is in the queue; where that cannot be asked, only those that were cancelled."""
    in_queue = {name for name, _ in places or {}}
    for submission in candidates:
        ended = not any(array.name in in_queue for array in submission.arrays())
        if ended and (places is not None or submission.cancelled.exists()):
            yield Leftover(submission.path, "submission", *_size_and_change(submission.path))


def _size_and_change(folder: Path) -> tuple[int, float]:
    """Return a folder's bytes and the time of its newest change."""
    size, changed = 0, folder.stat().st_mtime
    for path in folder.rglob("*"):
        facts = path.lstat()
        size += facts.st_size
        changed = max(changed, facts.st_mtime)
    return size, changed
