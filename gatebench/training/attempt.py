"""Attempts at a run: who may work on it, and which one counts when a lost machine still works on an old one.

This is the only fence of a run, on one machine and across machines (docs/cluster.md). Each attempt writes to a folder
of its own, `attempts/<number>/`. While a run is unfinished, `current` in its directory is a link to the attempt that
counts, and `metrics.jsonl`, `checkpoints` and so on are links through it. A new attempt takes over by turning that one
link, and then removes the folders of those before it: whatever they still write lands nowhere. The files of the attempt
that ends the run replace the links, `summary.json` last. Where a file system has no
symbolic links, `current` is a file that names the folder, and `RunDirectory` finds the rest.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from gatebench.errors import UserError
from gatebench.training.rundir import CURRENT, RunDirectory, read_json, write_json

ATTEMPTS = "attempts"
NUMBER = "GATEBENCH_ATTEMPT"
"""Environment variable with which the first process of a run tells those that it starts which attempt this is."""
STALE_AFTER = "GATEBENCH_STALE_AFTER"
"""Environment variable: the age of a heartbeat, in seconds, from which nobody is taken to be at work (90)."""
BEATS = 9
"""Heartbeats in that time: several, for file systems that tell late."""
PATIENCE_S = 10.0
"""How long a second process waits for the first, which may be on its way out."""
LAUNCHER = "GATEBENCH_LAUNCHER"
"""Environment variable that tells a run which process started it, and for which study: `<process> <study>`."""

Reason = Literal["outside", "own"]
"""Why an attempt ended without a result: from outside (killed, preempted, disk full), or by an error of its own."""

_LINKED = ("metrics.jsonl", "checkpoints", "environment.json")
"""What is shown, by link, in the directory of a run that is going on."""


class Superseded(Exception):
    """A newer attempt counts now; nothing that this one writes is read any more."""


class Attempt(RunDirectory):
    """The folder of one attempt, with the configuration and the log of its run."""

    def __init__(self, run: RunDirectory, number: int) -> None:
        super().__init__(run.path / ATTEMPTS / f"{number:04d}")
        self.run = run
        self.number = number
        self.config = run.config
        self.log = run.log
        self.heartbeat = self.path / "heartbeat.json"
        self.failure = self.path / "failure.json"

    @property
    def name(self) -> str:
        """The run's name."""
        return self.run.name

    def is_current(self) -> bool:
        """Return whether this attempt counts."""
        found = current_attempt(self.run)
        return found is not None and found.number == self.number

    def publish(self, summary: dict[str, Any]) -> None:
        """Make this attempt's files the run's, `summary.json` last. Raises Superseded where another counts by now."""
        write_json(self.summary, summary)
        self.write_checksums()
        self.drop_resume_points()
        if not self.is_current():
            raise Superseded
        settle(self.run)

    def record_failure(self, reason: Reason, message: str) -> None:
        """Write down why the attempt ended; a reason from outside stands against what followed from it."""
        with suppress(OSError):  # superseded, or a full disk: then there is nothing to say, or no room for it
            if (read_json(self.failure) or {}).get("reason") != "outside":
                write_json(self.failure, {"reason": reason, "message": message, "ended": _now()})

    def owner(self) -> dict[str, Any]:
        """Return what its process wrote of itself: host, pid, launcher and so on; empty where it wrote nothing yet."""
        return read_json(self.heartbeat) or {}

    def age(self) -> float | None:
        """Return the seconds since the last sign of life; None without one."""
        try:
            return max(0.0, clock_of(self.run.path) - self.heartbeat.stat().st_mtime)
        except OSError:
            return None

    def is_alive(self) -> bool:
        """Return whether another process is at work: a fresh heartbeat, and on this machine the process itself."""
        owner = self.owner()
        if owner.get("host") == socket.gethostname() and (owner["pid"] == os.getpid() or not pid_alive(owner["pid"])):
            return False
        age = None if self.failure.is_file() else self.age()
        return age is not None and age <= stale_after()


