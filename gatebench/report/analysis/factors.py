"""What position, granularity, sharing, mode and activation of a gate each do to perplexity: an analysis of variance.

The paper's section 3 reasons about these by eye, one row against another. Here all runs of a factorial study enter one
linear model of ln(Avg PPL), seeds as blocks, fitted by least squares (statsmodels).

G5 has no headwise and no shared form, so that the design is unbalanced. Its runs enter with granularity and sharing
coded 0: they say nothing about these two factors, and interactions of the two with the position are over G1 to G4. All
other factors are coded by their sums, so that an effect is an average over the levels of the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gatebench.errors import UserError
from gatebench.gatespec import GateSpec, factorial
from gatebench.report.analysis.comparison import run_facts
from gatebench.report.analysis.flags import UNTRAINED_SHARE
from gatebench.report.analysis.stats import ALPHA, holm

Array = npt.NDArray[np.float64]

POSITIONS = ("g1", "g2", "g3", "g4", "g5")
TWO_LEVELS: Mapping[str, tuple[str, str]] = {
    "granularity": ("headwise", "elementwise"),
    "sharing": ("specific", "shared"),
    "mode": ("multiplicative", "additive"),
    "activation": ("sigmoid", "silu"),
}
"""An effect of one of these is the second level minus the first."""
BY_HEAD = ("granularity", "sharing")
"""What G5 has no levels of."""
MIN_VARIANTS = 12
"""Gates of the factorial below which no analysis is made."""


@dataclass(frozen=True)
class Effect:
    """One effect on ln(Avg PPL), in percent of the perplexity; below zero is better."""

    kind: str
    """``main`` or ``interaction``."""
    factor: str
    """``position``, or two factors: ``position x mode``."""
    level: str
    """What it is the effect of: ``g1 minus the mean of all positions``."""
    percent: float
    low: float
    high: float
    """The 95 % t interval, not adjusted."""
    p: float
    p_adjusted: float
    """By Holm over all effects of the analysis."""

    @property
    def resolved(self) -> bool:
        """Whether the effect is told from zero."""
        return self.p_adjusted < ALPHA


@dataclass(frozen=True)
class FactorAnalysis:
    """All effects of a factorial study."""

    effects: tuple[Effect, ...]
    facts: Mapping[str, Any]
    n_runs: int
    n_variants: int
    n_left_out: int
    """Runs that diverged or are untrained."""
    residual_percent: float
    """Standard deviation of what the model leaves unexplained."""
    degrees: int
    """Residual degrees of freedom."""
    r_squared: float


def factorial_gates(variants: Sequence[str]) -> dict[str, GateSpec]:
    """The variants that are cells of the factorial: a gate with a temperature, a floor or another source is none."""
    cells = {gate.name: gate for gate in factorial()}
    return {name: cells[name] for name in variants if name in cells}


def is_factorial(frame: pd.DataFrame) -> bool:
    """Whether the finished runs determine every effect, and so hold every position and two levels of all else."""
    gates, done = _usable(frame)
    return _has_all_levels(gates) and _is_determined(_design(gates, done)[0])


def _usable(frame: pd.DataFrame) -> tuple[dict[str, GateSpec], pd.DataFrame]:
    """The gates of the factorial and their runs that trained to a number: neither diverged nor untrained."""
    trained = ~(frame["final_train_loss"] > UNTRAINED_SHARE * np.log(frame["vocab_size"].clip(lower=2)))
    done = frame[(frame["status"] == "done") & np.isfinite(frame["avg_ppl"]) & trained]
    gates = factorial_gates(sorted(set(done["variant"])))
    return gates, done[done["variant"].isin(gates)]


def _has_all_levels(gates: Mapping[str, GateSpec]) -> bool:
    codes = [_levels(gate) for gate in gates.values()]
    levels = [len({code[factor] for code in codes if code[factor]}) for factor in TWO_LEVELS]
    return (
        len(gates) >= MIN_VARIANTS and {gate.position for gate in gates.values()} == set(POSITIONS) and min(levels) == 2
    )


def _design(gates: Mapping[str, GateSpec], done: pd.DataFrame) -> tuple[Array, list[str], int]:
    """(runs, numbers to fit), the names of its last columns, and how many stand before them: the mean and the seeds."""
    codes = pd.DataFrame([_coded(gates[name]) for name in done["variant"]])
    blocks = _seed_blocks(done["seed"].to_numpy())
    return np.column_stack([np.ones(len(done)), blocks, codes.to_numpy()]), list(codes.columns), 1 + blocks.shape[1]


def _is_determined(x: Array) -> bool:
    runs, numbers = x.shape
    return bool(runs > numbers and np.linalg.matrix_rank(x) == numbers)


def analyse(frame: pd.DataFrame) -> FactorAnalysis:
    """Fit the model to the factorial gates in ``frame`` (``results.load``, one setting).

    Raises :class:`UserError` where :func:`is_factorial` is false.
    """
    gates, done = _usable(frame)
    if not _has_all_levels(gates):
        raise UserError(
            f"factors: {len(gates)} gates of the factorial have runs; legal: {MIN_VARIANTS} or more, with G1 to G5 and "
            f"both levels of {', '.join(TWO_LEVELS)} among them"
        )
    x, columns, offset = _design(gates, done)
    y = 100 * np.log(done["avg_ppl"].to_numpy(dtype=float))
    if not _is_determined(x):
        raise UserError(
            f"factors: {len(y)} runs of {len(gates)} gates do not determine {x.shape[1]} numbers; legal: more of them"
        )
    import statsmodels.api as sm  # a second that other tables need not wait for

    fit = sm.OLS(y, x).fit()
    contrasts = _contrasts(columns, offset, width=x.shape[1])
    test = fit.t_test(np.array([weights for *_, weights in contrasts]))
    interval = test.conf_int(ALPHA)
    adjusted = holm([float(p) for p in test.pvalue])
    effects = tuple(
        Effect(
            kind,
            factor,
            level,
            percent=float(test.effect[i]),
            low=float(interval[i][0]),
            high=float(interval[i][1]),
            p=float(test.pvalue[i]),
            p_adjusted=adjusted[i],
        )
        for i, (kind, factor, level, _) in enumerate(contrasts)
    )
    return FactorAnalysis(
        effects=effects,
        facts=run_facts(done, done.iloc[:0]),
        n_runs=len(done),
        n_variants=done["variant"].nunique(),
        n_left_out=int(frame["variant"].isin(factorial_gates(sorted(set(frame["variant"])))).sum()) - len(done),
        residual_percent=math.sqrt(float(fit.mse_resid)),
        degrees=int(fit.df_resid),
        r_squared=float(fit.rsquared),
    )


def _levels(gate: GateSpec) -> dict[str, float]:
    """Every two-level factor of a gate as -1/2 or +1/2, and 0 where the position has no such levels."""
    words = {
        "granularity": gate.granularity,
        "sharing": "shared" if gate.shared else "specific",
        "mode": gate.mode,
        "activation": gate.activation,
    }
    return {
        factor: 0.0 if gate.position == "g5" and factor in BY_HEAD else TWO_LEVELS[factor].index(words[factor]) - 0.5
        for factor in TWO_LEVELS
    }


def _coded(gate: GateSpec) -> dict[str, float]:
    """The row of the design that a gate has: main effects, then products."""
    levels = _levels(gate)
    row = {f"position {p}": _sum_code(gate.position, p, POSITIONS) for p in POSITIONS[:-1]} | dict(levels)
    for factor in TWO_LEVELS:
        positions = POSITIONS[:-1] if factor in BY_HEAD else POSITIONS
        for p in positions[:-1]:
            row[f"position {p} x {factor}"] = _sum_code(gate.position, p, positions) * levels[factor]
    for one, other in itertools.combinations(TWO_LEVELS, 2):
        row[f"{one} x {other}"] = levels[one] * levels[other]
    return row


def _sum_code(position: str, column: str, positions: Sequence[str]) -> float:
    """Sum coding of the position over ``positions``: the last is -1 in every column."""
    return float(position == column) - float(position == positions[-1])


def _seed_blocks(seeds: npt.NDArray[np.int64]) -> Array:
    """(runs, seeds - 1) sum-coded."""
    levels = sorted(set(seeds.tolist()))
    columns = [(seeds == level).astype(float) - (seeds == levels[-1]) for level in levels[:-1]]
    return np.column_stack(columns) if columns else np.zeros((len(seeds), 0))


def _contrasts(columns: Sequence[str], offset: int, width: int) -> list[tuple[str, str, str, Array]]:
    """Kind, factor, level and weights of every effect; the last position's is minus the sum of the others'."""

    def weights(**of: float) -> Array:
        found = np.zeros(width)
        for name, weight in of.items():
            found[offset + columns.index(name)] = weight
        return found

    contrasts = []
    for p in POSITIONS:
        own = {f"position {p}": 1.0} if p != POSITIONS[-1] else {f"position {q}": -1.0 for q in POSITIONS[:-1]}
        contrasts.append(("main", "position", f"{p} minus the mean of all positions", weights(**own)))
    for factor, (first, second) in TWO_LEVELS.items():
        contrasts.append(("main", factor, f"{second} minus {first}", weights(**{factor: 1.0})))
    for factor, (_, second) in TWO_LEVELS.items():
        positions = POSITIONS[:-1] if factor in BY_HEAD else POSITIONS
        for p in positions:
            named = [p] if p != positions[-1] else list(positions[:-1])
            sign = 1.0 if p != positions[-1] else -1.0
            own = {f"position {q} x {factor}": sign for q in named}
            level = f"{second} at {p} minus its mean effect"
            contrasts.append(("interaction", f"position x {factor}", level, weights(**own)))
    for one, other in itertools.combinations(TWO_LEVELS, 2):
        level = f"{TWO_LEVELS[one][1]} with {TWO_LEVELS[other][1]} minus without"
        contrasts.append(("interaction", f"{one} x {other}", level, weights(**{f"{one} x {other}": 1.0})))
    return contrasts
