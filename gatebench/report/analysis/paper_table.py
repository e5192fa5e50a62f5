"""A table of the paper with our numbers beside its own: what one holds, whatever the table.

``paper_tables.make`` fills one; ``tables.paper_table`` prints it.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scipy import stats as scipy_stats

from gatebench.report.analysis.estimate import Estimate
from gatebench.report.analysis.stats import ALPHA, Verdict
from gatebench.report.text import decimals_for, number

MIN_RANKED = 3
"""Rows below which a rank correlation says nothing."""


@dataclass(frozen=True)
class Column:
    """One quantity: ours from a column of ``results.load``, the paper's from a column of its CSV."""

    key: str
    title: str
    """A line break in it is one in the terminal, and a space elsewhere."""
    kind: str
    """How it is written, a kind of ``wording.number``."""
    paper: str | None = None
    paper_title: str = "paper"
    interval: bool = True
    """Whether the half-width stands beside the mean."""
    shown: bool = True
    """A column that is not shown is in CSV and JSON alone."""
    decimals: int | None = None
    """Decimals that the paper prints, where the kind would print others."""
    best: Literal["lowest", "highest"] | None = None
    """Which number is printed in bold, of ours and of the paper's; None for a quantity without a better and a worse."""

    def written(self, value: float, like: float | None = None) -> str:
        """The value as text, an interval's half-width with the decimals of its mean (``like``)."""
        if self.decimals is None or not math.isfinite(value):
            return number(value, self.kind, like=like)
        return f"{value:.{decimals_for(abs(value if like is None else like), self.decimals)}f}"


@dataclass(frozen=True)
class VariantRow:
    """One variant."""

    variant: str
    label: str
    paper_row: int | None
    """Its row in the paper's table; None for a variant of ours that the paper's table lacks."""
    ours: Mapping[str, Estimate]
    """By the key of a column."""
    theirs: Mapping[str, str]
    """As printed in the paper, by the paper's column; a cell that it does not have is absent."""
    setting: str = ""
    """What tells the row from others of its variant: a named setting of the study, an extension of the context."""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """Against the baseline under the same setting, by the key of a column; none where there is no verdict."""

    def paper_number(self, column: str) -> float:
        """The paper's value, true as 1 and false as 0; NaN where it has none."""
        printed = self.theirs.get(column, "nan")
        return float(printed == "true") if printed in ("true", "false") else float(printed)


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation of two columns over rows that both the paper's table and ours have."""

    of: Column
    over: Column
    variants: tuple[str, ...]
    ours: float
    """Of the means over seeds; NaN below :data:`MIN_RANKED` rows."""
    theirs: float
    """Of the paper's numbers for the same rows."""
    by_seed: Mapping[int, float]

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.variants)


@dataclass(frozen=True)
class OrderCheck:
    """Whether groups of rows come in a stated order, every member of one above every member of the next."""

    column: Column
    groups: tuple[tuple[str, ...], ...]
    """From the largest down."""
    by_seed: Mapping[int, Mapping[str, float]]
    """The numbers, by seed and variant; a seed that lacks one of them is absent."""
    theirs: Mapping[str, float]
    """The paper's."""

    def holds(self, numbers: Mapping[str, float]) -> bool:
        """Whether the order is the stated one in ``numbers``."""
        levels = [[numbers[name] for name in group] for group in self.groups]
        return all(min(above) > max(below) for above, below in itertools.pairwise(levels))


@dataclass(frozen=True)
class PaperTable:
    """One table."""

    number: int
    title: str
    facts: Mapping[str, Any]
    """What every number depends on, as ``comparison.run_facts`` gives it; empty for a table without runs."""
    baseline: str
    columns: tuple[Column, ...]
    rows: tuple[VariantRow, ...]
    correlations: tuple[RankCorrelation, ...] = ()
    order: OrderCheck | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know, a sentence each without a full stop."""
    alpha: float = ALPHA

    def row(self, variant: str, setting: str = "") -> VariantRow:
        """The row of one variant."""
        return next(row for row in self.rows if (row.variant, row.setting) == (variant, setting))

    def measured(self, column: Column) -> bool:
        """Whether any of our runs has a number for the column."""
        return any(row.ours[column.key].n for row in self.rows)

    def best_of_ours(self, column: Column) -> float:
        """Our best mean; NaN where the column has no best or fewer than two rows have a number."""
        return _best([row.ours[column.key].mean for row in self.rows], column)

    def best_of_the_papers(self, column: Column) -> float:
        """The paper's best number, under the same conditions."""
        return _best([row.paper_number(column.paper or "") for row in self.rows], column)

    def column(self, key: str) -> Column:
        """The column of one key."""
        return next(column for column in self.columns if column.key == key)


def _best(values: Sequence[float], column: Column) -> float:
    finite = [value for value in values if math.isfinite(value)]
    if column.best is None or len(finite) < 2:
        return math.nan
    return min(finite) if column.best == "lowest" else max(finite)


def rank_correlation(rows: Sequence[VariantRow], of: Column, over: Column) -> RankCorrelation:
    """Correlate two columns over the rows where the paper has both and we have both means."""
    assert of.paper is not None and over.paper is not None
    ranked = []
    for row in rows:
        numbers = (
            row.paper_number(of.paper),
            row.paper_number(over.paper),
            row.ours[of.key].mean,
            row.ours[over.key].mean,
        )
        if all(map(math.isfinite, numbers)):
            ranked.append(row)
    seeds = sorted({seed for row in ranked for seed in row.ours[of.key].by_seed})
    by_seed = {}
    for seed in seeds:
        pairs = [(row.ours[of.key].by_seed.get(seed), row.ours[over.key].by_seed.get(seed)) for row in ranked]
        by_seed[seed] = _spearman([(x, y) for x, y in pairs if x is not None and y is not None])
    return RankCorrelation(
        of,
        over,
        tuple(row.variant for row in ranked),
        ours=_spearman([(row.ours[of.key].mean, row.ours[over.key].mean) for row in ranked]),
        theirs=_spearman([(row.paper_number(of.paper), row.paper_number(over.paper)) for row in ranked]),
        by_seed=by_seed,
    )


def order_check(rows: Sequence[VariantRow], column: Column, groups: Sequence[Sequence[str]]) -> OrderCheck | None:
    """Look at the order of ``groups`` at each seed; None where a variant of them is in none of the rows."""
    by_name = {row.variant: row for row in rows}
    names = [name for group in groups for name in group]
    if not set(names) <= set(by_name):
        return None
    found = {name: by_name[name].ours[column.key].by_seed for name in names}
    seeds = sorted({seed for values in found.values() for seed in values})
    return OrderCheck(
        column,
        tuple(tuple(group) for group in groups),
        by_seed={
            seed: {name: found[name][seed] for name in names}
            for seed in seeds
            if all(seed in values for values in found.values())
        },
        theirs={name: by_name[name].paper_number(column.paper or "") for name in names},
    )


def _spearman(pairs: Sequence[tuple[float, float]]) -> float:
    if len(pairs) < MIN_RANKED:
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a column of equal numbers has no ranks: NaN
        return float(scipy_stats.spearmanr([x for x, _ in pairs], [y for _, y in pairs]).statistic)
