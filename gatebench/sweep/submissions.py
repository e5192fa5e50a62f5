"""What was submitted to a cluster for a study: files beside the runs.

A submission is a folder `<runs>/.sweeps/<study>/<time>/` with a copy of the code, SLURM's logs and `arrays.json`. They
say where to look and whom to cancel; they decide nothing about a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gatebench.errors import UserError
from gatebench.paths import runs_dir
from gatebench.sweep import squeue
from gatebench.training.rundir import read_json, write_json

FOLDER = ".sweeps"


@dataclass(frozen=True)
class Array:
    """One job array: its name in the queue, and the run directory of each of its elements."""

    name: str
    directories: tuple[Path, ...]


class Submission:
    """The folder of what one command submitted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cancelled = path / "cancelled"
        """A file; once it is there no job of this submission asks to be queued again."""
        self._arrays = path / "arrays.json"

    def arrays(self) -> list[Array]:
        """Return the arrays in the order in which they were submitted."""
        content = read_json(self._arrays) or {"arrays": []}
        return [Array(array["name"], tuple(map(Path, array["directories"]))) for array in content["arrays"]]

    def add(self, directories: Sequence[Path]) -> Array:
        """Record an array, before it is submitted so that none is ever unknown; return it with the name to give it."""
        before = self.arrays()
        name = f"gatebench-{self.path.parent.name}-{self.path.name}-{len(before)}"
        array = Array(name, tuple(directories))
        content = [{"name": a.name, "directories": [str(path) for path in a.directories]} for a in (*before, array)]
        write_json(self._arrays, {"arrays": content})
        return array


def study_folder(study: str) -> Path:
    """Return the folder of a study's submissions."""
    return runs_dir() / FOLDER / (study or "ablation")


def submissions(study: str | None = None) -> list[Submission]:
    """Return the submissions of a study, or of all, oldest first."""
    folders = [study_folder(study)] if study is not None else sorted((runs_dir() / FOLDER).glob("*"))
    return [Submission(path.parent) for folder in folders for path in sorted(folder.glob("*/arrays.json"))]


def queued(study: str | None = None) -> dict[squeue.Place, Path] | None:
    """Return the directory of each run that waits or goes on in a submitted array of a study, or of all.

    None where SLURM does not answer.
    """
    if (queue := squeue.queue()) is None:
        return None
    active = {place for place, element in queue.items() if element.active}
    arrays = [array for submission in submissions(study) for array in submission.arrays()] if active else []
    places = [((array.name, i), path) for array in arrays for i, path in enumerate(array.directories)]
    return {place: path for place, path in places if place in active}


def new_submission(study: str) -> Submission:
    """Make the folder of a new submission."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    for suffix in ("", *(f".{n}" for n in range(1, 100))):
        path = study_folder(study) / f"{stamp}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return Submission(path)
    raise UserError(f"{study_folder(study)}: a hundred submissions in one second; legal: fewer")
