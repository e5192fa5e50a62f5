"""Loss over the learning rate, variant by variant: LR sensitivity, best and largest stable learning rate.

Source: Wortsman et al. 2023 (arXiv 2309.14322), section 2.2. Losses are held-out, in nats a token. docs/stability.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from gatebench.recipes import settings_of_text
from gatebench.report.analysis.stats import Comparison, judge_family, paired_comparison

LEARNING_RATE = "optim.lr"
MIN_RATES = 3
"""Learning rates below which a sensitivity is not defined."""

STABLE_SHARE = 0.1
"""A learning rate is stable while it loses less than this share of what training gains at the best one."""


def with_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Runs (``results.load``) that name their learning rate, with ``lr``, ``group``, ``batch_size``, ``capped_loss``.

    ``group`` is every other setting; ``capped_loss`` is min(loss, ln V), and ln V, the loss of a model that knows
    nothing, for a run that diverged.
    """
    settings = [settings_of_text(text) for text in frame["overrides"]]
    ceiling = np.log(frame["vocab_size"].to_numpy(dtype=float))
    loss = np.log(frame["micro_ppl"].to_numpy(dtype=float))
    has_number = (frame["status"] == "done").to_numpy() & np.isfinite(loss)
    return frame.assign(
        lr=[float(changed.get(LEARNING_RATE, math.nan)) for changed in settings],
        group=[str(changed.without(LEARNING_RATE)) for changed in settings],
        batch_size=(frame["tokens"] // (frame["steps"] * frame["seq_len"]).clip(lower=1)).astype("int64"),
        capped_loss=np.minimum(np.where(has_number, loss, ceiling), ceiling),
    ).dropna(subset=["lr"])


def lr_sensitivity(losses: pd.DataFrame) -> pd.Series:
    """Mean over learning rates of min(loss, loss_0) minus the smallest loss, at each seed.

    ``losses`` (seeds x learning rates) are capped already; a seed that lacks one has no sensitivity.
    """
    complete = losses.dropna()
    return complete.mean(axis=1) - complete.min(axis=1)


def best_rate(losses: pd.Series) -> float:
    """The learning rate (index) with the smallest loss; of equal ones the smallest."""
    losses = losses.sort_index()
    return float(losses.index.to_numpy(dtype=float)[int(np.argmin(losses.to_numpy()))])


def optimum(losses: pd.Series) -> float:
    """The learning rate where a parabola through the smallest loss and its two neighbours, over log LR, is lowest.

    At an end of the range, which may lie before the optimum, that end.
    """
    losses = losses.sort_index()
    rates, values = losses.index.to_numpy(dtype=float), losses.to_numpy(dtype=float)
    at = int(np.argmin(values))
    if at in (0, len(rates) - 1):
        return float(rates[at])
    x, y = np.log(rates[at - 1 : at + 2]), values[at - 1 : at + 2]
    left, right = (x[1] - x[0]) * (y[1] - y[2]), (x[1] - x[2]) * (y[1] - y[0])
    if left == right:  # three equal losses
        return float(rates[at])
    return float(np.exp(x[1] - 0.5 * ((x[1] - x[0]) * left - (x[1] - x[2]) * right) / (left - right)))


@dataclass(frozen=True)
class LrCurve:
    """One variant over learning rates, with everything else the same."""

    group: str
    """Every setting but the learning rate."""
    batch_size: int
    variant: str
    label: str
    losses: pd.DataFrame
    """Seeds x learning rates, capped at ``ceiling``; NaN where a run is missing."""
    diverged: frozenset[tuple[int, float]]
    """Seed and learning rate of each run that diverged."""
    ceiling: float
    """ln V."""

    @property
    def rates(self) -> list[float]:
        """From the smallest."""
        return [float(rate) for rate in self.losses.columns]

    @cached_property
    def complete(self) -> pd.DataFrame:
        """The losses of the seeds that have all of them."""
        return self.losses.dropna()

    @cached_property
    def sensitivity(self) -> pd.Series:
        """By seed."""
        return lr_sensitivity(self.losses)

    @cached_property
    def best(self) -> float:
        """The learning rate with the smallest mean loss over seeds; NaN without a seed that has all losses."""
        return best_rate(self.complete.mean()) if len(self.complete) else math.nan

    @cached_property
    def optima(self) -> pd.Series:
        """:func:`optimum` at each seed."""
        return self.complete.apply(optimum, axis=1) if len(self.complete) else pd.Series(dtype=float)

    @property
    def at_edge(self) -> bool:
        """Whether the best learning rate is the smallest or largest tried, so that a better one may lie beyond."""
        return self.best in (self.rates[0], self.rates[-1])

    @cached_property
    def largest_stable(self) -> float:
        """The largest rate up to which, from the best one on, no seed diverges or loses :data:`STABLE_SHARE`.

        That is (loss - best loss of the seed) / (ln V - best loss of the seed). NaN where the best one fails itself.
        """
        stable = math.nan
        lowest = self.complete.min(axis=1)
        for rate in (r for r in self.rates if r >= self.best):
            lost = (self.complete[rate] - lowest) / (self.ceiling - lowest)
            if any(at == rate for _, at in self.diverged) or not (lost < STABLE_SHARE).all():
                break
            stable = rate
        return stable


def lr_curves(frame: pd.DataFrame, names: Sequence[str], labels: Mapping[str, str]) -> list[LrCurve]:
    """The curves of the variants in ``frame``, group by group in the order of the batch size.

    Of each group the learning rates that every variant in it has; groups with under :data:`MIN_RATES` are left out.
    """
    rated = with_rates(frame[frame["variant"].isin(names)])
    found = []
    for batch_size, group in sorted(set(zip(rated["batch_size"], rated["group"], strict=True))):
        runs = rated[rated["group"] == group]
        tables = {
            name: own.pivot_table(index="seed", columns="lr", values="capped_loss")
            for name in names
            if len(own := runs[runs["variant"] == name])
        }
        common = sorted(set.intersection(*(set(table.columns) for table in tables.values())))
        if len(common) < MIN_RATES:
            continue
        for name, table in tables.items():
            failed = runs[(runs["variant"] == name) & (runs["status"] != "done")]
            found.append(
                LrCurve(
                    group=group,
                    batch_size=int(batch_size),
                    variant=name,
                    label=labels.get(name, name),
                    losses=table[common],
                    diverged=frozenset(zip(map(int, failed["seed"]), map(float, failed["lr"]), strict=True)),
                    ceiling=float(np.log(runs["vocab_size"].iloc[0])),
                )
            )
    return found


@dataclass(frozen=True)
class AgainstBaseline:
    """One variant's curve beside the baseline's, everything else the same."""

    curve: LrCurve
    sensitivity: Comparison
    optimum: Comparison
    """Of the natural logarithm of the best learning rate."""

    @property
    def shift(self) -> tuple[float, float, float]:
        """By what factor the best learning rate is larger than the baseline's, and its 95 % interval."""
        found = self.optimum
        return math.exp(found.mean), math.exp(found.low), math.exp(found.high)


def against_baseline(curves: Sequence[LrCurve], baseline: str) -> list[AgainstBaseline]:
    """Compare every other variant with the baseline of its group, paired by seed; Holm over all of them."""
    bases = {curve.group: curve for curve in curves if curve.variant == baseline}
    others = [curve for curve in curves if curve.variant != baseline and curve.group in bases]
    sensitivities = [paired_comparison(bases[c.group].sensitivity, c.sensitivity, lower_is_better=True) for c in others]
    optima = [
        paired_comparison(bases[c.group].optima.map(math.log), c.optima.map(math.log), lower_is_better=False)
        for c in others
    ]
    pairs = zip(others, judge_family(sensitivities), judge_family(optima), strict=True)
    return [AgainstBaseline(*found) for found in pairs]


def group_names(curves: Sequence[LrCurve]) -> dict[str, str]:
    """What to call each group: its batch size, and with several of one size the settings that tell them apart."""
    sizes = dict.fromkeys((curve.group, curve.batch_size) for curve in curves)
    words = [set(group.split()) for group, _ in sizes]
    common = set.intersection(*words) if words else set()
    alone = len({size for _, size in sizes}) == len(sizes)
    return {
        group: " ".join([str(size), *([] if alone else [w for w in group.split() if w not in common])])
        for group, size in sizes
    }
