"""Bring the trials of a study's searches to their end: runs for each, in the pool that sweeps have, cached as all are.

Why no trial is lost, and none counted twice, whoever is killed or paused: the trials are put into the storage before
any work begins, with numbers 0 .. N-1. The storage gives a waiting one to one worker, and lets each end once. Whether
somebody works on one is told by its runs, whose attempts are the only fence (`training/attempt.py`): an open trial
whose runs give no sign of life is anyone's, under the same number and with the settings that it has. Optuna's own
heartbeat needs a database, and gives a trial that is tried again another number.
"""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from gatebench.data.reading import open_data
from gatebench.errors import UserError
from gatebench.paths import runs_dir
from gatebench.sweep.job import Job
from gatebench.sweep.pool import Pool, is_at_work
from gatebench.sweep.search import ERRORS, REPORTS, Search, Tuning, sampler, status_of
from gatebench.sweep.space import suggest
from gatebench.sweep.status_table import LiveTable
from gatebench.training.attempt import clock_of, current_attempt, pid_alive, stale_after
from gatebench.training.rundir import RunDirectory

LOOK_S = 0.5
"""Between two looks at what goes on."""
WORKER = "worker"
"""User attribute of a trial: the process that took it; empty once that has left it to others."""


class Failed(Exception):
    """The trial has no value, for the reason in the message."""


@dataclass(eq=False)
class TrialWork:
    """What this command does for one trial: a run for each seed, one after the other."""

    search: Search
    trial: optuna.Trial
    jobs: list[Job] = field(default_factory=list)
    """One a seed."""
    values: list[float] = field(default_factory=list)
    """The objective of its finished runs."""
    told: set[int] = field(default_factory=set)
    """What the pruner has heard of: parts of the runs, counted through."""
    pruned: bool = False
    """Whether its run was told to stop because it lags behind."""

    @property
    def name(self) -> str:
        """For a reader."""
        return f"{self.search.label} trial {self.trial.number}"

    def unfinished(self) -> Job | None:
        """Return the first run without a result; None where there is none, or where a run before it diverged."""
        for job in self.jobs:
            if (result := job.files.result()) is None:
                return job
            self.report(job)
            if result == "diverged":
                break
        return None

    def report(self, job: Job) -> bool:
        """Tell the pruner a run's mean training loss in each of its REPORTS parts; return whether any was new."""
        steps, offset = job.config.train.steps, self.jobs.index(job) * REPORTS
        ends = [math.ceil(steps * part / REPORTS) for part in range(REPORTS + 1)]
        last = (job.last_row() or {"step": 0})["step"]
        new = [part for part in range(1, REPORTS + 1) if offset + part not in self.told and last >= ends[part]]
        if not new:
            return False
        self.told.update(offset + part for part in new)
        losses: dict[int, Any] = {row["step"]: row["loss"] for row in job.files.metrics_rows()}
        sign = 1 if self.search.tune.direction == "minimize" else -1  # Optuna has one direction for both
        for part in new:
            values = [losses.get(step) for step in range(ends[part - 1] + 1, ends[part] + 1)]
            if finite := [value for value in values if value is not None]:
                self.trial.report(sign * statistics.fmean(finite), offset + part)
        return True

    def measure(self) -> None:
        """Read the objective of each finished run. Raises Failed where that of a trained one is no number."""
        name = self.search.tune.objective
        self.values.clear()
        for job in self.jobs:
            if job.files.result() != "done":
                break
            value = job.files.read_summary().get(name)
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise Failed(f"{name} of {job.files.name} is {value}")
            self.values.append(float(value))

    def begun(self) -> list[str]:
        """Return the names of the runs up to the one that is next, or that diverged."""
        n_done = next((i for i, job in enumerate(self.jobs) if job.files.result() != "done"), len(self.jobs))
        return [job.files.name for job in self.jobs[: n_done + 1]]

    def count_error(self, job: Job, max_retries: int) -> None:
        """Write down an error of training. Raises Failed once there are more than the trial may have."""
        messages = [*self.trial.user_attrs.get(ERRORS, []), job.last_message()]
        self.trial.set_user_attr(ERRORS, messages)
        if len(messages) > max_retries:
            raise Failed(messages[-1])


