"""Workers on a SLURM cluster: elements of job arrays, on one storage and one disk, until every trial has ended."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import Popen

from gatebench.sweep import slurm, slurm_job, snapshot, squeue
from gatebench.sweep.job import RETRIES, Job
from gatebench.sweep.profiles import ClusterProfile
from gatebench.sweep.submissions import new_submission, submissions
from gatebench.sweep.tuning.pool import WorkersFail, worker_command
from gatebench.sweep.tuning.progress import Progress
from gatebench.sweep.tuning.search import STORAGE
from gatebench.sweep.tuning.worker import Tuning

LOOK_S = 10.0
"""Between two questions to the scheduler."""


@dataclass
class WorkInJob:
    """One worker; the storage is in the environment, which SLURM hands on."""

    command: tuple[str, ...]
    threads: int
    log: Path
    max_requeues: int
    cancelled: Path
    """A file; where it is there the job is not queued again."""
    _process: Popen[bytes] | None = field(default=None, repr=False, compare=False)

    def __call__(self) -> str:
        """Work until no trial is free. Raises RuntimeError where the worker ends by an error."""
        self._process = slurm_job.start(self.command, self.threads, self.log)
        while (code := self._process.poll()) is None:
            time.sleep(0.2)
        if code:
            raise RuntimeError(f"the worker ended with exit status {code} ({self.log})")
        return "done"

    def checkpoint(self) -> object | None:
        """Stop the worker and return what the job does when it starts again; None where it is not to."""
        slurm_job.stop(self._process)
        return slurm_job.queued_again(replace(self, _process=None), self.cancelled, self.max_requeues)


def run(
    tuning: Tuning, word: str, profile: ClusterProfile, n_workers: int | None, progress: Progress, *, detach: bool
) -> None:
    """Submit workers and wait until every trial has ended; where they leave the queue before that, submit again.

    `n_workers` defaults to one for each variant. With `detach` nothing is waited for. Raises WorkersFail where workers
    end and no trial does.
    """
    fruitless, gone = 0, True
    while still := tuning.open_trials():
        if progress.show():
            fruitless = 0
        if (n_queued := _queued(tuning)) is None:
            time.sleep(LOOK_S)
            continue
        if not n_queued and gone:  # seen twice: the disk of another machine may tell late
            if fruitless > RETRIES:
                raise WorkersFail(f"the workers' jobs end and no trial does ({tuning.folder})")
            n_queued = min(len(still), n_workers or len(tuning.searches))
            _submit(tuning, word, profile, n_queued)
            progress.say(f"{n_queued} workers submitted; logs: {tuning.folder}")
            fruitless += 1
        gone = not n_queued
        if detach:
            return
        time.sleep(LOOK_S)
    progress.show()


def _queued(tuning: Tuning) -> int | None:
    """Return how many workers are in the queue; None where SLURM does not answer."""
    queue = squeue.queue()
    arrays = [array for submission in submissions(tuning.study.name) for array in submission.arrays()]
    ours = {array.name for array in arrays if array.directories[0] == tuning.folder}
    return None if queue is None else sum(queued.active and name in ours for (name, _), queued in queue.items())


def _submit(tuning: Tuning, word: str, profile: ClusterProfile, n_workers: int) -> None:
    config = tuning.searches[0].config({}, 0)
    ((parameters, _),) = slurm.shapes([Job(config, tuning.folder, tuning.study.recipe)], profile, None)
    threads = profile.cpus_per_task * config.train.devices
    parameters |= {"ntasks_per_node": 1, "cpus_per_task": threads}
    tuning.folder.mkdir(parents=True, exist_ok=True)
    os.environ[STORAGE] = tuning.options.storage  # sbatch hands it on
    submission = new_submission(tuning.study.name)
    code = snapshot.take(submission.path)
    array = submission.add([tuning.folder] * n_workers)
    command = tuple(worker_command(word, tuning, threads))
    tasks = [
        WorkInJob(command, threads, tuning.folder / f"{array.name}_{i}.log", profile.max_requeues, submission.cancelled)
        for i in range(n_workers)
    ]
    slurm.submit_array(tasks, array, submission, code, profile, parameters, n_workers)
