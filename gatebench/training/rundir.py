"""A run directory on disk: what is in it, and when it is done. Who may write to it is in `attempt.py`.

Status is read from files alone (contract 2): `summary.json` there = done; `checkpoints/model.safetensors` there =
trained; otherwise the newest readable `checkpoints/step_*.ckpt` is where training goes on. Every one of these is
written under another name and renamed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from gatebench import recipes
from gatebench.config import RunConfig, differences
from gatebench.errors import UserError
from gatebench.files import write_atomic

_CHECKPOINT = re.compile(r"step_(\d+)\.ckpt")
_SNAPSHOT = re.compile(r"weights_(\d+)\.safetensors")
LOCK_PATIENCE_S = 10.0
"""How long a second process waits for the first, which may be on its way out."""
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.log = path / "log.txt"
        self.checkpoints = path / "checkpoints"
        self.weights = self.checkpoints / "model.safetensors"
        self.eval = path / "eval.json"
        self.probes = path / "probes.json"
        self.probe_arrays = path / "probes.npz"
        self.summary = path / "summary.json"

    @property
    def name(self) -> str:
        """Recipe and run, as in `quick/baseline-s0-1234abcd`."""
        return f"{self.path.parent.name}/{self.path.name}"

    def is_done(self) -> bool:
        """Return whether the run is finished (diverged counts)."""
        return self.summary.is_file()

    def result(self) -> Literal["done", "diverged"] | None:
        """Return how a finished run ended; None for one that is not."""
        if not self.is_done():
            return None
        return "diverged" if (read_json(self.summary) or {}).get("status") == "diverged" else "done"

    def check_done(self) -> None:
        """Raise UserError for a run that is not finished, and for one that diverged."""
        if (result := self.result()) != "done":
            why = "the run is not finished" if result is None else "the run diverged"
            raise UserError(f"{self.path}: {why}; legal: a finished run")

    def check_trained(self) -> None:
        """Raise UserError, too, where the trained weights are gone."""
        self.check_done()
        if not self.weights.is_file():
            raise UserError(f"{self.path}: its weights were removed; legal: a finished run")

    def read_config(self) -> RunConfig:
        """Return `config.yaml`. Raises UserError where there is none."""
        if not self.config.is_file():
            raise UserError(f"{self.path}: holds no config.yaml; legal: a run directory (results/runs/<recipe>/<run>)")
        return recipes.run_from_yaml(self.config.read_text(encoding="utf-8"), str(self.config))

    def read_summary(self) -> dict[str, Any]:
        """Return `summary.json`."""
        summary: dict[str, Any] = json.loads(self.summary.read_text(encoding="utf-8"))
        return summary

    def places(self) -> list[dict[str, Any]]:
        """Return the record of every attempt that trained, in order (`environment.json`)."""
        if not self.environment.is_file():
            return []
        attempts: list[dict[str, Any]] = json.loads(self.environment.read_text(encoding="utf-8"))["attempts"]
        return attempts

    def claim(self, config: RunConfig) -> None:
        """Create the directory for `config`, or check that it is its own. Raises UserError naming what differs."""
        if self.config.is_file():
            differing = differences(config, self.read_config())
            if differing:
                more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
                raise UserError(
                    f"run directory '{self.path}': holds another config, {differing[0]}{more}; "
                    "legal: the same config, or another --out"
                )
            return
        ours = {".lock", "log.txt", self.config.name + ".tmp"}  # what a run leaves that was killed before this point
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"run directory '{self.path}': is a file; legal: a new folder for --out")
        if self.path.exists() and any(entry.name not in ours for entry in self.path.iterdir()):
            raise UserError(
                f"run directory '{self.path}': is not empty and holds no config.yaml; legal: a new folder for --out"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self.config, recipes.to_yaml(config))
        except OSError as error:
            raise UserError(
                f"run directory '{self.path}': cannot be made ({error.strerror}); legal: another --out"
            ) from None

    @contextmanager
    def locked(self, *, takeover: bool = False) -> Iterator[None]:
        """Hold the directory against a second process on this machine; the lock dies with its process.

        With `takeover` a process that keeps the lock is no hindrance: the new attempt shuts it out (`attempt.py`).
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "a", encoding="utf-8") as handle:
            _lock(handle.fileno(), self.path, takeover)
            yield

    def resume_points(self) -> list[tuple[int, Path]]:
        """Return (step, file) of the checkpoints to resume from, newest first."""
        return self._numbered(_CHECKPOINT)[::-1]

    def snapshots(self) -> list[tuple[int, Path]]:
        """Return (step, file) of the copies of the weights that were kept along the way, oldest first."""
        return self._numbered(_SNAPSHOT)

    def _numbered(self, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
        found = []
        for path in self.checkpoints.iterdir() if self.checkpoints.is_dir() else ():
            if match := pattern.fullmatch(path.name):
                found.append((int(match[1]), path))
        return sorted(found)

    def metrics_rows(self) -> list[dict[str, Any]]:
        """Return the complete rows of `metrics.jsonl`; a line cut short by a kill is left out."""
        rows: list[dict[str, Any]] = []
        if self.metrics.is_file():
            for line in self.metrics.read_text(encoding="utf-8").splitlines():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError:
                    break
        return rows

    def last_row(self) -> dict[str, Any] | None:
        """Return the newest complete metrics row, reading only the file's end."""
        try:
            with open(self.metrics, "rb") as handle:
                handle.seek(max(0, os.fstat(handle.fileno()).st_size - 4096))
                row: dict[str, Any] = json.loads(handle.read().split(b"\n")[-2])
            return row
        except (OSError, IndexError, json.JSONDecodeError):
            return None

    def last_message(self) -> str:
        """Return the last line of the run's log."""
        try:
            with open(self.log, "rb") as handle:
                handle.seek(max(0, os.fstat(handle.fileno()).st_size - 4096))
                lines = handle.read().decode("utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "no message"

    def keep_metrics(self, last_step: int) -> None:
        """Drop every metrics row after `last_step` (they will be made again)."""
        rows = [row for row in self.metrics_rows() if row["step"] <= last_step]
        write_atomic(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))


def _lock(descriptor: int, path: Path, takeover: bool) -> None:
    """Take the lock, waiting a little for a process on its way out. Raises UserError if another keeps it."""
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if takeover:
                return
            if time.monotonic() > deadline:
                raise UserError(
                    f"run directory '{path}': another process is working on this run; wait for it or stop it"
                ) from None
            time.sleep(0.2)
        except OSError as error:  # a file system without locks
            print(f"{path}: no file locks here ({error.strerror}): do not start this run twice", file=sys.stderr)
            return


class RunLog:
    """Messages of one run: to standard error and to `log.txt`, once each where the two are the same file."""

    def __init__(self, directory: RunDirectory) -> None:
        self.path = directory.log

    def __call__(self, message: str, *, show: bool = True) -> None:
        """Write one line; with `show` false, to the file alone."""
        if show:
            print(message, file=sys.stderr, flush=True)
        if not (show and self._is_stderr()):
            with open(self.path, "a", encoding="utf-8") as log:
                log.write(message + "\n")

    def _is_stderr(self) -> bool:
        try:
            return os.path.samestat(os.fstat(sys.stderr.fileno()), os.stat(self.path))
        except (OSError, ValueError):
            return False


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON, atomically. NaN and infinities are refused."""
    write_atomic(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a small file; None where it is missing or not readable."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content


def seconds_left(row: dict[str, Any], steps: int) -> float:
    """Return the training time left after a metrics row, of a run of `steps` steps, at that row's speed."""
    tokens_per_step = row["tokens"] / row["step"]
    return float((steps - row["step"]) * tokens_per_step / max(row["tokens_per_s"], 1e-9))


def is_disk_full(error: BaseException) -> bool:
    """Return whether a write failed for want of space; torch and safetensors have errors of their own for it."""
    full = isinstance(error, OSError) and error.errno in _DISK_FULL
    return full or any(text in str(error) for text in ("PytorchStreamWriter failed", *map(os.strerror, _DISK_FULL)))


@contextmanager
def disk_full_is_a_user_error(directory: RunDirectory) -> Iterator[None]:
    """Turn a full disk (or quota, or file size limit) into one line that says what is safe."""
    try:
        yield
    except Exception as error:
        if not is_disk_full(error):
            raise
        points = directory.resume_points()
        kept = f"the checkpoint of step {points[0][0]} is safe" if points else "no checkpoint was written yet"
        raise UserError(
            f"run directory '{directory.path}': no space left to write ({kept}); "
            "free some space and run the same line again"
        ) from None