class Tuner:
    """Takes trials that nobody works on and brings them to their end, side by side in the slots of a pool."""

    def __init__(self, tuning: Tuning, pool: Pool, max_retries: int, progress: LiveTable) -> None:
        self.tuning = tuning
        self.pool = pool
        self.max_retries = max_retries
        self.progress = progress
        self.at_work: dict[Job, TrialWork] = {}

    def run(self, *, as_worker: bool) -> None:
        """Return when every trial has ended; `as_worker` already when there is none to take."""
        while True:
            while self.pool.has_room and (work := self._take()) is not None:
                self._go_on(work)
            if not self.at_work and (as_worker or not self.tuning.open_trials()):
                self.progress.show()
                return
            time.sleep(LOOK_S)
            for job in self.pool.ended():
                self._go_on(self.at_work.pop(job), job)
            for job, work in self.at_work.items():
                self._stop_if_behind(job, work)
            self.progress.show()

    def _take(self) -> TrialWork | None:
        """Take the first trial that nobody works on."""
        for index, candidate in self.tuning.open_trials():
            if not self._is_free(candidate):
                continue
            search, study = self.tuning.searches[index], self.tuning.studies[index]
            try:
                waiting = candidate.state == TrialState.WAITING
                if waiting and not self.tuning.storage.set_trial_state_values(candidate._trial_id, TrialState.RUNNING):
                    continue  # another worker was faster
                study.sampler = sampler(search.tune, candidate.number)
                trial = optuna.Trial(study, candidate._trial_id)
                trial.set_user_attr(WORKER, _this_process())
                for run in _runs(candidate):
                    if run.path.is_dir():
                        os.utime(run.path)  # a sign of life, until an attempt gives its own
                if trial.user_attrs[WORKER] != _this_process():
                    continue  # another worker was faster; should both believe that of themselves, their runs decide
            except UpdateFinishedTrialError:
                continue
            return TrialWork(search, trial, told=set(candidate.intermediate_values))
        return None

    def _is_free(self, trial: FrozenTrial) -> bool:
        """Return whether nobody works on an open trial: its worker is gone, or nothing of it gives signs of life."""
        if trial.state == TrialState.WAITING:
            return True
        runs = _runs(trial)
        attempts = [attempt for run in runs if (attempt := current_attempt(run)) is not None]
        ours = {job.directory for job in self.at_work}
        if any(run.path in ours for run in runs) or any(attempt.is_alive() for attempt in attempts):
            return False
        worker = trial.user_attrs.get(WORKER, {"host": None})
        here = worker and worker["host"] == socket.gethostname()
        if not worker or (here and (worker["pid"] == os.getpid() or not pid_alive(worker["pid"]))):
            return True
        ages = [clock_of(run.path) - run.path.stat().st_mtime for run in runs if run.path.is_dir()]
        if not ages and trial.datetime_start is not None:
            ages = [(datetime.now() - trial.datetime_start).total_seconds()]
        return min(ages, default=0.0) > stale_after()

    def _go_on(self, work: TrialWork, ended: Job | None = None) -> None:
        """Start the trial's next run, or end it; leave it to another process that is at work on it."""
        try:
            if ended is not None and ended.state == "failed" and not work.pruned:
                work.count_error(ended, self.max_retries)
            if not work.jobs:
                _choose_settings(work)
            job = work.unfinished()
            work.measure()
            if job is not None:
                work.trial.set_user_attr("runs", work.begun())  # by which others can tell that it goes on
            if job is None:
                worst = math.inf if work.search.tune.direction == "minimize" else -math.inf
                diverged = len(work.values) < len(work.jobs)
                self._end(work, TrialState.COMPLETE, worst if diverged else statistics.fmean(work.values))
            elif work.pruned:
                self._end(work, TrialState.PRUNED)
            elif is_at_work(job) or any(job.directory == other.directory for other in self.at_work):
                self._leave(work)
            else:
                if ended is not None and ended.state == "waiting":
                    self.progress.say(f"{work.name}: ended from outside (exit {ended.exit_code}); starting it again")
                _claim(job)
                self.pool.start(job)
                self.at_work[job] = work
        except Failed as error:
            self._end(work, TrialState.FAIL, reason=str(error))
        except UpdateFinishedTrialError:
            self.progress.say(f"{work.name}: another process has ended it")

    def _stop_if_behind(self, job: Job, work: TrialWork) -> None:
        """Tell a run to stop whose trial the pruner gives up, or another process has ended."""
        if work.pruned:
            return
        try:
            work.pruned = work.report(job) and not job.done and work.trial.should_prune()
        except UpdateFinishedTrialError:
            work.pruned = True
        if work.pruned and job.process is not None:
            job.process.terminate()

    def _leave(self, work: TrialWork) -> None:
        if work.trial.user_attrs.get(WORKER) == _this_process():
            work.trial.set_user_attr(WORKER, {})
        self.progress.say(f"{work.name}: left to another process, which trains its run")

    def _end(self, work: TrialWork, state: TrialState, value: float | None = None, reason: str | None = None) -> None:
        facts = {"status": status_of(state, value), "reason": reason, "values": work.values, "runs": work.begun()}
        try:
            for key, content in facts.items():
                work.trial.set_user_attr(key, content)
            values = None if value is None else [value]
            self.tuning.storage.set_trial_state_values(work.trial._trial_id, state, values)
        except UpdateFinishedTrialError:
            self.progress.say(f"{work.name}: another process has ended it")


def _runs(trial: FrozenTrial) -> list[RunDirectory]:
    """Return the runs that a trial has begun."""
    return [RunDirectory(runs_dir() / name) for name in trial.user_attrs.get("runs", [])]


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid()}


def _choose_settings(work: TrialWork) -> None:
    """Give the trial its settings, and these their runs. Raises Failed for settings that do not go together."""
    params = suggest(work.trial, work.search.tune.space)
    try:
        jobs = []
        for seed in work.search.seeds:
            config = work.search.config(params, seed)
            config = config.model_copy(update={"corpus_fingerprint": open_data(config.data).fingerprint})
            jobs.append(Job(config, runs_dir() / config.run_name))
    except UserError as error:
        raise Failed(str(error)) from None
    work.jobs = jobs


def _claim(job: Job) -> None:
    try:
        job.files.claim(job.config)
    except UserError as error:
        raise Failed(str(error)) from None
