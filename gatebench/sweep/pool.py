"""Many runs on this machine: processes of `gatebench train`, side by side, with CPU and GPU slots.

Sweeps and tuning share it. No training code here, and nothing to keep: what is done is read from the run directories
(contract 2). Not submitit's local executor: that starts everything at once, and knows of no slots.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Self

from rich.console import Console

from gatebench.cores import available_cores
from gatebench.errors import UserError
from gatebench.paths import runs_dir
from gatebench.sweep.job import RETRIES, Job
from gatebench.sweep.status_table import StatusTable
from gatebench.training.attempt import LAUNCHER, Attempt
from gatebench.training.rundir import RunDirectory

LOOK_S = 0.25
"""Between two looks at what runs."""
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
    cores = available_cores()
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


class Pool:
    """Starts runs, as many as it has slots, and notices how they end.

    Whatever ends the `with` block ends the runs that are going on, and waits until they have saved themselves; so do
    the first Ctrl-C and the first SIGTERM. A second one does not wait: the runs are killed, and resume from their last
    checkpoint. On Linux a run ends with its pool even after kill -9.
    """

    def __init__(self, slots: Slots, study: str = "") -> None:
        self.slots = slots
        self.study = study
        """What `gatebench cancel` knows its runs by."""
        self.running: list[Job] = []
        self._free_gpus = list(slots.gpus)
        self._handlers: dict[int, Any] = {}
        self._ending = False
        self._in_a_hurry = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:  # as of what a shell starts in the background
                    self._handlers[number] = signal.signal(number, self._on_signal)
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._ending:
            self._in_a_hurry = True
            return
        self._ending = True
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(1)

    def __exit__(self, *error: object) -> None:
        self._ending = True
        processes = [job.process for job in self.running if job.process is not None]
        stop(processes, STOP_PATIENCE_S, lambda: self._in_a_hurry)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @property
    def has_room(self) -> bool:
        """Whether another run can start."""
        return len(self.running) < self.slots.n

    def start(self, job: Job) -> None:
        """Start a run in a free slot; what it prints goes to its log."""
        job.gpus = self._free_gpus.pop(0) if self._free_gpus else ()
        job.directory.mkdir(parents=True, exist_ok=True)
        job.state, job.starts, job.exit_code = "running", job.starts + 1, None
        command, env = job.command(self.slots.threads), environment(self.slots.threads, job.gpus, self.study)
        with open(job.files.log, "ab") as log:
            job.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running.append(job)

    def ended(self) -> list[Job]:
        """Return the runs whose process has ended since the last call, each with its state.

        That is `waiting` where it is to be started again: it was ended from outside, at most twice, or another command
        was faster to begin it.
        """
        ended = []
        for job in list(self.running):
            assert job.process is not None
            job.exit_code = job.process.poll()
            if job.exit_code is None:
                continue
            self.running.remove(job)
            self._free_gpus += [job.gpus] if job.gpus else []
            if not job.finish():
                job.state = "waiting" if _may_start_again(job) else "failed"
            ended.append(job)
        return ended


def _may_start_again(job: Job) -> bool:
    attempt = job.attempt
    if is_at_work(job):
        job.starts -= 1
        return True
    assert job.process is not None and job.exit_code is not None
    if attempt is not None and attempt.owner().get("pid") == job.process.pid and job.exit_code < 0:
        attempt.record_failure("outside", f"killed by signal {-job.exit_code}")
    return job.starts <= RETRIES and job.ended_outside()


def is_at_work(job: Job) -> bool:
    """Return whether a process is at work on a run, of this command or of another one."""
    attempt = job.attempt
    return attempt is not None and not job.done and attempt.is_alive()


def run_all(jobs: Sequence[Job], slots: Slots, console: Console, study: str = "") -> list[Job]:
    """Run every job that is not done; return those that failed.

    A run that was ended from outside (killed, out of memory) is started again, twice at most; one that ended by an
    error of its own is not. One that another command here is at work on is waited for, and started should that end.
    """
    for job in jobs:
        job.finish()
    waiting = [job for job in jobs if job.state == "waiting"]
    with StatusTable(jobs, console) as table, Pool(slots, study) as pool:
        while waiting or pool.running:
            for job in list(waiting):
                if not pool.has_room:
                    break
                if job.finish():
                    waiting.remove(job)
                    table.ended(job)
                elif is_at_work(job):
                    job.state = "running"
                else:
                    waiting.remove(job)
                    pool.start(job)
            time.sleep(LOOK_S)
            for job in pool.ended():
                if job.state != "waiting":
                    table.ended(job)
                    continue
                waiting.append(job)
                if not is_at_work(job):
                    table.say(f"{job.name}: ended from outside (exit {job.exit_code}); starting it again")
            table.show()
    return [job for job in jobs if job.state == "failed"]


def environment(threads: int, gpus: Sequence[int] = (), study: str = "") -> dict[str, str]:
    """Return the environment of a process that this one starts: its threads, its GPUs, and whom to end with."""
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    env[LAUNCHER] = f"{os.getpid()} {study}"
    if gpus:
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible[i] if i < len(visible) else str(i) for i in gpus)
    return env


def stop(
    processes: Sequence[subprocess.Popen[bytes]], patience_s: float, in_a_hurry: Callable[[], bool] = lambda: False
) -> None:
    """End processes: SIGTERM, which lets them end what they started; after `patience_s`, or in a hurry, SIGKILL."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + patience_s
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline and not in_a_hurry():
        time.sleep(0.1)
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def stop_pools_here(study: str) -> list[int]:
    """Send SIGTERM to the commands of this machine that train runs of a study; return their processes.

    Raises UserError where one is at work on another machine.
    """
    processes = set()
    for heartbeat in sorted(runs_dir().glob("*/*/attempts/*/heartbeat.json")):
        attempt = Attempt(RunDirectory(heartbeat.parents[2]), int(heartbeat.parent.name))
        owner = attempt.owner()
        if not study or owner.get("study") != study or not attempt.is_alive():
            continue
        if owner["host"] != socket.gethostname():
            raise UserError(f"study '{study}': a sweep is at work on {owner['host']}; legal: the same command there")
        processes.add(int(owner["launcher"]))
    for process in processes:
        os.kill(process, signal.SIGTERM)
    return sorted(processes)
