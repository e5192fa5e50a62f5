"""The kinds of test that a claim is made of: each looks at the runs of one study under one setting.

A test expects something of a number, and its :class:`Found` says what was measured, how sure that is, and whether it
points the way that the claim says. Nothing here gives a verdict: ``claims`` does, after Holm's adjustment.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from scipy import stats as scipy_stats

from gatebench.report.analysis.comparison import SINK_EXCESS
from gatebench.report.analysis.estimate import estimate
from gatebench.report.analysis.flags import blocking_texts, comparison_flags, distinct, one_model, pair_flags, run_flags
from gatebench.report.analysis.lr_curves import MIN_RATES, lr_sensitivity, with_rates
from gatebench.report.analysis.paper_table import MIN_RANKED
from gatebench.report.analysis.stats import ALPHA, Comparison, equivalence, paired_comparison
from gatebench.report.text import decimals_for, number


@dataclass(frozen=True)
class Found:
    """What one test found in the runs of one study and setting."""

    text: str
    """The numbers, without a full stop."""
    agrees: bool
    """Whether the number lies on the side that the claim expects."""
    p: float
    """Two-sided, unadjusted; NaN where nothing could be tested, and ``text`` says why."""
    n: int
    """Seeds, or rows of a rank correlation."""


class ClaimTest(ABC):
    """One expectation of a claim; equal ones are one test, however they are worded."""

    over_rates: ClassVar[bool] = False
    """Whether it needs runs at several learning rates at once; others look at one setting."""

    @property
    @abstractmethod
    def text(self) -> str:
        """What is expected, without a full stop."""

    @abstractmethod
    def run(self, frame: pd.DataFrame) -> Found | None:
        """Look at the runs of one study and setting; None where they do not bear on it."""


@dataclass(frozen=True)
class Compare(ClaimTest):
    """A metric of one variant is lower (or higher) than another's, paired by seed."""

    metric: str
    variant: str
    than: str = "baseline"
    expected: Literal["lower", "higher"] = "lower"
    minus: str | None = None
    """A metric that is subtracted first, for a change between two conditions."""

    @property
    def text(self) -> str:
        """`avg_ppl of g1_elementwise is lower than baseline's`."""
        name = f"{self.metric} minus {self.minus}" if self.minus else self.metric
        return f"{name} of {self.variant} is {self.expected} than {self.than}'s"

    def run(self, frame: pd.DataFrame) -> Found | None:
        """Paired t test over the seeds that both have."""
        found = _pair(frame, self.than, self.variant, self.metric, self.minus)
        if found is None:
            return None
        if blocked := _blocked(frame, self.than, self.variant):
            return _no_test(blocked, found.n)
        return Found(_difference_text(found), (found.mean < 0) == (self.expected == "lower"), found.p, found.n)


@dataclass(frozen=True)
class Sink(ClaimTest):
    """First-token attention is above (``there``) or below twice what uniform attention would give.

    Says nothing where the baseline of the same runs has no sink.
    """

    variant: str
    there: bool
    unlike: str = ""
    """A variant that it must differ from to be evidence: with one head a shared gate is the head-specific one."""

    @property
    def text(self) -> str:
        """`g1_headwise has no sink`."""
        words = "keeps a" if self.there else "has no"
        return f"{self.variant} {words} sink (first-token share / floor, against {SINK_EXCESS:g})"

    def run(self, frame: pd.DataFrame) -> Found | None:
        """One-sample t test of share / floor against :data:`SINK_EXCESS` over the seeds."""
        base = _by_seed(frame, "baseline", "first_token_excess")
        if not len(base) or base.mean() < SINK_EXCESS:
            return None
        own = _by_seed(frame, self.variant, "first_token_excess")
        if not len(own):
            return None
        if blocked := _run_blocked(frame, self.variant):
            return _no_test(blocked, len(own))
        if self.unlike and one_model(frame, self.variant, self.unlike):
            return _no_test(f"here it is {self.unlike} to the last bit", len(own))
        found = paired_comparison(pd.Series(SINK_EXCESS, own.index), own, lower_is_better=True)
        text = f"share / floor {_interval(found, SINK_EXCESS)}, baseline's {number(float(base.mean()), 'ratio')}"
        return Found(text, (found.mean > 0) == self.there, found.p, found.n)


