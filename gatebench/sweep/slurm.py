"""Train the unfinished runs of a study on a SLURM cluster: job arrays through submitit, waited for until they end.

The queue says when to look; what is done is read from the run directories alone (contract 2). Who starts a job again is
SLURM (`--requeue`: a lost node), or submitit at SIGUSR2 (preemption, time limit, and from here when the run was ended
from outside); what is gone from the queue all the same waits for the user's next `gatebench sweep`.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from gatebench.errors import UserError
from gatebench.sweep import snapshot, squeue
from gatebench.sweep.job import Job
from gatebench.sweep.plan import PlannedRun, refreshed
from gatebench.sweep.pool import environment, stop
from gatebench.sweep.profiles import ClusterProfile
from gatebench.sweep.squeue import Place
from gatebench.sweep.status_table import StatusTable
from gatebench.sweep.study import Study
from gatebench.sweep.submissions import Array, Submission, new_submission, queued
from gatebench.sweep.unfinished import unfinished_runs
from gatebench.training.attempt import current_attempt
from gatebench.training.rundir import RunDirectory, read_json

POLL_S = 2.0
"""Between two questions to the scheduler while runs end; it grows to POLL_LONGEST_S while nothing happens."""
POLL_LONGEST_S = 30.0
STOP_PATIENCE_S = 30.0
"""How long what a job runs may take over its current step when it is told to stop."""
SCHEDULER_PATIENCE_S = 120.0
"""How long to wait for the scheduler, or the run's first process, to end a job that is over."""


def train_on_cluster(
    study: Study,
    console: Console,
    profile: ClusterProfile,
    *,
    max_parallel: int | None = None,
    gpus_per_run: float | None = None,
    retry_failed: bool = False,
    detach: bool = False,
) -> tuple[list[PlannedRun], list[Job]]:
    """Submit the unfinished runs that are not queued yet, wait for all, and return the plan and what has no result.

    With `detach` nothing is waited for. Raises UserError before anything is submitted.
    """
    check_available()
    runs = unfinished_runs(study, console, retry_failed=retry_failed, on_cluster=True)
    if all(run.finished for run in runs.planned):
        return runs.planned, []
    for job in runs.jobs:
        job.finish()
    before = queued()  # of every study: studies may share runs
    if before is None:
        raise UserError("squeue does not answer; legal: the same command once the scheduler is back")
    by_directory = {job.directory: job for job in (*runs.waiting, *runs.elsewhere)}
    places = {place: by_directory[path] for place, path in before.items() if path in by_directory}
    waiting = [job for job in runs.waiting if job not in places.values()]
    shapes(waiting, profile, gpus_per_run)
    done = sum(job.state in ("done", "diverged") for job in runs.jobs)
    console.print(f"{len(runs.jobs)} runs, {done} done, {len(places)} queued before", highlight=False, soft_wrap=True)
    if waiting:
        submission = new_submission(study.name)
        code = snapshot.take(submission.path)
        places |= submit(waiting, submission, code, profile, max_parallel, gpus_per_run)
        console.print(f"{len(waiting)} submitted; code and logs: {submission.path}", highlight=False, soft_wrap=True)
    if detach:
        return refreshed(runs.planned), []
    try:
        with StatusTable(runs.jobs, console) as table:
            wait(places, table)
    except KeyboardInterrupt:
        message = f"the jobs stay in the queue; `gatebench cancel {study.name}` ends them"
        console.print(message, highlight=False, soft_wrap=True)
        raise
    return refreshed(runs.planned), [job for job in runs.jobs if not job.finish()]


def check_available() -> None:
    """Raise UserError where nothing can be submitted."""
    squeue.check_available()
    if importlib.util.find_spec("submitit") is None:
        raise UserError("--on slurm: package submitit is missing; pip install 'gatebench[slurm]'")


