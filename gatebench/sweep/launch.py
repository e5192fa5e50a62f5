"""Run many runs on this machine: a pool of subprocesses of `gatebench train`, with CPU and GPU slots.

No training code here, and nothing to keep: what is done is read from the run directories (contract 2).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from gatebench.config import RunConfig

LAUNCHER = "GATEBENCH_LAUNCHER"
"""Environment variable that tells a run which process started it."""


@dataclass
class Job:
    """One run: what to train and where it lands."""

    config: RunConfig
    directory: Path
    recipe: str
    """Name or path, as a user gives it."""
    overrides: tuple[str, ...] = ()
    """Settings on top of the recipe, in the order in which they apply."""
    label: str = ""
    """What sets the run apart from others of its variant and seed."""
    process: subprocess.Popen[bytes] | None = None
    gpus: tuple[int, ...] = ()
    exit_code: int | None = None
    reported: int = field(default=-1)

    @property
    def name(self) -> str:
        """Variant, seed, and what else sets the run apart."""
        return " ".join(filter(None, (f"{self.config.variant} seed {self.config.seed}", self.label)))

    @property
    def done(self) -> bool:
        """Whether the run's summary is there."""
        return (self.directory / "summary.json").is_file()

    def command(self, threads: int) -> list[str]:
        """Return the command line that a user would type for this run."""
        command = [sys.executable, "-m", "gatebench", "train", "--recipe", self.recipe]
        command += ["--variant", self.config.variant, "--seed", str(self.config.seed), "--threads", str(threads)]
        for override in self.overrides:
            command += ["--set", override]
        return [*command, "--out", str(self.directory)]

    def last_row(self) -> dict[str, Any] | None:
        """Return the newest complete metrics row, reading only the file's end."""
        try:
            with open(self.directory / "metrics.jsonl", "rb") as handle:
                handle.seek(max(0, os.fstat(handle.fileno()).st_size - 4096))
                lines = handle.read().split(b"\n")[:-1]
            row: dict[str, Any] = json.loads(lines[-1])
            return row
        except (OSError, IndexError, json.JSONDecodeError):
            return None

    def last_message(self) -> str:
        """Return the last line of the run's log."""
        try:
            lines = (self.directory / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "no message"


@dataclass(frozen=True)
class Slots:
    """How many runs go side by side, and with what."""

    n: int
    threads: int
    gpus: tuple[tuple[int, ...], ...] = ()
    """The GPUs of each slot."""


def local_slots(n_jobs: int, *, n_gpus: int, devices: int = 1, max_parallel: int | None = None) -> Slots:
    """Return a slot for every `devices` GPUs; on CPU as many as cores and jobs allow, the cores divided between them.

    `n_jobs` counts the done ones too, so that a command that is repeated trains with as many threads as before.
    Two runs on one core each train more tokens per second than one run on two cores (docs/training.md).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    n = n_gpus // devices if n_gpus else min(cores, n_jobs)
    n = max(1, min(n, max_parallel or n, n_jobs or 1))
    gpus = [tuple(range(slot * devices, (slot + 1) * devices)) for slot in range(n)] if n_gpus else []
    return Slots(n, max(1, cores // n), tuple(gpus))


def die_with_launcher() -> None:
    """In a run that `run_all` started: ask the kernel for SIGTERM when the launcher dies, however it dies (Linux)."""
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is None or not sys.platform.startswith("linux"):
        return
    parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
    if os.getppid() != int(launcher):  # it died before the kernel was asked
        sys.exit(1)


@contextmanager
def _sigterm_ends_with_cleanup() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that the runs are stopped too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_all(jobs: Sequence[Job], slots: Slots, console: Console) -> list[Job]:
    """Run every job that is not done; return those that failed.

    Whatever ends the launcher (Ctrl-C, SIGTERM, on Linux kill -9 too) ends what runs; what is saved resumes.
    """
    with _sigterm_ends_with_cleanup():
        return _run_all(jobs, slots, console)


def _run_all(jobs: Sequence[Job], slots: Slots, console: Console) -> list[Job]:
    waiting = [job for job in jobs if not job.done]
    running: list[Job] = []
    free_gpus = list(slots.gpus)
    started = time.monotonic()
    live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
    try:
        if live:
            live.start()
        while waiting or running:
            while waiting and len(running) < slots.n:
                job = waiting.pop(0)
                job.gpus = free_gpus.pop(0) if free_gpus else ()
                _start(job, slots.threads)
                running.append(job)
            time.sleep(0.25)
            for job in list(running):
                assert job.process is not None
                if (code := job.process.poll()) is not None:
                    job.exit_code = code
                    running.remove(job)
                    free_gpus += [job.gpus] if job.gpus else []
                    if not live:
                        console.print(f"{job.name}: {_status(job)}", highlight=False)
            if live:
                live.update(_table(jobs, time.monotonic() - started))
            else:
                _report_lines(running, console)
    finally:
        for job in running:
            if job.process is not None and job.process.poll() is None:
                job.process.terminate()
        for job in running:
            if job.process is not None:
                job.process.wait(timeout=60)
        if live:
            live.stop()
    return [job for job in jobs if not job.done]


def _start(job: Job, threads: int) -> None:
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    env[LAUNCHER] = str(os.getpid())
    if job.gpus:
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        env["CUDA_VISIBLE_DEVICES"] = ",".join(visible[i] if i < len(visible) else str(i) for i in job.gpus)
    job.directory.mkdir(parents=True, exist_ok=True)
    with open(job.directory / "log.txt", "ab") as log:
        job.process = subprocess.Popen(job.command(threads), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _status(job: Job) -> str:
    if job.done:
        diverged = json.loads((job.directory / "summary.json").read_text(encoding="utf-8"))["status"] == "diverged"
        return "diverged" if diverged else "done"
    if job.exit_code is not None:
        return f"failed (exit {job.exit_code}): {job.last_message()}"
    return "waiting" if job.process is None else "running"


def _progress(job: Job) -> tuple[str, str, str, str]:
    row = job.last_row()
    steps = job.config.train.steps
    if row is None:
        return f"0/{steps}", "-", "-", "-"
    loss = "-" if row["loss"] is None else f"{row['loss']:.3f}"
    left = (steps - row["step"]) * row["tokens"] / row["step"] / max(row["tokens_per_s"], 1e-9)
    return f"{row['step']}/{steps}", loss, f"{row['tokens_per_s']:,.0f}", "evaluating" if left == 0 else f"{left:.0f} s"


def _table(jobs: Sequence[Job], elapsed: float) -> Group:
    table = Table(title=f"{sum(job.done for job in jobs)} of {len(jobs)} runs done, {elapsed:.0f} s")
    for column in ("run", "status", "step", "loss", "tokens/s", "left"):
        table.add_column(column, justify="left" if column in ("run", "status") else "right")
    for job in jobs:
        step, loss, rate, left = _progress(job)
        status = _status(job)
        table.add_row(job.name, status[:60], step, loss, rate, left if status == "running" else "-")
    return Group(table)


def _report_lines(running: Sequence[Job], console: Console) -> None:
    """Print a line for each fifth of a run, where there is no terminal to draw on."""
    for job in running:
        row = job.last_row()
        fifth = -1 if row is None else 5 * row["step"] // job.config.train.steps
        if fifth > job.reported:
            job.reported = fifth
            step, loss, rate, left = _progress(job)
            console.print(f"{job.name}: step {step}  loss {loss}  {rate} tokens/s  {left} left", highlight=False)
