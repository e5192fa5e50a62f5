"""The searches of a study: for the best settings of each variant, as a study of Optuna in a storage that all share.

What is searched, where it is kept, and how its trials stand. Bringing trials to their end is in `tune.py`.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState
from pydantic import ValidationError

from gatebench.config import RunConfig
from gatebench.errors import UserError
from gatebench.paths import project_root
from gatebench.recipes import Settings, make_run
from gatebench.sweep.space import TuneConfig, Value, as_declared, bounds, grid_values
from gatebench.sweep.storage import open_storage
from gatebench.sweep.study import Combination, Study
from gatebench.sweep.submissions import study_folder
from gatebench.validation import one_line

REPORTS = 20
"""How often a run tells the pruner its training loss: this many equal parts of the run."""
ERRORS = "errors"
"""User attribute of a trial: the message of every error in training, whoever worked on it."""
_DEFINITION = "definition"

Status = Literal["waiting", "running", "complete", "diverged", "pruned", "failed"]
_STATUS: dict[TrialState, Status] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class Search:
    """What one Optuna study looks for."""

    study: Study
    variant: str
    combination: Combination

    @property
    def tune(self) -> TuneConfig:
        """The study's section."""
        assert self.study.tune is not None
        return self.study.tune

    @property
    def label(self) -> str:
        """Variant, and the study's setting where it has several."""
        return " ".join(filter(None, (self.variant, self.combination.label)))

    @property
    def name(self) -> str:
        """Name of the Optuna study."""
        return "/".join(filter(None, (self.study.name, self.combination.label, self.variant)))

    @property
    def seeds(self) -> list[int]:
        """Seeds of every trial."""
        return self.study.seeds if self.tune.seeds is None else self.tune.seeds

    def config(self, params: Mapping[str, Value], seed: int) -> RunConfig:
        """Return a trial's run. Raises UserError for settings that do not go together."""
        return make_run(self.study.recipe, self.variant, seed, self.combination.settings + Settings.of(params))

    def check(self) -> None:
        """Raise UserError for a key of the space that is unknown, or a value that is not legal there."""
        for key, domain in self.tune.space.items():
            for value in bounds(domain):
                try:
                    self.config({key: value}, self.seeds[0])
                except UserError as error:
                    word = Settings.of({key: value})
                    raise UserError(f"study '{self.study.name}': tune.space: {word}: {error}") from None

    def definition(self) -> dict[str, Any]:
        """Return what must not change while the search goes on; the number of trials and the pruner may."""
        config = self.config({}, self.seeds[0])
        tune = self.tune.model_dump(mode="json", exclude={"trials", "pruner"})
        return {**tune, "seeds": self.seeds, "settings besides": config.fingerprint}

    def open(self, storage: BaseStorage) -> optuna.Study:
        """Return the Optuna study, made where it is not there. Raises UserError where it has another definition."""
        opened = optuna.create_study(
            storage=storage,
            study_name=self.name,
            direction=self.tune.direction,
            pruner=pruner(self.tune, len(self.seeds)),
            load_if_exists=True,
        )
        ours, theirs = self.definition(), opened.user_attrs.get(_DEFINITION)
        if theirs is not None and (changed := [key for key in ours if ours[key] != theirs.get(key)]):
            raise UserError(
                f"study '{self.study.name}': the search for {self.label} was begun with another {changed[0]} "
                f"({theirs.get(changed[0])}); legal: as it was, or another --storage"
            )
        return opened

    def plan(self, storage: BaseStorage) -> None:
        """Put all trials into the storage, to wait; their settings are chosen when they start.

        Two processes at once may put in more than that; no trial beyond the study's number is ever started.
        """
        opened = self.open(storage)
        opened.set_user_attr(_DEFINITION, self.definition())
        for _ in range(self.tune.trials - len(opened.get_trials(deepcopy=False))):
            opened.add_trial(optuna.trial.create_trial(state=TrialState.WAITING))


def with_trials(study: Study, n_trials: int | None) -> Study:
    """Return the study with another number of trials, unless that is None. Raises UserError."""
    if study.tune is None:
        raise UserError(f"study '{study.name}': has no section tune; legal: one with space and trials")
    if n_trials is None:
        return study
    try:
        tune = TuneConfig.model_validate({**study.tune.model_dump(), "trials": n_trials})
    except ValidationError as error:
        raise UserError(f"--trials {n_trials}: {one_line(error, TuneConfig)}") from None
    return study.model_copy(update={"tune": tune})