def submit(
    jobs: Sequence[Job],
    submission: Submission,
    code: Path,
    profile: ClusterProfile,
    max_parallel: int | None,
    gpus_per_run: float | None,
) -> dict[Place, Job]:
    """Submit the jobs as arrays no larger than the site allows, each run in one of them; return their places.

    With `max_parallel` arrays follow one another, so that no more runs go at once.
    """
    limit = profile.max_array_size or squeue.max_array_size()
    places: dict[Place, Job] = {}
    before: str | None = None
    for parameters, members in shapes(jobs, profile, gpus_per_run):
        for chunk in (members[i : i + limit] for i in range(0, len(members), limit)):
            array = submission.add([job.directory for job in chunk])
            after = {"dependency": f"afterany:{before}"} if before and max_parallel else {}
            tasks = [
                RunInJob.of(job.directory.resolve(), profile.cpus_per_task, profile.max_requeues, submission.cancelled)
                for job in chunk
            ]
            at_once = max_parallel or len(chunk)
            before = submit_array(tasks, array, submission, code, profile, {**parameters, **after}, at_once)
            for index, job in enumerate(chunk):
                job.starts += 1
                places[array.name, index] = job
    return places


def submit_array(
    tasks: Sequence[CommandInJob],
    array: Array,
    submission: Submission,
    code: Path,
    profile: ClusterProfile,
    parameters: dict[str, Any],
    max_parallel: int,
) -> str:
    """Submit what the elements of an array do, with the code of the submission; return the array's job id.

    Raises UserError, with SLURM's reason, where sbatch refuses.
    """
    import submitit

    executor = submitit.SlurmExecutor(submission.path / "slurm", max_num_timeout=profile.max_timeouts)
    setup = [
        f"export PYTHONPATH={shlex.quote(str(code.resolve()))}${{PYTHONPATH:+:$PYTHONPATH}}",
        "export PYTHONSAFEPATH=1",  # else `python -m` looks in the working directory first: the checkout
        *parameters["setup"],
    ]
    executor.update_parameters(**{**parameters, "setup": setup}, job_name=array.name, array_parallelism=max_parallel)
    try:
        with redirect_stderr(io.StringIO()), executor.batch():  # submitit prints there what the error says, too
            handles = [executor.submit(task) for task in tasks]
    except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        reason = " ".join(str(error).split()) or "no reason given"
        raise UserError(f"sbatch refused: {reason}; legal: what this site allows, by --profile") from None
    job_id: str = handles[0].job_id
    return job_id.partition("_")[0]


def shapes(
    jobs: Sequence[Job], profile: ClusterProfile, gpus_per_run: float | None
) -> list[tuple[dict[str, Any], list[Job]]]:
    """Return the jobs by what they ask of the cluster, with submitit's parameters for it. Raises UserError."""

    def shape(job: Job) -> tuple[int, int]:
        return job.config.train.num_nodes, job.config.train.devices

    return [
        (_parameters(nodes, devices, profile, gpus_per_run), list(members))
        for (nodes, devices), members in groupby(sorted(jobs, key=shape), key=shape)
    ]


def _parameters(nodes: int, devices: int, profile: ClusterProfile, gpus_per_run: float | None) -> dict[str, Any]:
    gpus = devices * profile.gpus_per_device
    if gpus_per_run is not None:
        if gpus_per_run != int(gpus_per_run) or gpus_per_run < devices:
            raise UserError(
                f"--gpus-per-run={gpus_per_run:g}: SLURM gives whole GPUs; legal: {devices} or more, "
                "or a profile with gres: shard:1"
            )
        gpus = int(gpus_per_run)
    parameters: dict[str, Any] = {
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "time": profile.time_minutes,
        "nodes": nodes,
        "ntasks_per_node": devices,
        "cpus_per_task": profile.cpus_per_task,
        "gres": profile.gres,
        "gpus_per_node": gpus if gpus and profile.gres is None else None,
        "mem": None if profile.mem_gb is None else f"{profile.mem_gb * 1024:.0f}M",
        "signal_delay_s": profile.signal_delay_s,
        "stderr_to_stdout": True,
        "wckey": None,
        # since SLURM 22.05 srun does not take over what sbatch was told
        "setup": ["export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", *profile.setup],
        # a process that ends alone must not leave the others waiting for it
        "srun_args": [*(["--kill-on-bad-exit=1"] if nodes * devices > 1 else []), *profile.srun_args],
        "additional_parameters": {"requeue": True, **profile.extra},
    }
    return {key: value for key, value in parameters.items() if value is not None or key == "wckey"}


