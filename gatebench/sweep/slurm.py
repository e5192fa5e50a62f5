"""Train what is missing of a study on a SLURM cluster: job arrays through submitit, watched until they have ended.

The queue says when to look; what is done is read from the run directories alone (contract 2).
"""

from __future__ import annotations

import importlib.util
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from gatebench.errors import UserError
from gatebench.sweep import snapshot, squeue
from gatebench.sweep.board import Board
from gatebench.sweep.job import RETRIES, Job
from gatebench.sweep.missing import missing_runs
from gatebench.sweep.plan import PlannedRun, plan
from gatebench.sweep.profiles import ClusterProfile
from gatebench.sweep.slurm_job import TrainInJob
from gatebench.sweep.study import Study
from gatebench.sweep.submissions import Array, Submission, new_submission, only_sweep_here, submissions
from gatebench.training.rundir import read_json

Place = tuple[str, int]
"""Name of a job array, and the index in it."""

POLL_S = 2.0
"""Between two questions to the scheduler while runs end; it grows to POLL_LONGEST_S while nothing happens."""
POLL_LONGEST_S = 30.0


def train_missing(
    study: Study,
    console: Console,
    profile: ClusterProfile,
    *,
    max_parallel: int | None = None,
    gpus_per_run: float | None = None,
    retry_failed: bool = False,
    detach: bool = False,
) -> tuple[list[PlannedRun], list[Job]]:
    """Submit what is missing and not queued yet, wait for it, and return the plan and the jobs that have no result.

    A run whose job ended from outside is submitted again, twice at most. With `detach` nothing is waited for. Raises
    UserError before anything is submitted.
    """
    check_available()
    with only_sweep_here(study):
        missing = missing_runs(study, console, retry_failed=retry_failed, on_cluster=True)
        if all(run.finished for run in missing.planned):
            return missing.planned, []
        for job in missing.jobs:
            job.finish()
        places = queued_places([*missing.waiting, *missing.elsewhere])
        queued = set(places.values())
        waiting = [job for job in missing.waiting if job not in queued]
        shapes(waiting, profile, gpus_per_run)
        done = sum(job.state in ("done", "diverged") for job in missing.jobs)
        console.print(
            f"{len(missing.jobs)} runs, {done} done, {len(places)} queued before", highlight=False, soft_wrap=True
        )
        submission = None
        if waiting:
            submission = new_submission(study.name)
            code = snapshot.take(submission.path)
            places |= submit(waiting, submission, code, profile, max_parallel, gpus_per_run)
            console.print(
                f"{len(waiting)} submitted; code and logs: {submission.path}", highlight=False, soft_wrap=True
            )
        if detach:
            return plan(study), []
        try:
            with Board(missing.jobs, console) as board:
                _Watcher(study.name, board, profile, max_parallel, gpus_per_run, submission).watch(places)
        except KeyboardInterrupt:
            console.print(
                f"the jobs stay in the queue; `gatebench cancel {study.name}` ends them",
                highlight=False,
                soft_wrap=True,
            )
            raise
    return plan(study), [job for job in missing.jobs if not job.finish()]


def check_available() -> None:
    """Raise UserError where nothing can be submitted."""
    squeue.check_available()
    if importlib.util.find_spec("submitit") is None:
        raise UserError("--on slurm: package submitit is missing; pip install 'gatebench[slurm]'")


def queued_places(jobs: Sequence[Job]) -> dict[Place, Job]:
    """Return the places in the queue of those jobs that an earlier command has submitted. Raises UserError without one.

    Submissions of every study count: studies may share runs.
    """
    queue = squeue.queue()
    if queue is None:
        raise UserError("squeue does not answer; legal: the same command once the scheduler is back")
    names = {name for (name, _), queued in queue.items() if queued.active}
    by_directory = {job.directory: job for job in jobs}
    found: dict[Place, Job] = {}
    for submission in submissions() if names else ():
        for array in submission.arrays():
            for index, directory in enumerate(array.directories if array.name in names else ()):
                queued = queue.get((array.name, index))
                if queued is not None and queued.active and directory in by_directory:
                    found[array.name, index] = by_directory[directory]
    return found


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
                TrainInJob(job.directory.resolve(), profile.cpus_per_task, profile.max_requeues, submission.cancelled)
                for job in chunk
            ]
            before = submit_array(
                tasks, array, submission, code, profile, {**parameters, **after}, max_parallel or len(chunk)
            )
            for index, job in enumerate(chunk):
                job.starts += 1
                job.state = "waiting"
                places[array.name, index] = job
    return places


