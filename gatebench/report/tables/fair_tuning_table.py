"""Is a difference the design's or the learning rate's? Variants at the baseline's best learning rate and at their own.

The best learning rate of a seed is chosen on the losses of the *other* seeds, so that no run is chosen for its own
luck; with one seed, and beside the honest rows, on all of them. docs/stability.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from gatebench.report.analysis.lr_curves import LrCurve, best_rate, group_names
from gatebench.report.analysis.paper_tables import facts_of
from gatebench.report.analysis.stats import Comparison, judge_family, paired_comparison
from gatebench.report.tables.blocks import table
from gatebench.report.tables.document import Document, of_one_table
from gatebench.report.text import NOTHING, difference_and_interval, learning_rate, number, p_value

Selection = Literal["other seeds", "same seeds"]
SELECTIONS: tuple[Selection, ...] = ("other seeds", "same seeds")

KINDS = {
    "baselines_best": "both at the baseline's best LR",
    "own_best": "each at its own best LR",
    "tuning": "what its own LR brings the variant",
}
"""Key -> words. The second difference is the first plus the third."""


@dataclass(frozen=True)
class FairRow:
    """One difference of one variant, in nats of held-out loss. A run that diverged counts as ln V."""

    curve: LrCurve
    selection: Selection
    kind: str
    comparison: Comparison
    rates: tuple[tuple[float, ...], tuple[float, ...]]
    """The learning rates, each once, of the subtracted side and of the other."""
    share: float = math.nan
    """Of the difference at own best rates, what tuning the variant makes; NaN without a verdict, or where it and what
    is left point to different sides."""


def chosen_rates(curve: LrCurve, selection: Selection) -> pd.Series:
    """The learning rate with the smallest mean loss for each seed that has all: over the other seeds, or over all.

    Empty where there are no other seeds.
    """
    losses = curve.complete
    if selection == "same seeds":
        return pd.Series(curve.best, losses.index)
    if len(losses) < 2:
        return pd.Series(dtype=float)
    return pd.Series({seed: best_rate(losses.drop(index=seed).mean()) for seed in losses.index})


def fair_rows(curves: Sequence[LrCurve], baseline: str) -> list[FairRow]:
    """All differences of every other variant from the baseline of its group; Holm within each selection and kind."""
    bases = {curve.group: curve for curve in curves if curve.variant == baseline}
    pairs = [(bases[c.group], c) for c in curves if c.variant != baseline and c.group in bases]
    rows: list[FairRow] = []
    for selection in SELECTIONS:
        own = {id(curve): chosen_rates(curve, selection) for pair in pairs for curve in pair}
        for kind in KINDS:
            sides = []
            for base, curve in pairs:
                first, theirs = (curve if kind == "tuning" else base), own[id(base)]
                sides.append((first, theirs, curve, theirs if kind == "baselines_best" else own[id(curve)]))
            judged = judge_family([_compared(*side) for side in sides])
            for (_, first_rates, curve, second_rates), found in zip(sides, judged, strict=True):
                if found.n:
                    rates = (tuple(sorted(set(first_rates))), tuple(sorted(set(second_rates))))
                    rows.append(FairRow(curve, selection, kind, found, rates))
    order = [id(curve) for _, curve in pairs]
    rows.sort(key=lambda row: (SELECTIONS.index(row.selection), order.index(id(row.curve))))
    return _with_shares(rows)


def fair_tuning_table(study: str, frame: pd.DataFrame, curves: Sequence[LrCurve], baseline: str) -> Document | None:
    """Lay :func:`fair_rows` out; None where no variant can be compared."""
    found = fair_rows(curves, baseline)
    if not found:
        return None
    groups = group_names(curves)
    batch = ["batch"] if len(groups) > 1 else []
    shown = table(
        (
            *("LR chosen on", *batch, "variant", "difference", "from\nLR", "to\nLR", "nats\n[95 % interval]"),
            *("perplexity", "Holm p", "verdict", "share of\ntuning"),
        ),
        [(row.selection, *(groups[row.curve.group] for _ in batch), row.curve.label, *_cells(row)) for row in found],
        n_words=3 + len(batch),
    )
    return of_one_table(
        "fair_tuning",
        f"{study}: how much of a difference is the learning rate",
        facts_of(frame, baseline),
        shown,
        pd.DataFrame.from_records([_record(row) for row in found]),
        _legend(baseline),
    )


def _compared(base: LrCurve, base_rates: pd.Series, curve: LrCurve, rates: pd.Series) -> Comparison:
    return paired_comparison(_losses_at(base, base_rates), _losses_at(curve, rates), lower_is_better=True)


def _losses_at(curve: LrCurve, rates: pd.Series) -> pd.Series:
    """The loss at each seed's learning rate, of the seeds that the curve has."""
    return pd.Series({s: curve.losses.at[s, r] for s, r in rates.items() if s in curve.losses.index}, dtype=float)


def _with_shares(rows: Sequence[FairRow]) -> list[FairRow]:
    means = {(r.curve.group, r.curve.variant, r.selection, r.kind): r.comparison.mean for r in rows}
    found = []
    for row in rows:
        if row.kind == "own_best" and row.comparison.verdict in ("better", "worse"):
            tuning = means[row.curve.group, row.curve.variant, row.selection, "tuning"]
            share = tuning / row.comparison.mean
            row = replace(row, share=share if 0 <= share <= 1 else math.nan)
        found.append(row)
    return found


def _cells(row: FairRow) -> tuple[str, ...]:
    found = row.comparison
    return (
        KINDS[row.kind],
        *(", ".join(map(learning_rate, used)) for used in row.rates),
        difference_and_interval(found, "nats"),
        f"{100 * math.expm1(found.mean):+.1f} %",
        p_value(found.p_adjusted),
        found.verdict or NOTHING,
        number(row.share, "percent"),
    )


def _record(row: FairRow) -> dict[str, object]:
    found = row.comparison
    return {
        "selection": row.selection,
        "group": row.curve.group,
        "batch_size": row.curve.batch_size,
        "variant": row.curve.variant,
        "label": row.curve.label,
        "kind": row.kind,
        "from_lr": " ".join(map(learning_rate, row.rates[0])),
        "to_lr": " ".join(map(learning_rate, row.rates[1])),
        "n_seeds": found.n,
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "resolvable": found.resolvable,
        "p": found.p,
        "p_holm": found.p_holm,
        "verdict": found.verdict or "",
        "share_of_tuning": row.share,
    }


def _legend(baseline: str) -> str:
    return (
        f"Held-out loss of the variant minus that of {baseline}, paired by seed; a run that diverged counts as ln V; p "
        "adjusted by Holm over the variants, separately for each kind of difference. Chosen on other seeds: the LR "
        "with the smallest mean loss over all seeds but the one it is judged on; on the same seeds: over all of them, "
        "which flatters whoever has more luck to choose from. What its own LR brings: the variant at its own best LR "
        f"minus itself at {baseline}'s. Share of tuning: that over the difference at own best LRs, where this has a "
        "verdict and both point to one side; the rest is the design's. Perplexity: the same as a change of exp(loss)."
    )