@dataclass(frozen=True)
class Ranks(ClaimTest):
    """Two quantities rank variants alike: Spearman's correlation of the means over seeds is above zero."""

    of: str
    over: str
    variants: tuple[str, ...] = ()
    """Which; without any, every variant that has both numbers. Of two with the same loss curves the first counts."""

    @property
    def text(self) -> str:
        """`gate_mean ranks first_token_share`."""
        return f"{self.of} and {self.over} rank variants alike" + (" along the floor knob" if self.variants else "")

    def run(self, frame: pd.DataFrame) -> Found | None:
        """Permutation test over the variants; needs a sink in the baseline, for there is nothing to rank without."""
        base = _by_seed(frame, "baseline", "first_token_excess")
        if not len(base) or base.mean() < SINK_EXCESS:
            return None
        names = distinct(frame, self.variants or tuple(sorted(set(frame["variant"]))))
        means = [(_by_seed(frame, name, self.of).mean(), _by_seed(frame, name, self.over).mean()) for name in names]
        pairs = np.array([pair for pair in means if all(map(math.isfinite, pair))])
        if len(pairs) < MIN_RANKED:
            return None
        x, y = pairs[:, 0], pairs[:, 1]
        if len(set(x)) < 2 or len(set(y)) < 2:
            return _no_test("one of the two is the same for all", len(pairs))
        rank = scipy_stats.rankdata(x)
        test = scipy_stats.permutation_test(
            (rank,),
            lambda shuffled: float(scipy_stats.spearmanr(shuffled, y).statistic),
            permutation_type="pairings",
            n_resamples=999,
            vectorized=False,
            rng=0,
        )
        return Found(
            f"rank correlation {test.statistic:.2f} over {len(pairs)} variants",
            test.statistic > 0,
            float(test.pvalue),
            len(pairs),
        )


@dataclass(frozen=True)
class Speed(ClaimTest):
    """Training keeps at least ``share`` of the baseline's tokens per second, at seeds where both ran alike."""

    variant: str
    share: float

    @property
    def text(self) -> str:
        """`g1_headwise trains at 98 % of the baseline's speed or more`."""
        return f"{self.variant} trains at {100 * self.share:g} % of the baseline's speed or more"

    def run(self, frame: pd.DataFrame) -> Found | None:
        """One-sample t test of the ratio at each seed against ``share``."""
        base, own = _by_seed(frame, "baseline", "tokens_per_s"), _by_seed(frame, self.variant, "tokens_per_s")
        both = (own / base).dropna()
        if not len(both):
            return None
        ratio = both[[seed for seed in both.index if _ran_alike(frame, "baseline", self.variant, seed)]]
        if not len(ratio):
            return _no_test("other machines or settings than the baseline's", 0)
        found = paired_comparison(pd.Series(self.share, ratio.index), ratio, lower_is_better=False)
        return Found(
            f"share of the baseline's speed {_interval(found, self.share, 'score')}", found.mean > 0, found.p, found.n
        )


@dataclass(frozen=True)
class Same(ClaimTest):
    """A metric differs from the baseline's by less than ``margin`` of it (TOST), either way."""

    metric: str
    variant: str
    margin: float

    @property
    def text(self) -> str:
        """`avg_ppl of g1_headwise is within 1 % of baseline's`."""
        return f"{self.metric} of {self.variant} is within {100 * self.margin:g} % of the baseline's"

    def run(self, frame: pd.DataFrame) -> Found | None:
        """Agrees by the equivalence test; disagrees by a t test of the difference beyond the margin."""
        found = _pair(frame, "baseline", self.variant, self.metric)
        if found is None:
            return None
        if blocked := _blocked(frame, "baseline", self.variant):
            return _no_test(blocked, found.n)
        margin = self.margin * abs(found.baseline_mean)
        tost = equivalence(found, margin)
        if tost.shown or abs(found.mean) < margin or not found.n >= 2:
            return Found(_difference_text(found), True, tost.p, found.n)
        limit = pd.Series(found.baseline, found.seeds) + math.copysign(margin, found.mean)
        beyond = paired_comparison(limit, pd.Series(found.variant, found.seeds), lower_is_better=True)
        return Found(_difference_text(found), False, beyond.p, found.n)


@dataclass(frozen=True)
class Sensitivity(ClaimTest):
    """The loss of one variant depends less on the learning rate than another's.

    LR sensitivity (Wortsman et al. 2023, section 2.2): mean over learning rates of min(loss, loss_0) minus the best
    loss, with loss_0 = ln(vocabulary), which is also the loss of a run that diverged.
    """

    variant: str
    than: str = "baseline"

    over_rates: ClassVar[bool] = True

    @property
    def text(self) -> str:
        """`LR sensitivity of g1_elementwise is lower than baseline's`."""
        return f"LR sensitivity of {self.variant} is lower than {self.than}'s"

    def run(self, frame: pd.DataFrame) -> Found | None:
        """Paired t test over seeds, over the learning rates that both have."""
        rated = with_rates(frame[frame["variant"].isin([self.variant, self.than])])
        table = rated.pivot_table(index="seed", columns=["variant", "lr"], values="capped_loss")
        if not {self.variant, self.than} <= set(table.columns.get_level_values(0)):
            return None
        rates = sorted(set(table[self.variant].columns) & set(table[self.than].columns))
        if len(rates) < MIN_RATES:
            return None
        theirs, ours = (lr_sensitivity(pd.DataFrame(table[name])[rates]) for name in (self.than, self.variant))
        found = paired_comparison(theirs, ours, lower_is_better=True)
        if not found.n:
            return None
        means = f"{number(found.variant_mean, 'nats')} against {number(found.baseline_mean, 'nats')}"
        text = f"{means} nats over {len(rates)} learning rates"
        return Found(f"{text}, difference {_interval(found, 0.0, 'nats')}", found.mean < 0, found.p, found.n)


