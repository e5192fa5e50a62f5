"""Who works on a trial: a file for each worker that took it, numbered; the newest counts. Imports no torch.

A worker that is killed, or gives no sign of life for too long, is followed by another with the next number. One that
comes back sees that number, and drops what it was doing. Which result of a trial counts does not hang on this: the
storage lets a trial end once (`worker.py`).
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gatebench.training.attempt import pid_alive
from gatebench.training.rundir import read_json, write_json

BEATS = 9
"""Signs of life in the time after which a lease is taken to be abandoned: several, for file systems that tell late."""


class Lease:
    """The claim of one worker on one trial."""

    def __init__(self, folder: Path, number: int, stale_s: float) -> None:
        self.folder = folder
        self.number = number
        self.stale_s = stale_s
        self.path = _path(folder, number)

    def is_current(self) -> bool:
        """Return whether nobody has followed."""
        return not _path(self.folder, self.number + 1).exists()

    def is_alive(self) -> bool:
        """Return whether its worker is at work: a fresh sign of life, and on this machine the process itself."""
        try:
            age = time.time() - self.path.stat().st_mtime
        except OSError:
            return False
        if age > self.stale_s:
            return False
        owner = read_json(self.path)
        if owner is None:  # being written
            return True
        return not owner.get("released") and (owner["host"] != socket.gethostname() or pid_alive(int(owner["pid"])))

    def owner_here(self) -> int | None:
        """Return the process of its worker, where that is one of this machine."""
        owner = read_json(self.path)
        return None if owner is None or owner["host"] != socket.gethostname() else int(owner["pid"])

    @contextmanager
    def held(self) -> Iterator[None]:
        """Give signs of life until the block ends; after that the trial, if it has not ended, is anyone's."""
        ended = threading.Event()
        beat = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        beat.start()
        try:
            yield
        finally:
            ended.set()
            beat.join()
            write_json(self.path, (read_json(self.path) or {}) | {"released": True})

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(self.stale_s / BEATS):
            with suppress(OSError):
                os.utime(self.path)


def newest(folder: Path, stale_s: float) -> Lease | None:
    """Return the lease that counts of the trial with this folder; None where nobody has taken it yet."""
    numbers = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]
    return Lease(folder, max(numbers), stale_s) if numbers else None


def claim(folder: Path, stale_s: float) -> Lease | None:
    """Take a trial that nobody works on; None where somebody does, or was faster."""
    before = newest(folder, stale_s)
    if before is not None and before.is_alive():
        return None
    lease = Lease(folder, 1 if before is None else before.number + 1, stale_s)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with open(lease.path, "x", encoding="utf-8") as handle:  # a number is given once
            json.dump({"host": socket.gethostname(), "pid": os.getpid()}, handle)
    except FileExistsError:
        return None
    return lease


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:04d}.json"