def stale_after() -> float:
    """Return the age of a heartbeat, in seconds, from which nobody is taken to be at work."""
    return float(os.environ.get(STALE_AFTER, "90"))


def clock_of(path: Path) -> float:
    """Return the present time by the clock that dates the files beside `path`: that of the file server, if it has one.

    Only so can the age of a file be told that another machine has touched. Where nothing can be written, it is ours.
    """
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:
        return time.time()


def current_attempt(run: RunDirectory) -> Attempt | None:
    """Return the attempt that counts; None for a run that has none, or that is done."""
    link = run.path / CURRENT
    try:
        target = os.readlink(link) if link.is_symlink() else link.read_text(encoding="utf-8")
        return Attempt(run, int(Path(target).name))
    except (OSError, ValueError):
        return None


def wait_for_others(run: RunDirectory) -> None:
    """Return once no other process is at work on the run. Raises UserError where one stays."""
    deadline = time.monotonic() + PATIENCE_S
    while (attempt := current_attempt(run)) is not None and attempt.is_alive():
        if time.monotonic() > deadline:
            raise _at_work(attempt)
        time.sleep(0.2)


@contextmanager
def new_attempt(run: RunDirectory, *, takeover: bool = False) -> Iterator[Attempt]:
    """Begin an attempt with everything that the one before it saved, and give signs of life until it ends.

    Raises UserError where another process is at work on the run, unless `takeover`; Superseded where one has just
    finished it.
    """
    attempt = _make(run)
    ended = threading.Event()
    beat = threading.Thread(target=_beat, args=(attempt, ended), daemon=True)
    beat.start()
    try:
        _turn_to(run, attempt, takeover)
        yield attempt
    finally:
        ended.set()
        beat.join()
        os.environ.pop(NUMBER, None)


def _turn_to(run: RunDirectory, attempt: Attempt, takeover: bool) -> None:
    """Make the attempt the one that counts. Of those that begin at the same moment the lowest number does."""
    earlier = [Attempt(run, number) for number in _numbers(run) if number < attempt.number]
    for other in () if takeover else earlier:
        if other.is_alive():
            shutil.rmtree(attempt.path, ignore_errors=True)
            raise _at_work(other)
    if run.is_done():
        settle(run)
        raise Superseded
    _inherit(run, attempt)
    _point(run.path / CURRENT, f"{ATTEMPTS}/{attempt.path.name}")
    for name in _LINKED:
        _show(run.path / name)
    for other in earlier:
        shutil.rmtree(other.path, ignore_errors=True)
    os.environ[NUMBER] = str(attempt.number)


def _at_work(attempt: Attempt) -> UserError:
    return UserError(
        f"run directory '{attempt.run.path}': another process is working on this run "
        f"({attempt.owner().get('host', 'another machine')}, last sign of life {attempt.age() or 0:.0f} s ago); "
        "wait for it, stop it, or take the run over with --takeover"
    )


def shared_attempt(run: RunDirectory, patience_s: float = 300.0) -> Attempt:
    """Return the attempt that the first process of this run has begun, waiting for it where the scheduler started all.

    Raises UserError when it does not appear.
    """
    if number := os.environ.get(NUMBER):
        return Attempt(run, int(number))
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = current_attempt(run)
        if found is not None and found.owner().get("launch") == launch_id():
            return found
        time.sleep(0.2)
    raise UserError(
        f"run directory '{run.path}': the first process of this run did not begin within {patience_s:.0f} s"
    )


def launch_id() -> str | None:
    """Return what all processes of one SLURM job have in common, each time it starts; None outside SLURM."""
    job = os.environ.get("SLURM_JOB_ID")
    return None if job is None else f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"


