"""The `tune:` section of a study: which settings are searched, how, and for what. Imports no torch and no optuna."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from gatebench.validation import Section, one_line

if TYPE_CHECKING:
    import optuna

Value = bool | int | float | str | None
"""What a searched setting can be."""


class Range(Section):
    """Numbers from `low` to `high`, both included; whole ones where both (and the step) are."""

    low: int | float
    high: int | float
    log: bool = False
    """Equally likely in every decade."""
    step: int | float | None = Field(None, gt=0)
    """Only low, low + step, ...; a grid needs it."""

    @model_validator(mode="after")
    def _legal(self) -> Range:
        if self.low >= self.high:
            raise ValueError(f"low={self.low}: must be below high={self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low={self.low}: must be above 0 with log: true")
        if self.log and self.step is not None:
            raise ValueError(f"step={self.step}: does not go with log: true; legal: one of them, or a list of values")
        return self

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers."""
        return all(isinstance(bound, int) for bound in (self.low, self.high, self.step or 1))

    def points(self) -> list[int | float]:
        """Return low, low + step, ... up to high; empty without a step."""
        if self.step is None:
            return []
        n = (Decimal(str(self.high)) - Decimal(str(self.low))) // Decimal(str(self.step))
        return [self._point(i) for i in range(int(n) + 1)]

    def nearest(self, value: float) -> int | float:
        """Return the value among low, low + step, ... that a sampler, which counts in binary, means by `value`."""
        return value if self.step is None else self._point(round((value - self.low) / self.step))

    def _point(self, i: int) -> int | float:
        """Return low + i step, counted in decimals: 0.1 + 2 * 0.1 is 0.3, and the run that of `--set` with 0.3."""
        assert self.step is not None
        value = Decimal(str(self.low)) + i * Decimal(str(self.step))
        return int(value) if isinstance(self.low, int) and isinstance(self.step, int) else float(value)


Domain = Range | list[Value]


class TuneConfig(Section):
    """What `gatebench tune` searches for each variant of a study."""

    space: dict[str, Domain]
    """By config key, as in `--set`: a range `{low, high, log, step}`, or a list of values to choose from."""
    trials: int = Field(0, ge=0)
    """Trials for each variant; a grid left at 0 is tried whole."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """tpe learns from the trials so far; random does not; grid tries every combination once."""
    pruner: Literal["none", "median", "hyperband"] = "none"
    """Stops trials whose training loss lags behind that of the others (docs/tuning.md)."""
    seeds: list[int] | None = None
    """A trial's value is the mean over these; a list, or a number N for the seeds 0 .. N-1. null means the study's."""
    objective: str = "avg_ppl"
    """A column of the runs' summaries (docs/results.md)."""
    direction: Literal["minimize", "maximize"] = "minimize"

    @field_validator("space", mode="before")
    @classmethod
    def _read_space(cls, space: Any) -> dict[str, Domain]:
        if not isinstance(space, dict) or not space:
            raise ValueError("tune.space: must map config keys to {low, high} or to lists, one or more")
        return {str(key): _domain(str(key), value) for key, value in space.items()}

    @field_validator("seeds", mode="before")
    @classmethod
    def _count_of_seeds(cls, seeds: Any) -> Any:
        """Read `seeds: 2` as [0, 1]."""
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            seeds = list(range(seeds))
        if isinstance(seeds, list) and (not seeds or len(set(map(str, seeds))) < len(seeds) or min(seeds) < 0):
            raise ValueError("tune.seeds: must be a number of 1 or more, or a list of different seeds from 0")
        return seeds

    @model_validator(mode="after")
    def _enough_trials(self) -> TuneConfig:
        if self.sampler != "grid":
            if not self.trials:
                raise ValueError(f"tune.trials: is missing; legal with sampler: {self.sampler}: 1 or more")
            return self
        for key, domain in self.space.items():
            if not grid_values(domain):
                raise ValueError(f"tune.space: '{key}' has no step; legal with sampler: grid: a step, or a list")
        size = math.prod(len(grid_values(domain)) for domain in self.space.values())
        self.trials = self.trials or size
        if self.trials > size:
            raise ValueError(f"tune.trials={self.trials}: the grid has {size} points; legal: 1 to {size}")
        return self


def _domain(key: str, value: Any) -> Domain:
    if isinstance(value, dict):
        try:
            return Range.model_validate(value)
        except ValidationError as error:
            raise ValueError(f"tune.space: '{key}': {one_line(error, Range)}") from None
    if not isinstance(value, list) or not value:
        raise ValueError(f"tune.space: '{key}': must be {{low, high}} or a list of values, not {value!r}")
    if wrong := [choice for choice in value if not isinstance(choice, Value)]:
        raise ValueError(
            f"tune.space: '{key}': {wrong[0]!r} cannot be chosen; legal: numbers, words, true, false, null"
        )
    if len(set(map(repr, value))) < len(value):
        raise ValueError(f"tune.space: '{key}': a value stands twice; legal: each once")
    return list(value)


def grid_values(domain: Domain) -> Sequence[Value]:
    """Return all values of a domain, empty where it has no end of them."""
    return domain.points() if isinstance(domain, Range) else domain


def bounds(domain: Domain) -> Sequence[Value]:
    """Return the values that are legal only if all are: both ends, or each choice."""
    return [domain.low, domain.high] if isinstance(domain, Range) else domain


def as_declared(domain: Domain, value: Value) -> Value:
    """Return a sampled value as the run has it: of a stepped range, the decimal number."""
    return domain.nearest(value) if isinstance(domain, Range) and isinstance(value, (int, float)) else value


def suggest(trial: optuna.Trial, space: dict[str, Domain]) -> dict[str, Value]:
    """Return the trial's settings; those that it already has stay."""
    return {key: as_declared(domain, _suggest(trial, key, domain)) for key, domain in space.items()}


def _suggest(trial: optuna.Trial, key: str, domain: Domain) -> Value:
    if not isinstance(domain, Range):
        return trial.suggest_categorical(key, domain)
    if domain.whole:
        step = 1 if domain.step is None else int(domain.step)
        return trial.suggest_int(key, int(domain.low), int(domain.high), log=domain.log, step=step)
    return trial.suggest_float(key, domain.low, domain.high, log=domain.log, step=domain.step)
