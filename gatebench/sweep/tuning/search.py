"""One search: the best settings of one variant, as a study of Optuna in a storage that all workers share."""

from __future__ import annotations

import importlib.util
import logging
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from pydantic import ValidationError

from gatebench.config import RunConfig
from gatebench.errors import UserError
from gatebench.paths import project_root
from gatebench.recipes import make_run
from gatebench.sweep.study import Combination, Study, setting
from gatebench.sweep.submissions import study_folder
from gatebench.sweep.tuning.space import TuneConfig, Value, bounds, grid_values
from gatebench.validation import one_line

STORAGE = "GATEBENCH_STORAGE"
"""Environment variable with the storage: a password in it is on no command line."""
REPORTS = 20
"""How often a run tells the pruner its training loss: this many equal parts of the run."""
_DEFINITION = "definition"


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

    def overrides(self, params: Mapping[str, Value]) -> tuple[str, ...]:
        """Return all settings of a run on top of the recipe."""
        return (*self.combination.overrides, *(setting(key, value) for key, value in params.items()))

    def config(self, params: Mapping[str, Value], seed: int) -> RunConfig:
        """Return a trial's run. Raises UserError for settings that do not go together."""
        return make_run(self.study.recipe, self.variant, seed, self.overrides(params))

    def check(self) -> None:
        """Raise UserError for a key of the space that is unknown, or a value that is not legal there."""
        for key, domain in self.tune.space.items():
            for value in bounds(domain):
                try:
                    self.config({key: value}, self.seeds[0])
                except UserError as error:
                    raise UserError(f"study '{self.study.name}': tune.space: {setting(key, value)}: {error}") from None

    def definition(self) -> dict[str, Any]:
        """Return what must not change while the search goes on; the number of trials and the pruner may."""
        config = self.config({}, self.seeds[0])
        tune = self.tune.model_dump(mode="json", exclude={"trials", "pruner"})
        return {**tune, "seeds": self.seeds, "settings besides": config.fingerprint}

    def open(self, storage: BaseStorage) -> optuna.Study:
        """Return the Optuna study, made where it is not there. Raises UserError where it has another definition."""
        found = optuna.create_study(
            storage=storage,
            study_name=self.name,
            direction=self.tune.direction,
            pruner=pruner(self.tune, len(self.seeds)),
            load_if_exists=True,
        )
        ours, theirs = self.definition(), found.user_attrs.get(_DEFINITION)
        if theirs is not None and (changed := [key for key in ours if ours[key] != theirs.get(key)]):
            raise UserError(
                f"study '{self.study.name}': the search for {self.label} was begun with another {changed[0]} "
                f"({theirs.get(changed[0])}); legal: as it was, or another --storage"
            )
        return found

    def plan(self, storage: BaseStorage) -> None:
        """Put all trials into the storage, to wait; their settings are chosen when they start.

        Two processes at once may put in more than that; no trial beyond the study's number is ever started.
        """
        found = self.open(storage)
        found.set_user_attr(_DEFINITION, self.definition())
        for _ in range(self.tune.trials - len(found.get_trials(deepcopy=False))):
            found.add_trial(optuna.trial.create_trial(state=TrialState.WAITING))


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
    found = [Search(study, name, combination) for combination in study.combinations() for name in study.variant_names()]
    for search in found:
        search.check()
    return found


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
    """Return the folder of the workers' leases and logs."""
    return study_folder(study.name) / f"tune-{zlib.crc32(storage.encode()):08x}"


def open_storage(storage: str) -> BaseStorage:
    """Open a journal by its path, or a PostgreSQL by its URL. Raises UserError for anything else."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    if "://" not in storage:
        path = Path(storage)
        path.parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(str(path)))
    from sqlalchemy import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        url = make_url(storage)
    except SQLAlchemyError:
        raise UserError("--storage: not a URL; legal: the path of a journal, or postgresql://user@host/base") from None
    if url.get_backend_name() != "postgresql":
        raise UserError(f"--storage {url}: legal: the path of a journal, or postgresql://user@host/base")
    if importlib.util.find_spec("psycopg") is None:
        raise UserError(f"--storage {url}: package psycopg is missing; pip install 'gatebench[postgres]'")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        return RDBStorage(
            url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False),
            engine_kwargs={"pool_pre_ping": True},
        )
    except SQLAlchemyError as error:
        raise UserError(f"--storage {url}: {str(error.__cause__ or error).splitlines()[0]}") from None
