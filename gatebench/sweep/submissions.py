"""What was submitted for a study, and the one sweep of it that may be at work on a machine: files beside the runs.

A submission is a folder `<runs>/.sweeps/<study>/<time>/` with a copy of the code, SLURM's logs and `arrays.json`. They
say where to look and whom to cancel; they decide nothing about a run.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gatebench.errors import UserError
from gatebench.paths import runs_dir
from gatebench.sweep.study import Study
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


@contextmanager
def only_sweep_here(study: Study) -> Iterator[None]:
    """Hold a study, with its settings, against a second sweep on this machine. Raises UserError naming the first.

    Variants that were only named on a command line are no study, and are held run by run.
    """
    if not study.name:
        yield
        return
    settings = json.dumps([study.recipe, study.fixed.overrides])
    path = study_folder(study.name) / f"sweep-{zlib.crc32(settings.encode()):08x}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8") as handle:
        if not _lock(handle.fileno()):
            pid = (read_json(path) or {}).get("pid", "?")
            raise UserError(
                f"study '{study.name}': another sweep of it is at work here (process {pid}); wait for it, "
                f"or end it with `gatebench cancel {study.name}`"
            )
        handle.truncate(0)
        handle.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        handle.flush()
        yield


def stop_sweeps_here(study: str) -> list[int]:
    """Send SIGTERM to the sweeps of a study on this machine, which stop their runs; return their processes.

    Raises UserError where one is at work on another machine.
    """
    stopped = []
    for path in sorted(study_folder(study).glob("sweep-*.json")):
        owner = read_json(path)
        with open(path, "a", encoding="utf-8") as handle:
            if owner is None or _lock(handle.fileno()):
                continue  # it has ended: its lock died with it
        if owner["host"] != socket.gethostname():
            raise UserError(f"study '{study}': a sweep is at work on {owner['host']}; legal: the same command there")
        os.kill(int(owner["pid"]), signal.SIGTERM)
        stopped.append(int(owner["pid"]))
    return stopped


def _lock(descriptor: int) -> bool:
    """Return whether the lock could be had, or the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
