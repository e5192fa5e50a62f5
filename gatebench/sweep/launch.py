"""Run many runs on this machine: a pool of subprocesses of `gatebench train`, with CPU and GPU slots.

No training code here, and nothing to keep: what is done is read from the run directories (contract 2).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

from gatebench.errors import UserError
from gatebench.sweep.board import Board
from gatebench.sweep.job import RETRIES, Job
from gatebench.training.rundir import read_json

LAUNCHER = "GATEBENCH_LAUNCHER"
"""Environment variable that tells a run which process started it."""
STOP_PATIENCE_S = 60.0
"""How long what is stopped may take to save itself and leave."""


@dataclass(frozen=True)
class Slots:
    """How many runs go side by side, and with what."""

    n: int
    threads: int
    gpus: tuple[tuple[int, ...], ...] = ()
    """The GPUs of each slot; slots of small runs share one."""


def local_slots(
    n_jobs: int,
    *,
    n_gpus: int,
    devices: int = 1,
    max_parallel: int | None = None,
    gpus_per_run: float | None = None,
) -> Slots:
    """Return a slot for every `gpus_per_run` GPUs; on CPU as many as cores and jobs allow, the cores divided between.

    `n_jobs` counts the done ones too, so that a command that is repeated trains with as many threads as before.
    Two runs on one core each train more tokens per second than one run on two cores (docs/training.md).
    Raises UserError for a `gpus_per_run` that this machine or these runs do not allow.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not n_gpus:
        if gpus_per_run is not None:
            raise UserError(f"--gpus-per-run={gpus_per_run:g}: these runs train on the CPU here; legal: without it")
        n = max(1, min(cores // devices, max_parallel or cores, n_jobs or 1))
        return Slots(n, max(1, cores // n // devices))
    slots = _gpu_slots(n_gpus, devices, gpus_per_run)
    n = max(1, min(len(slots), max_parallel or len(slots), n_jobs or 1))
    return Slots(n, max(1, cores // n), tuple(slots[:n]))


def _gpu_slots(n_gpus: int, devices: int, gpus_per_run: float | None) -> list[tuple[int, ...]]:
    share = float(devices) if gpus_per_run is None else gpus_per_run
    if share < 1 and devices == 1:
        return [(gpu,) for _ in range(int(1 / share + 1e-9)) for gpu in range(n_gpus)]
    if share < devices or share != int(share) or share > n_gpus:
        legal = f"{devices} to {n_gpus}, whole" + ("; or below 1, where runs share a GPU" if devices == 1 else "")
        raise UserError(f"--gpus-per-run={share:g}: the runs have train.devices={devices}; legal here: {legal}")
    whole = int(share)
    return [tuple(range(slot * whole, (slot + 1) * whole)) for slot in range(n_gpus // whole)]


def die_with_launcher() -> None:
    """In a run that a launcher started: ask the kernel for SIGTERM when the launcher dies, however it dies (Linux)."""
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is None or not sys.platform.startswith("linux"):
        return
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
    if os.getppid() != int(launcher):  # it died before the kernel was asked
        sys.exit(1)


@contextmanager
def sigterm_ends_with_cleanup() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that the runs are stopped too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_all(jobs: Sequence[Job], slots: Slots, console: Console, watch: Callable[[], None] = lambda: None) -> list[Job]:
    """Run every job that is not done; return those that failed.

    A run that was ended from outside (killed, out of memory) is started again, twice at most; one that ended by an
    error of its own is not. Whatever ends the launcher (Ctrl-C, SIGTERM, on Linux kill -9 too) ends what runs; what is
    saved resumes. `watch` is called several times a second; what it raises ends them, too.
    """
    for job in jobs:
        job.finish()
    with sigterm_ends_with_cleanup(), Board(jobs, console) as board:
        _run_all(deque(job for job in jobs if job.state == "waiting"), slots, board, watch)
    return [job for job in jobs if job.state == "failed"]


def _run_all(waiting: deque[Job], slots: Slots, board: Board, watch: Callable[[], None]) -> None:
    running: list[Job] = []
    free_gpus = list(slots.gpus)
    try:
        while waiting or running:
            while waiting and len(running) < slots.n:
                job = waiting.popleft()
                job.gpus = free_gpus.pop(0) if free_gpus else ()
                _start(job, slots.threads)
                running.append(job)
            time.sleep(0.25)
            for job in list(running):
                assert job.process is not None
                if (code := job.process.poll()) is None:
                    continue
                job.exit_code = code
                running.remove(job)
                free_gpus += [job.gpus] if job.gpus else []
                if _again(job):
                    board.say(f"{job.name}: ended from outside (exit {code}); starting it again")
                    waiting.append(job)
                else:
                    board.ended(job)
            board.show()
            watch()
    finally:
        stop([job.process for job in running if job.process is not None], STOP_PATIENCE_S)


def environment(threads: int, gpus: Sequence[int] = ()) -> dict[str, str]:
    """Return the environment of a process that this one starts: its threads, its GPUs, and whom to end with."""
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    env[LAUNCHER] = str(os.getpid())
    if gpus:
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible[i] if i < len(visible) else str(i) for i in gpus)
    return env


def _start(job: Job, threads: int) -> None:
    env = environment(threads, job.gpus)
    job.directory.mkdir(parents=True, exist_ok=True)
    job.state, job.starts, job.exit_code = "running", job.starts + 1, None
    with open(job.files.log, "ab") as log:
        job.process = subprocess.Popen(job.command(threads), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _again(job: Job) -> bool:
    """Set the state of a job whose process has ended; return whether it is to be started again."""
    if job.finish():
        return False
    assert job.process is not None and job.exit_code is not None
    attempt = job.attempt
    own = attempt is not None and (read_json(attempt.heartbeat) or {}).get("pid") == job.process.pid
    if attempt is not None and own and job.exit_code < 0:
        attempt.record_failure("outside", f"killed by signal {-job.exit_code}")
    again = job.starts <= RETRIES and job.ended_outside()
    job.state = "waiting" if again else "failed"
    return again


def stop(processes: Sequence[subprocess.Popen[bytes]], patience_s: float) -> None:
    """End processes: SIGTERM, which lets them end what they started, and after `patience_s` SIGKILL."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + patience_s
    for process in processes:
        try:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
