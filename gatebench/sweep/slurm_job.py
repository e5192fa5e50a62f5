"""What a SLURM job does: start `gatebench train` on a run that is described on disk, and ask to be queued again.

submitit calls it, with the copy of the code that was made at submission. Requeueing has one owner, submitit: at SIGUSR2
(preemption, time limit, or from here when the run was ended from outside) it calls `checkpoint` and requeues the job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gatebench.sweep.launch import environment
from gatebench.sweep.squeue import job_state
from gatebench.training.attempt import current_attempt
from gatebench.training.rundir import RunDirectory, read_json

STOP_PATIENCE_S = 30.0
"""How long a run that is told to stop may take over its current step."""
SCHEDULER_PATIENCE_S = 120.0
"""How long to wait for the scheduler, or the run's first process, to end a job that is over."""


@dataclass
class TrainInJob:
    """One run, in each process of its job."""

    directory: Path
    threads: int
    max_requeues: int
    cancelled: Path
    """A file; where it is there the job is not queued again."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False, compare=False)

    def __call__(self) -> str:
        """Train, resume, or find the run done. Raises RuntimeError for a run that ended by an error of its own."""
        run = RunDirectory(self.directory)
        code = self._train(run)
        if run.is_done():
            return "done"
        attempt = current_attempt(run)
        if attempt is not None and code < 0:
            attempt.record_failure("outside", f"killed by signal {-code}")
        if int(os.environ.get("SLURM_PROCID", "0")) > 0:
            time.sleep(SCHEDULER_PATIENCE_S)  # the first process decides what follows, and ends this one
            raise RuntimeError(f"{run.name}: process {os.environ['SLURM_PROCID']} ended with exit status {code}")
        if int(os.environ.get("SLURM_NTASKS", "1")) > 1:
            time.sleep(2.0)  # for what another process knows of the end
        failure = None if attempt is None else read_json(attempt.failure)
        if failure is None or failure["reason"] == "own":
            raise RuntimeError(f"{run.name}: ended with exit status {code}: {run.last_message()}")
        self._ask_for_requeue()
        raise RuntimeError(f"{run.name}: {failure['message']}; not queued again")

    def checkpoint(self) -> object | None:
        """Stop the run and return what the job does when it starts again; None where it is not to."""
        stop(self._process)
        return queued_again(replace(self, _process=None), self.cancelled, self.max_requeues)

    def _train(self, run: RunDirectory) -> int:
        command = [sys.executable, "-m", "gatebench", "train", "--resume", str(self.directory)]
        command += ["--threads", str(self.threads), "--takeover"]
        self._process = start(command, self.threads, run.log)
        while (code := self._process.poll()) is None:
            time.sleep(0.2)
        return code

    def _ask_for_requeue(self) -> None:
        """Have submitit requeue this job; where the scheduler is ending it already, wait for that."""
        if job_state(os.environ.get("SLURM_JOB_ID", "")) in (None, "RUNNING"):
            os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(SCHEDULER_PATIENCE_S)


def start(command: Sequence[str], threads: int, log: Path) -> subprocess.Popen[bytes]:
    """Start a program of ours that ends with this process; what it prints goes to `log`."""
    with open(log, "ab") as out:
        return subprocess.Popen(
            command,
            env=environment(threads),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=_ignore_requeue_signal,
        )


def stop(process: subprocess.Popen[bytes] | None) -> None:
    """End a program, if it is there, after the step that it is at."""
    if process is None or process.poll() is not None:
        return
    process.terminate()
    deadline = time.monotonic() + STOP_PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if process.poll() is None:
        process.kill()


def queued_again(task: Callable[[], object], cancelled: Path, max_requeues: int) -> object | None:
    """Return what submitit puts into the queue in place of a job that is ended; None where it is to stay ended."""
    import submitit

    if cancelled.exists() or int(os.environ.get("SLURM_RESTART_COUNT", "0")) >= max_requeues:
        return None
    delayed: object = submitit.helpers.DelayedSubmission(task)
    return delayed


def _ignore_requeue_signal() -> None:
    """SLURM sends the signal to all processes of a job; the run is told to stop by `checkpoint`."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