def wait(places: dict[Place, Job], table: StatusTable) -> None:
    """Return when every job has its result or has left the queue without one."""
    gone: set[Place] = set()
    interval, answers = POLL_S, True
    while places:
        queue = squeue.queue()
        if (queue is not None) != answers:
            answers = queue is not None
            table.say("squeue answers again" if answers else "squeue does not answer; asking on")
        for place, job in list(places.items()) if answers else ():
            element = (queue or {}).get(place)
            if element is not None:
                job.state = "running" if element.state == "RUNNING" else "waiting"
            if not job.finish():
                if element is not None and element.active:
                    gone.discard(place)
                    continue
                if place not in gone:  # the disk of another machine may tell late: look a second time
                    gone.add(place)
                    interval = POLL_S
                    continue
                job.state = "failed"
            table.ended(places.pop(place))
            interval = POLL_S
        table.show()
        if places:
            time.sleep(interval)
            interval = min(interval * 1.25, POLL_LONGEST_S)


@dataclass
class CommandInJob:
    """What one SLURM job does, with the code that was copied at submission: run a command of ours to its end.

    submitit calls it, and `checkpoint` at SIGUSR2.
    """

    command: list[str]
    threads: int
    log: Path
    max_requeues: int
    cancelled: Path
    """A file; where it is there the job is not queued again."""
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False, compare=False)

    def __call__(self) -> str:
        """Return when the command has succeeded. Raises RuntimeError where it ends by an error."""
        if code := self._run():
            raise RuntimeError(f"{self.command[3]} ended with exit status {code} ({self.log})")
        return "done"

    def checkpoint(self) -> object | None:
        """Stop the command and return what submitit puts into the queue; None where the job is to stay ended."""
        import submitit

        if self._process is not None:
            stop([self._process], STOP_PATIENCE_S)
        if self.cancelled.exists() or int(os.environ.get("SLURM_RESTART_COUNT", "0")) >= self.max_requeues:
            return None
        delayed: object = submitit.helpers.DelayedSubmission(replace(self, _process=None))
        return delayed

    def _run(self) -> int:
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env=environment(self.threads),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_ignore_requeue_signal,
            )
        while (code := self._process.poll()) is None:
            time.sleep(0.2)
        return code


@dataclass
class RunInJob(CommandInJob):
    """One run, in each process of its job."""

    @classmethod
    def of(cls, directory: Path, threads: int, max_requeues: int, cancelled: Path) -> RunInJob:
        """Return the job of the run in `directory`, which takes the run over: SLURM has decided that it should."""
        command = [sys.executable, "-m", "gatebench", "train", "--resume", str(directory)]
        command += ["--threads", str(threads), "--takeover"]
        return cls(command, threads, RunDirectory(directory).log, max_requeues, cancelled)

    def __call__(self) -> str:
        """Train, resume, or find the run done. Raises RuntimeError for a run that ended by an error of its own."""
        run = RunDirectory(self.log.parent)
        code = self._run()
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
        if squeue.job_state(os.environ.get("SLURM_JOB_ID", "")) in (None, "RUNNING"):  # else SLURM is ending it already
            os.kill(os.getpid(), signal.SIGUSR2)  # submitit's signal: it calls `checkpoint`, and requeues the job
        time.sleep(SCHEDULER_PATIENCE_S)
        raise RuntimeError(f"{run.name}: {failure['message']}; not queued again")


def _ignore_requeue_signal() -> None:
    """SLURM sends the signal to all processes of a job; the command is told to stop by `checkpoint`."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