def settle(run: RunDirectory) -> None:
    """Put the files of a finished attempt in the run's directory; finishes what a crash left half done."""
    attempt = current_attempt(run)
    if attempt is not None and (attempt.summary.is_file() or run.summary.is_file()):
        hidden = {attempt.heartbeat.name, attempt.failure.name, attempt.summary.name}
        for source in sorted(attempt.path.iterdir()) if attempt.path.is_dir() else ():
            target = run.path / source.name
            if source.name not in hidden and not source.name.endswith(".tmp"):
                if source.is_dir():
                    _clear(target)
                os.replace(source, target)
        for name in _LINKED:  # to what the attempt did not write
            if (run.path / name).is_symlink():
                (run.path / name).unlink()
        if attempt.summary.is_file():
            os.replace(attempt.summary, run.summary)
    if run.summary.is_file():
        (run.path / CURRENT).unlink(missing_ok=True)
        shutil.rmtree(run.path / ATTEMPTS, ignore_errors=True)


def _make(run: RunDirectory) -> Attempt:
    """Make the next attempt's folder: a number is given once, even to two processes that ask at the same moment."""
    (run.path / ATTEMPTS).mkdir(exist_ok=True)
    while True:
        attempt = Attempt(run, max(_numbers(run), default=0) + 1)
        try:
            attempt.path.mkdir()
        except FileExistsError:
            continue
        launcher, _, study = os.environ.pop(LAUNCHER, "").partition(" ")  # not that of further processes of this run
        owner = {
            "attempt": attempt.number,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "launcher": int(launcher or 0),
            "study": study,
            "launch": launch_id(),
            "node": os.environ.get("SLURMD_NODENAME"),
            "started": _now(),
        }
        write_json(attempt.heartbeat, owner)
        return attempt


def _numbers(run: RunDirectory) -> list[int]:
    folder = run.path / ATTEMPTS
    return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()) if folder.is_dir() else []


def _inherit(run: RunDirectory, attempt: Attempt) -> None:
    """Take over what is saved: checkpoints by hard link, then the metrics, which reach at least as far."""
    attempt.checkpoints.mkdir()
    for path in sorted(run.checkpoints.iterdir()) if run.checkpoints.is_dir() else ():
        if path.suffix != ".tmp":
            with suppress(FileNotFoundError):  # dropped by a process that is still at work
                _link(path, attempt.checkpoints / path.name)
    for source, target in ((run.environment, attempt.environment), (run.metrics, attempt.metrics)):
        if source.is_file():
            shutil.copyfile(source, target)
    before = current_attempt(run)
    if before is not None and (before.path / "tensorboard").is_dir():
        shutil.copytree(before.path / "tensorboard", attempt.path / "tensorboard")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _show(path: Path) -> None:
    """Make the name in the run's directory a link into the current attempt."""
    if not path.is_symlink():  # of a run that began before there were attempts
        _clear(path)
    if (path.parent / CURRENT).is_symlink():
        _point(path, f"{CURRENT}/{path.name}")


def _point(path: Path, target: str) -> None:
    """Make `path` a link, in one step; on a file system without symbolic links a file that holds the target's name."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        temporary.symlink_to(target)
    except OSError:
        temporary.write_text(target, encoding="utf-8")
    os.replace(temporary, path)


def _clear(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def _beat(attempt: Attempt, ended: threading.Event) -> None:
    while not ended.wait(stale_after() / BEATS):
        try:
            os.utime(attempt.heartbeat)
        except FileNotFoundError:  # superseded
            return
        except OSError:
            continue


def die_with_launcher() -> None:
    """In a run that a launcher started: ask the kernel for SIGTERM when the launcher dies, however it dies (Linux)."""
    launcher = os.environ.get(LAUNCHER)
    if launcher is None or not sys.platform.startswith("linux"):
        return
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
    if os.getppid() != int(launcher.split()[0]):  # it died before the kernel was asked
        sys.exit(1)


def pid_alive(pid: int) -> bool:
    """Return whether this machine has a process of that id; one that has ended and is only listed still is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return not Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].startswith(b" Z")
    except OSError:
        return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
