"""Spikes of loss and gradient norm, by the two definitions in use. docs/stability.md compares them.

Both look at each value beside the ``window`` values before it, itself left out, once there are so many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from gatebench.report.read.results import load_curves, tidy

CURVES = ("loss", "grad_norm")

SMALLEST_SIGMA = 1e-10
"""Of a window: below it rounding made the spread, and nothing is a spike (OLMo-core)."""
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class SpikeRule:
    """When a value is a spike."""

    name: str
    window: int
    n_sigma: float
    """Population standard deviations of the window, from its mean."""
    two_sided: bool
    """Values far below the mean count, too, and one at exactly ``n_sigma``."""

    def column(self, curve: str) -> str:
        """The column of a frame of runs that holds the steps of the spikes in ``curve``, joined by spaces."""
        return f"spikes_{self.name}/{curve}"


OLMO2 = SpikeRule("7s_1000", window=1000, n_sigma=7.0, two_sided=True)
"""OLMo 2 (arXiv 2501.00656), section 3.2: at least 7 sigma from the rolling mean of the last 1,000 values."""
OLMO_CORE = SpikeRule("6s_128", window=128, n_sigma=6.0, two_sided=False)
"""OLMo-core's ``stability_monitor.py``: more than 6 sigma above the mean of the last 128 values."""
RULES = (OLMO2, OLMO_CORE)


def spike_indices(values: npt.ArrayLike, rule: SpikeRule) -> npt.NDArray[np.int64]:
    """Indices of the spikes in a curve with a value a step. Values that are not finite are passed over."""
    curve = np.asarray(values, dtype=np.float64)
    places = np.flatnonzero(np.isfinite(curve))
    curve = curve[places]
    if len(curve) <= rule.window:
        return np.empty(0, dtype=np.int64)
    before = np.lib.stride_tricks.sliding_window_view(curve, rule.window)[:-1]  # of the values from `window` on
    found = []
    for start in range(0, len(before), ROWS_AT_ONCE):
        windows = before[start : start + ROWS_AT_ONCE]
        sigma = windows.std(axis=1)
        distance = curve[rule.window :][start : start + ROWS_AT_ONCE] - windows.mean(axis=1)
        limit = rule.n_sigma * sigma
        far = np.abs(distance) >= limit if rule.two_sided else distance > limit
        found.append(np.flatnonzero(far & (sigma >= SMALLEST_SIGMA)) + start)
    return places[np.concatenate(found) + rule.window]


def with_spikes(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs (``results.load``) with the steps of their spikes, a column a rule and curve.

    A run whose directory is not here keeps what its row says.
    """
    columns = [rule.column(curve) for rule in RULES for curve in CURVES]
    found = frame.assign(**{name: frame.get(name, "") for name in columns})
    here = {directory: _steps_of(directory) for directory in set(frame["run_dir"]) - {""}}
    rows = [
        here[directory] if directory else [" ".join(map(str, steps(cell))) for cell in cells]
        for directory, cells in zip(found["run_dir"], found[columns].to_numpy(), strict=True)
    ]
    return tidy(found.assign(**dict(zip(columns, np.array(rows, dtype=object).T, strict=True)))) if rows else found


def steps(text: object) -> list[int]:
    """The steps in a cell of :func:`with_spikes`, also of one that a CSV gave back as a number or as NaN."""
    return [int(float(word)) for word in str(text).split() if word != "nan"]


def score(frame: pd.DataFrame, rule: SpikeRule, curves: Iterable[str] = CURVES) -> float:
    """Share of the training steps of all runs in ``frame`` with a spike in any of ``curves``.

    NaN where every run is too short for the rule's window.
    """
    columns = [rule.column(curve) for curve in curves]
    long_enough = frame[frame["steps"] > rule.window]
    n_spikes = sum(len({step for cell in row for step in steps(cell)}) for row in long_enough[columns].to_numpy())
    return n_spikes / int(long_enough["steps"].sum()) if len(long_enough) else math.nan


def _steps_of(directory: str | Path) -> list[str]:
    run = load_curves([directory])
    at = run["step"].to_numpy()
    return [" ".join(map(str, at[spike_indices(run[curve], rule)])) for rule in RULES for curve in CURVES]
