"""One worker: takes trials that nobody works on until there are none.

Why no trial is lost, and none counted twice, whoever is killed or paused: the trials are put into the storage before
any work begins, with numbers 0 .. N-1, and the storage lets each go from open to ended once. An open trial without a
live lease is anyone's, under the same number and with the settings that it has. A worker that lost its lease drops its
result; were it to tell it all the same, the storage would keep the first result and refuse the second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console

from gatebench.sweep.study import Study
from gatebench.sweep.tuning.lease import Lease, claim
from gatebench.sweep.tuning.search import Search, open_storage, sampler, searches, work_folder
from gatebench.sweep.tuning.trial import Failed, Pruned, Superseded, TrialWork

Status = Literal["waiting", "running", "complete", "diverged", "pruned", "failed"]
_STATUS: dict[TrialState, Status] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class Options:
    """How a study is tuned."""

    storage: str
    """Path of a journal, or URL of a PostgreSQL."""
    max_retries: int
    """How often a trial's training may end by an error of its own, and be tried again."""
    stale_s: float
    """Seconds without a sign of life after which a trial is another worker's."""


@dataclass
class Tuning:
    """The searches of a study, and where their trials stand."""

    study: Study
    options: Options
    searches: list[Search]
    storage: BaseStorage
    studies: list[optuna.Study]
    """One a search."""

    @property
    def folder(self) -> Path:
        """Leases and logs of the workers."""
        return work_folder(self.study, self.options.storage)

    def trials(self) -> list[list[FrozenTrial]]:
        """Return the trials of each search, those that count."""
        pairs = zip(self.searches, self.studies, strict=True)
        return [study.get_trials(deepcopy=False)[: search.tune.trials] for search, study in pairs]

    def is_planned(self) -> bool:
        """Return whether the storage has all trials."""
        return all(
            len(trials) == search.tune.trials for trials, search in zip(self.trials(), self.searches, strict=True)
        )

    def plan(self) -> None:
        """Put all trials into the storage."""
        for search in self.searches:
            search.plan(self.storage)

    def open_trials(self) -> list[tuple[int, FrozenTrial]]:
        """Return (search, trial) for every trial that has not ended, the lowest numbers first."""
        found = [(i, trial) for i, trials in enumerate(self.trials()) for trial in trials]
        return sorted((item for item in found if not item[1].state.is_finished()), key=lambda item: item[1].number)

    def lease_folder(self, trial: FrozenTrial) -> Path:
        """Return the folder of a trial's leases."""
        return self.folder / "leases" / str(trial._trial_id)


def open_tuning(study: Study, options: Options) -> Tuning:
    """Open all searches of a study. Raises UserError."""
    found = searches(study)
    storage = open_storage(options.storage)
    return Tuning(study, options, found, storage, [search.open(storage) for search in found])


def work(tuning: Tuning, threads: int, console: Console) -> None:
    """Take trials, and bring them to their end, until there is none that nobody works on."""
    while (taken := _take(tuning)) is not None:
        index, trial, lease = taken
        with lease.held():
            try:
                _bring_to_end(tuning, index, trial, lease, threads, console)
            except (Superseded, UpdateFinishedTrialError):
                _say(console, f"{tuning.searches[index].label} trial {trial.number}: another worker has it now")


def _take(tuning: Tuning) -> tuple[int, FrozenTrial, Lease] | None:
    for index, trial in tuning.open_trials():
        lease = claim(tuning.lease_folder(trial), tuning.options.stale_s)
        if lease is not None:
            return index, trial, lease
    return None


def _bring_to_end(tuning: Tuning, index: int, trial: FrozenTrial, lease: Lease, threads: int, console: Console) -> None:
    search, study, storage = tuning.searches[index], tuning.studies[index], tuning.storage
    found = storage.get_trial(trial._trial_id).state
    if found.is_finished():  # between the look at the storage and the lease
        return
    if found == TrialState.WAITING:
        storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
    study.sampler = sampler(search.tune, trial.number)
    live = optuna.Trial(study, trial._trial_id)
    doing = TrialWork(search, live, lease, threads, tuning.options.max_retries, console)
    _say(console, f"{search.label} trial {trial.number}: begins")
    value, reason = None, None
    try:
        value = doing.value()
        state = TrialState.COMPLETE
    except Pruned:
        state = TrialState.PRUNED
    except Failed as error:
        state, reason = TrialState.FAIL, str(error)
    doing.check_lease()
    status = status_of(state, value)
    for key, content in {"status": status, "reason": reason, "values": doing.values, "runs": doing.runs}.items():
        live.set_user_attr(key, content)
    storage.set_trial_state_values(trial._trial_id, state, None if value is None else [value])
    _say(console, f"{search.label} trial {trial.number}: {status}")


def status_of(state: TrialState, value: float | None) -> Status:
    """Return a trial's state in our words: diverged is what Optuna knows as complete, with the worst value there is."""
    if state == TrialState.COMPLETE and value is not None and math.isinf(value):
        return "diverged"
    return _STATUS[state]


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