def submit_array(
    tasks: Sequence[Callable[[], object]],
    array: Array,
    submission: Submission,
    code: Path,
    profile: ClusterProfile,
    parameters: dict[str, Any],
    max_parallel: int,
) -> str:
    """Submit what the elements of an array do, with the code of the submission; return the array's job id."""
    import submitit

    executor = submitit.SlurmExecutor(submission.path / "slurm", max_num_timeout=profile.max_timeouts)
    setup = [
        f"export PYTHONPATH={shlex.quote(str(code.resolve()))}${{PYTHONPATH:+:$PYTHONPATH}}",
        "export PYTHONSAFEPATH=1",  # else `python -m` looks in the working directory first: the checkout
        *parameters["setup"],
    ]
    executor.update_parameters(**{**parameters, "setup": setup}, job_name=array.name, array_parallelism=max_parallel)
    with executor.batch():
        handles = [executor.submit(task) for task in tasks]
    job_id: str = handles[0].job_id
    return job_id.partition("_")[0]


def shapes(
    jobs: Sequence[Job], profile: ClusterProfile, gpus_per_run: float | None
) -> list[tuple[dict[str, Any], list[Job]]]:
    """Return the jobs by what they ask of the cluster, with submitit's parameters for it. Raises UserError."""

    def shape(job: Job) -> tuple[int, int]:
        return job.config.train.num_nodes, job.config.train.devices

    found = []
    for (nodes, devices), members in groupby(sorted(jobs, key=shape), key=shape):
        found.append((_parameters(nodes, devices, profile, gpus_per_run), list(members)))
    return found


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


class _Watcher:
    """Waits for jobs to leave the queue, and submits again what ended from outside."""

    def __init__(
        self,
        study: str,
        board: Board,
        profile: ClusterProfile,
        max_parallel: int | None,
        gpus_per_run: float | None,
        submission: Submission | None,
    ) -> None:
        self.study = study
        self.board = board
        self.profile = profile
        self.max_parallel = max_parallel
        self.gpus_per_run = gpus_per_run
        self.submission = submission

    def watch(self, places: dict[Place, Job]) -> None:
        """Return when every job has its result, or has failed as often as it may."""
        seen: dict[Place, str] = {}
        gone: set[Place] = set()
        interval, answers = POLL_S, True
        while places:
            queue = squeue.queue()
            if (queue is not None) != answers:
                answers = queue is not None
                self.board.say("squeue answers again" if answers else "squeue does not answer; asking on")
            again: list[Job] = []
            for place, job in list(places.items()) if queue is not None else ():
                queued = queue.get(place) if queue is not None else None
                if queued is not None:
                    seen[place] = queued.state
                    job.state = "running" if queued.state == "RUNNING" else "waiting"
                if job.finish():
                    self.board.ended(places.pop(place))
                    interval = POLL_S
                elif queued is not None and queued.active:
                    gone.discard(place)
                elif place not in gone:  # the disk of another machine may tell late: look a second time
                    gone.add(place)
                    interval = POLL_S
                elif self._may_start_again(places.pop(place), seen.get(place)):
                    again.append(job)
                else:
                    job.state = "failed"
                    self.board.ended(job)
            if again:
                places |= self._submit_again(again)
            self.board.show()
            if places:
                time.sleep(interval)
                interval = min(interval * 1.25, POLL_LONGEST_S)

    def _may_start_again(self, job: Job, last_state: str | None) -> bool:
        attempt = job.attempt
        failure = None if attempt is None else read_json(attempt.failure)
        own = failure["reason"] == "own" if failure is not None else last_state == "FAILED"
        return not own and last_state != "CANCELLED" and job.starts <= RETRIES

    def _submit_again(self, jobs: Iterable[Job]) -> dict[Place, Job]:
        listed = list(jobs)
        for job in listed:
            self.board.say(f"{job.name}: its job ended from outside; submitting it again")
        if self.submission is None:
            self.submission = new_submission(self.study)
        code = self.submission.path / "code"
        if not code.is_dir():
            snapshot.take(self.submission.path)
        return submit(listed, self.submission, code, self.profile, self.max_parallel, self.gpus_per_run)
