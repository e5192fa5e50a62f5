"""What tuning a study has found so far: a row a trial, and the best of each search. Reads the storage alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial

from gatebench.sweep.tuning.search import Search
from gatebench.sweep.tuning.trial import ERRORS
from gatebench.sweep.tuning.worker import Status, Tuning, status_of


@dataclass(frozen=True)
class TrialOutcome:
    """How one trial stands."""

    variant: str
    setting: str
    number: int
    status: Status
    value: float | None
    """Mean of the objective over the seeds; None unless complete."""
    params: dict[str, Any]
    values: list[float]
    """Of the objective, one a seed."""
    runs: list[str]
    n_errors: int
    """How often training ended by an error of its own."""
    reason: str | None
    """Of one that failed."""
    seconds: float | None
    """From its start to its end, pauses and takeovers included."""

    @property
    def settings(self) -> list[str]:
        """Its settings for a reader, `key=value` each."""
        return [
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={json.dumps(value)}"
            for key, value in self.params.items()
        ]


@dataclass(frozen=True)
class SearchOutcome:
    """The trials of one search."""

    search: Search
    trials: list[TrialOutcome]

    @property
    def counts(self) -> Counter[Status]:
        """Trials by status."""
        return Counter(trial.status for trial in self.trials)

    @property
    def best(self) -> TrialOutcome | None:
        """Return the complete trial with the best value; of equal ones the first. A diverged trial never is."""
        complete = [trial for trial in self.trials if trial.value is not None]
        sign = 1 if self.search.tune.direction == "minimize" else -1
        return min(complete, key=lambda trial: sign * (trial.value or 0.0), default=None)


def outcomes(tuning: Tuning) -> list[SearchOutcome]:
    """Return how every trial of every search stands."""
    return [
        SearchOutcome(search, [_outcome(search, trial) for trial in trials])
        for search, trials in zip(tuning.searches, tuning.trials(), strict=True)
    ]


def _outcome(search: Search, trial: FrozenTrial) -> TrialOutcome:
    values: Sequence[float] | None = trial.values
    status = status_of(trial.state, values[0] if values else None)
    ended, begun, known = trial.datetime_complete, trial.datetime_start, trial.user_attrs
    return TrialOutcome(
        variant=search.variant,
        setting=search.combination.label,
        number=trial.number,
        status=status,
        value=values[0] if values and status == "complete" else None,
        params=trial.params,
        values=known.get("values", []),
        runs=known.get("runs", []),
        n_errors=len(known.get(ERRORS, [])),
        reason=known.get("reason"),
        seconds=(ended - begun).total_seconds() if ended and begun else None,
    )
