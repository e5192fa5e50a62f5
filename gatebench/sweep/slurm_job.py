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
from dataclasses import dataclass, field
from pathlib import Path

from gatebench.sweep.launch import LAUNCHER
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
        import submitit

        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            deadline = time.monotonic() + STOP_PATIENCE_S
            while self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            if self._process.poll() is None:
                self._process.kill()
        if self.cancelled.exists() or int(os.environ.get("SLURM_RESTART_COUNT", "0")) >= self.max_requeues:
            return None
        again = TrainInJob(self.directory, self.threads, self.max_requeues, self.cancelled)
        delayed: object = submitit.helpers.DelayedSubmission(again)
        return delayed

    def _train(self, run: RunDirectory) -> int:
        command = [sys.executable, "-m", "gatebench", "train", "--resume", str(self.directory)]
        command += ["--threads", str(self.threads), "--takeover"]
        env = dict(os.environ, OMP_NUM_THREADS=str(self.threads), MKL_NUM_THREADS=str(self.threads))
        env[LAUNCHER] = str(os.getpid())
        with open(run.log, "ab") as log:
            self._process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_ignore_requeue_signal
            )
        while (code := self._process.poll()) is None:
            time.sleep(0.2)
        return code

    def _ask_for_requeue(self) -> None:
        """Have submitit requeue this job; where the scheduler is ending it already, wait for that."""
        if job_state(os.environ.get("SLURM_JOB_ID", "")) in (None, "RUNNING"):
            os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(SCHEDULER_PATIENCE_S)


def _ignore_requeue_signal() -> None:
    """SLURM sends the signal to all processes of a job; the run is told to stop by `checkpoint`."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