def searches(study: Study) -> list[Search]:
    """Return a search for each variant and combination of the study, checked. Raises UserError."""
    names = study.variant_names()
    made = [Search(study, name, combination) for combination in study.combinations() for name in names]
    for search in made:
        search.check()
    return made


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


@dataclass
class Tuning:
    """The searches of a study, and where their trials stand."""

    study: Study
    storage_name: str
    """Path of a journal, or URL of a PostgreSQL."""
    searches: list[Search]
    storage: BaseStorage
    studies: list[optuna.Study]
    """One a search."""

    def trials(self) -> list[list[FrozenTrial]]:
        """Return the trials of each search, those that count."""
        pairs = zip(self.searches, self.studies, strict=True)
        return [study.get_trials(deepcopy=False)[: search.tune.trials] for search, study in pairs]

    def is_planned(self) -> bool:
        """Return whether the storage has all trials."""
        pairs = zip(self.trials(), self.searches, strict=True)
        return all(len(trials) == search.tune.trials for trials, search in pairs)

    def plan(self) -> None:
        """Put all trials into the storage."""
        for search in self.searches:
            search.plan(self.storage)

    def open_trials(self) -> list[tuple[int, FrozenTrial]]:
        """Return (search, trial) for every trial that has not ended, the lowest numbers first."""
        trials = [(i, trial) for i, trials in enumerate(self.trials()) for trial in trials]
        return sorted((item for item in trials if not item[1].state.is_finished()), key=lambda item: item[1].number)

    def outcomes(self) -> list[SearchOutcome]:
        """Return how every trial of every search stands. Reads the storage alone."""
        return [
            SearchOutcome(search, [_outcome(search, trial) for trial in trials])
            for search, trials in zip(self.searches, self.trials(), strict=True)
        ]


def open_tuning(study: Study, storage: str) -> Tuning:
    """Open all searches of a study. Raises UserError."""
    opened = searches(study)
    backend = open_storage(storage)
    return Tuning(study, storage, opened, backend, [search.open(backend) for search in opened])


def status_of(state: TrialState, value: float | None) -> Status:
    """Return a trial's state in our words: diverged is what Optuna knows as complete, with the worst value there is."""
    if state == TrialState.COMPLETE and value is not None and math.isinf(value):
        return "diverged"
    return _STATUS[state]


def _outcome(search: Search, trial: FrozenTrial) -> TrialOutcome:
    value = trial.values[0] if trial.values else None
    status = status_of(trial.state, value)
    ended, begun, known = trial.datetime_complete, trial.datetime_start, trial.user_attrs
    return TrialOutcome(
        variant=search.variant,
        setting=search.combination.label,
        number=trial.number,
        status=status,
        value=value if status == "complete" else None,
        params={key: as_declared(search.tune.space[key], chosen) for key, chosen in trial.params.items()},
        values=known.get("values", []),
        runs=known.get("runs", []),
        n_errors=len(known.get(ERRORS, [])),
        reason=known.get("reason"),
        seconds=(ended - begun).total_seconds() if ended and begun else None,
    )


def sampler(tune: TuneConfig, number: int) -> optuna.samplers.BaseSampler:
    """Return what chooses the settings of trial `number`.

    Seeded by that number, so that every variant is first tried at the same points, whichever worker takes the trial.
    """
    if tune.sampler == "grid":
        return optuna.samplers.GridSampler({key: list(grid_values(d)) for key, d in tune.space.items()}, seed=0)
    if tune.sampler == "random":
        return optuna.samplers.RandomSampler(seed=number)
    return optuna.samplers.TPESampler(seed=number, constant_liar=True)


def pruner(tune: TuneConfig, n_seeds: int) -> optuna.pruners.BasePruner:
    """Return what stops trials early; a step of it is one of REPORTS parts of a run."""
    if tune.pruner == "median":
        return optuna.pruners.MedianPruner(n_warmup_steps=REPORTS // 4)
    if tune.pruner == "hyperband":
        return optuna.pruners.HyperbandPruner(max_resource=REPORTS * n_seeds)
    return optuna.pruners.NopPruner()


def default_storage(study: Study) -> str:
    """Return the journal of a study."""
    return str(tune_folder(study) / "journal.log")


def tune_folder(study: Study) -> Path:
    """Return the folder of what tuning a study found."""
    return project_root() / "results" / study.name / "tune"


def work_folder(study: Study, storage: str) -> Path:
    """Return the folder of the logs of a cluster's workers."""
    return study_folder(study.name) / f"tune-{zlib.crc32(storage.encode()):08x}"