@dataclass(frozen=True)
class AtHighestRate(ClaimTest):
    """At the study's largest learning rate, the final loss of one variant is lower than another's."""

    variant: str
    than: str

    over_rates: ClassVar[bool] = True

    @property
    def text(self) -> str:
        """`at the largest learning rate, the loss of g1_elementwise is lower than clip300's`."""
        return f"at the largest learning rate, the loss of {self.variant} is lower than {self.than}'s"

    def run(self, frame: pd.DataFrame) -> Found | None:
        """Paired t test over seeds; a run that diverged counts as ln(vocabulary)."""
        rated = with_rates(frame[frame["variant"].isin([self.variant, self.than])])
        if rated["lr"].nunique() < 2:
            return None
        top = rated[rated["lr"] == rated["lr"].max()]
        by_name = {
            name: top[top["variant"] == name].groupby("seed")["capped_loss"].mean()
            for name in (self.variant, self.than)
        }
        found = paired_comparison(by_name[self.than], by_name[self.variant], lower_is_better=True)
        if not found.n:
            return None
        return Found(f"difference in loss (nats) {_interval(found, 0.0, 'nats')}", found.mean < 0, found.p, found.n)


def _no_test(why: str, n: int) -> Found:
    return Found(f"no test: {why}", False, math.nan, n)


def _by_seed(frame: pd.DataFrame, variant: str, column: str) -> pd.Series:
    values = estimate(frame[frame["variant"] == variant], column).by_seed
    return pd.Series(dict(values), dtype="float64")


def _pair(frame: pd.DataFrame, than: str, variant: str, metric: str, minus: str | None = None) -> Comparison | None:
    """None where no seed has both numbers."""
    values = []
    for name in (than, variant):
        own = _by_seed(frame, name, metric)
        values.append(own - _by_seed(frame, name, minus) if minus else own)
    found = paired_comparison(values[0], values[1], lower_is_better=True)
    return found if found.n else None


def _blocked(frame: pd.DataFrame, baseline: str, variant: str) -> str:
    flags = comparison_flags(frame[frame["variant"] == baseline], frame[frame["variant"] == variant], variant)
    return "; ".join(blocking_texts(flags))


def _ran_alike(frame: pd.DataFrame, one: str, other: str, seed: int) -> bool:
    """Whether the two runs at a seed had the same machine, device, threads, precision and compilation."""
    base, own = (frame[(frame["variant"] == name) & (frame["seed"] == seed)].iloc[0] for name in (one, other))
    return all(flag.code != "other_settings" for flag in pair_flags(base, own))


def _run_blocked(frame: pd.DataFrame, variant: str) -> str:
    own = frame[frame["variant"] == variant]
    return "; ".join(text for _, run in own.iterrows() for text in blocking_texts(run_flags(run)))


def _difference_text(found: Comparison) -> str:
    """With as many decimals as leave the interval's half-width, or a single difference, two digits."""
    size = (found.high - found.low) / 2 if math.isfinite(found.low) else abs(found.mean)
    decimals = decimals_for(size, 2 if abs(found.baseline_mean) >= 1 else 4)
    ours, theirs = (number(value, "ratio", decimals=decimals) for value in (found.variant_mean, found.baseline_mean))
    return f"{ours} against {theirs}, difference {_interval(found, 0.0, decimals=decimals)}"


def _interval(found: Comparison, origin: float, kind: str = "ratio", decimals: int | None = None) -> str:
    """Mean and interval, counted from zero again where the comparison was with ``origin``."""
    text = number(found.mean + origin, kind, decimals=decimals)
    if math.isfinite(found.low):
        level = f"{100 * (1 - ALPHA):.0f} %"
        low, high = (number(value + origin, kind, decimals=decimals) for value in (found.low, found.high))
        text += f" ({level} interval {low} to {high})"
    return f"{text}, {found.n} seed{'s' if found.n != 1 else ''}"
