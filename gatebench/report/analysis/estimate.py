"""One number of ours: a mean over seeds, and how far it could be off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from gatebench.report.analysis.stats import ALPHA, mean_interval
from gatebench.report.read import benchmark_results


@dataclass(frozen=True)
class Estimate:
    """One number of ours: its mean over the seeds that have it, and how far the mean could be off."""

    by_seed: Mapping[int, float]
    """Finite values only: a diverged run has none."""
    alpha: float = ALPHA
    at_chance: bool = False
    """Whether it is a benchmark's score that guessing could give."""

    @classmethod
    def of(cls, by_seed: pd.Series) -> Estimate:
        """Of finite numbers that a series has by seed."""
        return cls(dict(zip(map(int, by_seed.index), map(float, by_seed), strict=True)))

    @property
    def n(self) -> int:
        """Number of seeds."""
        return len(self.by_seed)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The mean over the seeds and half its 1 - alpha t interval; NaN without any, and below two."""
        return mean_interval(list(self.by_seed.values()), self.alpha)

    @property
    def mean(self) -> float:
        """Over the seeds; NaN without any."""
        return self.interval[0]

    @property
    def half_width(self) -> float:
        """Half the 1 - alpha t interval of the mean; NaN below two seeds."""
        return self.interval[1]


def estimate(runs: pd.DataFrame, column: str) -> Estimate:
    """One variant's ``column`` by seed, without the runs that diverged; empty where the frame lacks the column."""
    if column not in runs:
        return Estimate({})
    done = runs[runs["status"] == "done"].sort_values("seed")
    values = zip(done["seed"], done[column].astype("float64"), strict=True)
    by_seed = {int(seed): float(value) for seed, value in values if np.isfinite(value)}
    task = column.removeprefix(benchmark_results.SCORE)
    return Estimate(by_seed, at_chance=task != column and benchmark_results.runs_at_chance(done, task))
