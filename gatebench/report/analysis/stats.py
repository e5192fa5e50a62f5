"""Comparisons paired by seed: difference, interval, adjusted p, verdict. docs/statistics.md says what each means.

scipy and statsmodels do the arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from gatebench.errors import UserError

Verdict = Literal["better", "worse", "not resolvable"]

ALPHA = 0.05
ONE_SEED = "one seed gives no verdict"
NO_PAIRS = "no seed has both numbers"
NO_SPREAD = "the difference is the same at every seed, so its spread is unknown"
NO_SINK = "the baseline has no sink to remove"
DESCRIPTIVE = "reported without a test"

MAX_FLIPS = 4096
"""Sign flips looked at: all of them up to 12 seeds."""

# Relative spread of the differences below which rounding, not the seeds, made it.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Comparison:
    """A variant against its baseline on the seeds that both have. Differences are variant minus baseline.

    Numbers that ``n`` does not allow are NaN: mean needs one seed, interval, ``p`` and ``resolvable`` need two.
    ``verdict`` stays None until :func:`judge` has seen the adjusted p; ``reason`` then says why it still is None.
    """

    seeds: tuple[int, ...]
    baseline: tuple[float, ...]
    variant: tuple[float, ...]
    lower_is_better: bool
    alpha: float
    mean: float
    sd: float
    """Sample standard deviation of the differences (n - 1)."""
    low: float
    high: float
    """The 1 - alpha t interval of the mean difference."""
    p: float
    """Two-sided paired t test, unadjusted."""
    resolvable: float
    """t_{1-alpha/(2 n_tests), n-1} sd / sqrt(n): the smallest mean difference that these seeds could tell from zero."""
    p_flip: float = math.nan
    """Two-sided sign-flip permutation test, unadjusted: a check of ``p`` that assumes no normal differences."""
    n_tests: int = 1
    """Tests in the family that Holm adjusts together; :func:`within_family` sets it."""
    p_adjusted: float | None = None
    verdict: Verdict | None = None
    reason: str | None = None

    @property
    def n(self) -> int:
        """Number of pairs."""
        return len(self.seeds)

    @property
    def p_holm(self) -> float:
        """The adjusted p as a number for a frame: NaN without one."""
        return math.nan if self.p_adjusted is None else self.p_adjusted

    @property
    def differences(self) -> tuple[float, ...]:
        """Variant minus baseline, in the order of ``seeds``."""
        return tuple(v - b for b, v in zip(self.baseline, self.variant, strict=True))

    @property
    def baseline_mean(self) -> float:
        """Over the paired seeds; NaN without any."""
        return _mean(self.baseline)

    @property
    def variant_mean(self) -> float:
        """Over the paired seeds; NaN without any."""
        return _mean(self.variant)


def half_width(sd: float, n: int, alpha: float = ALPHA) -> float:
    """t_{1-alpha/2, n-1} sd / sqrt(n): half the 1 - alpha interval of the mean of ``n`` values with deviation ``sd``.

    It is also the mean difference at which a two-sided paired t test gives p = alpha.
    """
    return float(scipy_stats.t.ppf(1 - alpha / 2, n - 1)) * sd / math.sqrt(n)


def mean_interval(values: Sequence[float], alpha: float = ALPHA) -> tuple[float, float]:
    """The mean and half the 1 - alpha t interval around it; NaN without a value, and below two."""
    if len(values) < 2:
        return _mean(values), math.nan
    return _mean(values), half_width(float(np.std(values, ddof=1)), len(values), alpha)


def paired_comparison(
    baseline: pd.Series, variant: pd.Series, *, lower_is_better: bool, alpha: float = ALPHA
) -> Comparison:
    """Compare two metrics indexed by seed over the seeds where both are finite.

    Returns the paired t test without a verdict; :func:`judge` adds that. Identical numbers at every seed give p = 1
    and the interval [0, 0]; the same non-zero difference at every seed gives p = NaN, since a spread of zero is no
    evidence of certainty but a sign that the seeds are not independent.
    """
    theirs, ours = (dict(zip(s.index, s.to_numpy(dtype=float), strict=True)) for s in (baseline, variant))
    seeds = sorted(n for n in theirs.keys() & ours.keys() if math.isfinite(theirs[n]) and math.isfinite(ours[n]))
    base, other = np.array([theirs[n] for n in seeds]), np.array([ours[n] for n in seeds])
    difference = other - base
    n = len(difference)
    mean = float(difference.mean()) if n else math.nan
    sd = low = high = p = resolvable = math.nan
    if n >= 2:
        sd = float(difference.std(ddof=1))
        if sd <= _ROUNDING * float(np.abs(np.concatenate([base, other])).max()):
            sd = 0.0
            if not difference.any():
                low = high = resolvable = 0.0
                p = 1.0
        else:
            test = scipy_stats.ttest_rel(other, base)
            interval = test.confidence_interval(1 - alpha)
            low, high, p = float(interval.low), float(interval.high), float(test.pvalue)
            resolvable = half_width(sd, n, alpha)
    return Comparison(
        seeds=tuple(map(int, seeds)),
        baseline=tuple(map(float, base)),
        variant=tuple(map(float, other)),
        lower_is_better=lower_is_better,
        alpha=alpha,
        mean=mean,
        sd=sd,
        low=low,
        high=high,
        p=p,
        resolvable=resolvable,
        p_flip=sign_flip_p(difference) if sd > 0 else math.nan,
    )


def sign_flip_p(differences: Sequence[float] | npt.NDArray[np.float64]) -> float:
    """Share of sign flips of the differences whose mean is as far from zero as theirs; NaN below two of them.

    Exact up to 12 seeds; with more, over :data:`MAX_FLIPS` flips drawn with a fixed seed, the one seen among them. No p
    below 2 / 2^n is possible: three seeds cannot give less than 0.25, and 0.05 takes six.
    """
    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        return math.nan
    flipped = np.abs(_signs(len(values)) @ values)
    seen = abs(values.sum())
    return float(np.mean(flipped >= seen * (1 - _ROUNDING)))


@cache
def _signs(n: int) -> npt.NDArray[np.float64]:
    """(flips, n) of +1 and -1, the first row all +1."""
    if 2**n <= MAX_FLIPS:
        return np.array(list(itertools.product((1.0, -1.0), repeat=n)))
    drawn = np.random.default_rng(0).choice((1.0, -1.0), size=(MAX_FLIPS, n))
    drawn[0] = 1.0
    return drawn


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests (TOST): whether the mean difference is shown to lie within ±margin."""

    margin: float
    """In the metric's unit."""
    p: float
    """The larger of the two one-sided p values, unadjusted; NaN where nothing can be tested."""
    alpha: float

    @property
    def shown(self) -> bool:
        """Whether "no difference of more than the margin" may be said."""
        return self.p < self.alpha


