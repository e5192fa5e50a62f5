"""What a study would run, what of it is done, and what it costs: read from files alone. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gatebench.config import DataConfig, RunConfig
from gatebench.data.reading import open_data
from gatebench.errors import UserError
from gatebench.model.accounting import account
from gatebench.paths import runs_dir
from gatebench.sweep.study import Combination, Study
from gatebench.training.rundir import RunDirectory

Status = Literal["done", "diverged", "begun", "missing"]
"""begun: the directory holds a run that is going on or was stopped; the files do not tell which."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    config: RunConfig
    """Tied to its corpus, where that is there."""
    recipe: str
    """As the study names it: a name or a path."""
    combination: Combination
    directory: Path | None
    """None where the corpus, which is part of a run's identity, is not there yet."""
    status: Status

    @property
    def finished(self) -> bool:
        """Whether the run has its result. Diverging is one."""
        return self.status in ("done", "diverged")

    @property
    def tokens(self) -> int:
        """Training tokens."""
        return self.config.train.steps * self.config.train.batch_size * self.config.data.seq_len


@dataclass(frozen=True)
class Cost:
    """What one run costs, by arithmetic."""

    n_params: int
    tokens: int
    flops: int
    """Of the training, in all."""


def plan(study: Study) -> list[PlannedRun]:
    """Return the runs of `study` in the order in which they would start. Raises UserError for what is not legal."""
    fingerprints: dict[str, str | None] = {}
    found = []
    for config, cell in zip(study.runs(), study.cells(), strict=True):
        key = config.data.model_dump_json()
        if key not in fingerprints:
            fingerprints[key] = _fingerprint(config.data)
        fingerprint = fingerprints[key]
        directory = None
        if fingerprint is not None:
            config = config.model_copy(update={"corpus_fingerprint": fingerprint})
            directory = runs_dir() / config.run_name
        found.append(PlannedRun(config, study.recipe, cell.combination, directory, _status(directory)))
    return found


def cost(run: PlannedRun) -> Cost:
    """Return what one run costs. Raises UserError where the variant does not fit the recipe."""
    costs = account(run.config)
    return Cost(costs.n_params, run.tokens, costs.flops_per_token * run.tokens)


def train_seconds(runs: Iterable[PlannedRun]) -> list[float]:
    """Return how long each finished run trained."""
    finished = [run.directory for run in runs if run.finished and run.directory is not None]
    return [float(_summary(directory).get("train_wall_s") or 0.0) for directory in finished]


def _fingerprint(data: DataConfig) -> str | None:
    try:
        return open_data(data).fingerprint
    except UserError:  # not built yet; launching builds it, or says what is wrong with it
        return None


def _status(directory: Path | None) -> Status:
    if directory is None:
        return "missing"
    files = RunDirectory(directory)
    if not files.is_done():
        return "begun" if files.config.is_file() else "missing"
    return "diverged" if _summary(directory).get("status") == "diverged" else "done"


def _summary(directory: Path) -> dict[str, Any]:
    """Return a run's summary; nothing of one that cannot be read, which loading it for a table will say."""
    try:
        return RunDirectory(directory).read_summary()
    except json.JSONDecodeError:
        return {}
