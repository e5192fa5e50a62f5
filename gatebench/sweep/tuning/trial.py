"""One trial: a run for each seed, trained as a sweep trains them, cached as all runs are, watched by the pruner."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import optuna
from rich.console import Console

from gatebench.data.reading import open_data
from gatebench.errors import UserError
from gatebench.paths import runs_dir
from gatebench.sweep.job import Job
from gatebench.sweep.launch import Slots, run_all
from gatebench.sweep.tuning.lease import Lease
from gatebench.sweep.tuning.search import REPORTS, Search
from gatebench.sweep.tuning.space import Value, suggest
from gatebench.training.rundir import RunDirectory

LOOK_S = 1.0
"""Between two looks at a run that another process is training."""
ERRORS = "errors"
"""User attribute of a trial: the message of every error in training, whoever worked on it."""


class Superseded(Exception):
    """Another worker has taken the trial over, or ended it."""


class Pruned(Exception):
    """The trial lags behind the others."""


class Failed(Exception):
    """The trial has no value, for the reason in the message."""


@dataclass(eq=False)
class TrialJob(Job):
    """A run of a trial."""

    takeover: bool = False
    """Shut out whoever the trial's last worker left at work on it."""

    def command(self, threads: int) -> list[str]:
        """Return the command line that a user would type for this run."""
        return [*super().command(threads), *(["--takeover"] if self.takeover else [])]


@dataclass
class TrialWork:
    """What one worker does for one trial."""

    search: Search
    trial: optuna.Trial
    lease: Lease
    threads: int
    max_retries: int
    console: Console
    runs: list[str] = field(default_factory=list)
    """Names of the trial's runs, so far."""
    values: list[float] = field(default_factory=list)
    """Of the objective, one a seed, so far."""

    def value(self) -> float:
        """Train what is missing and return the mean over seeds; infinite, on the bad side, where a run diverged.

        Raises Pruned, Failed, or Superseded; what was running has been stopped by then, and resumes.
        """
        tune = self.search.tune
        params = suggest(self.trial, tune.space)
        for index, seed in enumerate(self.search.seeds):
            job = self._job(params, seed)
            self.runs.append(job.files.name)
            self._train(job, index)
            if job.files.result() == "diverged":
                return math.inf if tune.direction == "minimize" else -math.inf
            self.values.append(self._objective(job.files))
        return statistics.fmean(self.values)

    def _job(self, params: dict[str, Value], seed: int) -> TrialJob:
        """Return the run at one seed. Raises Failed for settings that do not go together."""
        try:
            config = self.search.config(params, seed)
        except UserError as error:
            raise Failed(str(error)) from None
        config = config.model_copy(update={"corpus_fingerprint": open_data(config.data).fingerprint})
        directory = runs_dir() / config.run_name
        return TrialJob(config, directory, self.search.study.recipe, self.search.overrides(params))

    def _train(self, job: TrialJob, index: int) -> None:
        """Return when the run has its result; an error of its own is tried again as often as the trial may."""
        sign = 1 if self.search.tune.direction == "minimize" else -1  # Optuna has one direction for both
        curve = _Curve(self.trial, job, index * REPORTS, sign)

        def watch() -> None:
            self.check_lease()
            if curve.report() and not job.files.is_done() and self.trial.should_prune():
                raise Pruned

        job.takeover = self.lease.number > 1
        while not job.done:
            self.check_lease()
            if _is_at_work(job) and not job.takeover:  # a sweep has this run too, or a trial with the same settings
                time.sleep(LOOK_S)
                continue
            job.state = "waiting"
            failed = run_all([job], Slots(1, self.threads), self.console, watch)
            job.takeover = False
            if failed:
                self._count_error(job)
        curve.report()

    def _count_error(self, job: Job) -> None:
        self.check_lease()
        if job.done or _is_at_work(job):  # another process was faster to begin it
            return
        messages = [*self.trial.user_attrs.get(ERRORS, []), job.last_message()]
        self.trial.set_user_attr(ERRORS, messages)
        if len(messages) > self.max_retries:
            raise Failed(messages[-1])

    def _objective(self, run: RunDirectory) -> float:
        name = self.search.tune.objective
        value = run.read_summary().get(name)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Failed(f"{name} of {run.name} is {value}")
        return float(value)

    def check_lease(self) -> None:
        """Raise Superseded where another worker has followed."""
        if not self.lease.is_current():
            raise Superseded


class _Curve:
    """Tells the pruner the training loss of one run: its mean over each of REPORTS parts."""

    def __init__(self, trial: optuna.Trial, job: Job, offset: int, sign: int) -> None:
        self.trial = trial
        self.sign = sign
        self.files = job.files
        self.offset = offset
        steps = job.config.train.steps
        self.ends = [math.ceil(steps * part / REPORTS) for part in range(REPORTS + 1)]
        known = trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        self.parts = [part for part in range(1, REPORTS + 1) if offset + part not in known]
        """What is still to be told."""

    def report(self) -> bool:
        """Tell of the parts that are over; return whether there were any."""
        row = self.files.last_row() if self.parts else None
        if row is None or row["step"] < self.ends[self.parts[0]]:
            return False
        losses: dict[int, Any] = {row["step"]: row["loss"] for row in self.files.metrics_rows()}
        while self.parts and row["step"] >= self.ends[self.parts[0]]:
            part = self.parts.pop(0)
            steps = range(self.ends[part - 1] + 1, self.ends[part] + 1)
            values = [losses[step] for step in steps if losses.get(step) is not None]
            if values:
                self.trial.report(self.sign * statistics.fmean(values), self.offset + part)
        return True


def _is_at_work(job: Job) -> bool:
    attempt = job.attempt
    return not job.done and attempt is not None and attempt.is_alive()