def equivalence(comparison: Comparison, margin: float) -> Equivalence:
    """Test whether the difference of a comparison lies within ±``margin`` (Schuirmann 1987), paired by seed.

    A verdict "not resolvable" never shows that there is no effect; this can. Equal numbers at every seed are
    equivalent; the same other difference at every seed has no spread and cannot be tested.
    """
    if not margin > 0:
        raise UserError(f"equivalence: margin={margin:g}; legal: a number above 0, in the metric's unit")
    if comparison.sd > 0:
        p = float(ttost_paired(np.array(comparison.variant), np.array(comparison.baseline), -margin, margin)[0])
    else:
        p = 0.0 if comparison.n >= 2 and comparison.mean == 0 else math.nan
    return Equivalence(margin, p, comparison.alpha)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment of one family of p values. NaN stays NaN and does not count as a test."""
    values = np.asarray(p, dtype=float)
    adjusted = np.full(values.shape, math.nan)
    tested = ~np.isnan(values)
    if tested.sum() == 1:  # nothing to adjust; statsmodels collects garbage at every call, a tenth of a second
        adjusted = values
    elif tested.any():
        adjusted[tested] = multipletests(values[tested], method="holm")[1]
    return [float(value) for value in adjusted]


def within_family(comparison: Comparison, n_tests: int) -> Comparison:
    """The comparison as one of ``n_tests``: ``resolvable`` is then what Holm's first, strictest step asks for.

    A larger difference has an adjusted p below alpha whatever the family's other tests show. One without a spread
    keeps its ``resolvable``.
    """
    if not comparison.sd > 0:
        return replace(comparison, n_tests=n_tests)
    resolvable = half_width(comparison.sd, comparison.n, comparison.alpha / n_tests)
    return replace(comparison, n_tests=n_tests, resolvable=resolvable)


def judge(comparison: Comparison, p_adjusted: float, blocked_by: Iterable[str] = ()) -> Comparison:
    """The comparison with its adjusted p and its verdict, or with the reason why it has none.

    ``blocked_by`` holds the texts of blocking flags; the first becomes the reason. Otherwise the verdict is "better"
    or "worse" when ``p_adjusted`` is below alpha, and "not resolvable" when it is not.
    """
    reason = next(iter(blocked_by), None) or _why_untested(comparison)
    known = None if math.isnan(p_adjusted) else p_adjusted
    if reason is not None or known is None:
        return replace(comparison, p_adjusted=known, verdict=None, reason=reason or DESCRIPTIVE)
    return replace(comparison, p_adjusted=known, verdict=verdict(comparison, known), reason=None)


def judge_family(
    comparisons: Sequence[Comparison], blocked_by: Sequence[Sequence[str]] | None = None
) -> list[Comparison]:
    """All comparisons of one family with their adjusted p and verdicts.

    One that has texts of its own in ``blocked_by`` is no test of the family, and has the first as its reason.
    """
    reasons: Sequence[Sequence[str]] = [()] * len(comparisons) if blocked_by is None else blocked_by
    adjusted = holm([math.nan if why else found.p for found, why in zip(comparisons, reasons, strict=True)])
    n_tests = max(1, sum(not math.isnan(p) for p in adjusted))
    return [
        judge(found if why else within_family(found, n_tests), p, why)
        for found, p, why in zip(comparisons, adjusted, reasons, strict=True)
    ]


def verdict(comparison: Comparison, p_adjusted: float) -> Verdict:
    """What the adjusted p allows to say about a comparison that nothing blocks."""
    if not p_adjusted < comparison.alpha:
        return "not resolvable"
    return "better" if (comparison.mean < 0) == comparison.lower_is_better else "worse"


def seeds_to_resolve(comparison: Comparison, limit: int = 1000) -> int | None:
    """How many seeds would resolve the observed difference if the spread stayed as it is; None above ``limit``.

    At alpha over the tests of the family, as ``resolvable``. A rough guide: the spread itself is known from only n - 1
    degrees of freedom.
    """
    if not comparison.sd > 0 or comparison.mean == 0:
        return None
    n = np.arange(2, limit + 1)
    level = 1 - comparison.alpha / comparison.n_tests / 2
    enough = scipy_stats.t.ppf(level, n - 1) * comparison.sd / np.sqrt(n) < abs(comparison.mean)
    return int(n[enough.argmax()]) if enough.any() else None


def _why_untested(comparison: Comparison) -> str | None:
    if comparison.n == 0:
        return NO_PAIRS
    if comparison.n == 1:
        return ONE_SEED
    return NO_SPREAD if math.isnan(comparison.p) else None


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
