"""A run directory on disk: what is in it, and when it is done. Who may write to it is in `attempt.py`.

Status is read from files alone (contract 2): `summary.json` there = done; `checkpoints/model.safetensors` there =
trained; otherwise the newest readable `checkpoints/step_*.ckpt` is where training goes on. Every one of these is
written under another name and renamed, and is checked against its sha256 when it is read (`files.py`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from gatebench import recipes
from gatebench.config import RunConfig
from gatebench.errors import UserError
from gatebench.files import (
    WAY_OUT,
    check_intact,
    read_checked,
    read_object,
    read_text,
    remove,
    sealed,
    write_atomic,
    write_sums,
)
from gatebench.identity import differences

_CHECKPOINT = re.compile(r"step_(\d+)\.ckpt")
_SNAPSHOT = re.compile(r"weights_(\d+)\.safetensors")
CURRENT = "current"
"""In the directory of a run that is going on: a link to the folder of the attempt that counts (`attempt.py`)."""
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        shown = _shown(path)
        self.environment = shown / "environment.json"
        self.metrics = shown / "metrics.jsonl"
        self.log = path / "log.txt"
        self.checkpoints = shown / "checkpoints"
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
        """Return how a finished run ended; None for one that is not. Raises UserError for a damaged summary."""
        if not self.is_done():
            return None
        return "diverged" if self.read_summary().get("status") == "diverged" else "done"

    def check_done(self) -> None:
        """Raise UserError for a run that is not finished, and for one that diverged."""
        if (result := self.result()) != "done":
            why = "the run is not finished" if result is None else "the run diverged"
            raise UserError(f"{self.path}: {why}; legal: a finished run")

    def check_trained(self) -> None:
        """Raise UserError, too, where the trained weights are gone or damaged."""
        self.check_done()
        if not self.weights.is_file():
            raise UserError(f"{self.path}: its weights were removed; legal: a finished run")
        check_intact(self.weights)

    def read_config(self) -> RunConfig:
        """Return `config.yaml`. Raises UserError where there is none."""
        if not self.config.is_file():
            raise UserError(f"{self.path}: holds no config.yaml; legal: a run directory (results/runs/<recipe>/<run>)")
        return recipes.run_from_yaml(read_text(self.config), str(self.config))

    def read_summary(self) -> dict[str, Any]:
        """Return `summary.json`. Raises UserError for a damaged one."""
        return read_object(self.summary)

    def read_finished(self) -> dict[str, Any]:
        """Return `summary.json` of a finished run. Raises UserError where it, or another of its results, is damaged."""
        for path in self._results():
            if path.is_file():
                read_checked(path)
        self.places()
        return self.read_summary()

    def _results(self) -> tuple[Path, ...]:
        return self.config, self.environment, self.metrics, self.eval, self.probes, self.probe_arrays, self.summary

    def places(self) -> list[dict[str, Any]]:
        """Return the record of every attempt that trained, in order (`environment.json`)."""
        if not self.environment.is_file():
            return []
        attempts = read_object(self.environment).get("attempts")
        if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
            raise UserError(f"{self.environment}: holds no list 'attempts'; {WAY_OUT}")
        return attempts

    def write_places(self, attempts: list[dict[str, Any]]) -> None:
        """Write `environment.json`, sealed: a run that goes on depends on it before there are sums."""
        write_json(self.environment, sealed({"attempts": attempts}))

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
        # what a run leaves that was killed before this point
        unfinished = re.compile(rf"\.lock|log\.txt|{self.config.name}(\.\d+)?\.tmp")
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"run directory '{self.path}': is a file; legal: a new folder for --out")
        if self.path.exists() and any(not unfinished.fullmatch(entry.name) for entry in self.path.iterdir()):
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

    def resume_points(self) -> list[tuple[int, Path]]:
        """Return (step, file) of the checkpoints to resume from, newest first."""
        return self._numbered(_CHECKPOINT)[::-1]

    def drop_resume_points(self, keep: int = 0) -> None:
        """Remove all but the newest `keep` checkpoints to resume from."""
        for _, path in self.resume_points()[keep:]:
            remove(path)

    def write_checksums(self) -> None:
        """Write `SHA256SUMS` over everything that the run is judged by."""
        weights = {f"{self.checkpoints.name}/{self.weights.name}": self.weights}
        write_sums(self.path, {path.name: path for path in self._results()} | weights)

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
            for line in read_text(self.metrics).splitlines():
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

    def metrics_state(self) -> dict[str, Any]:
        """Return the size and the sha256 of `metrics.jsonl` as it is now, for the checkpoint that goes with it."""
        content = self.metrics.read_bytes() if self.metrics.is_file() else b""
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def metrics_reach(self, state: dict[str, Any]) -> bool:
        """Return whether `metrics.jsonl` still begins with what `metrics_state` saw."""
        content = self.metrics.read_bytes()[: state["bytes"]] if self.metrics.is_file() else b""
        return hashlib.sha256(content).hexdigest() == state["sha256"]

    def keep_metrics(self, last_step: int) -> None:
        """Drop every metrics row after `last_step` (they will be made again)."""
        rows = [row for row in self.metrics_rows() if row["step"] <= last_step]
        write_atomic(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))


def _shown(path: Path) -> Path:
    """Return where the files are that links show: here, or where links cannot be made, in the attempt that counts."""
    try:
        return path / (path / CURRENT).read_text(encoding="utf-8")
    except OSError:
        return path


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
        return read_object(path)
    except UserError:
        return None


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
