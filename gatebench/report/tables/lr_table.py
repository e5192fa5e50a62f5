"""The table of LR curves: how much each variant's loss depends on the learning rate, and where its best one lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from gatebench.report.analysis.lr_curves import MIN_RATES, STABLE_SHARE, LrCurve
from gatebench.report.analysis.stats import Comparison, judge_family, paired_comparison
from gatebench.report.tables.paper_table import Estimate
from gatebench.report.tables.paper_tables import facts_of
from gatebench.report.tables.text import NOTHING, mean_and_interval, number, p_value
from gatebench.report.tables.text_table import TextTable


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


def lr_table(study: str, frame: pd.DataFrame, curves: Sequence[LrCurve], baseline: str) -> TextTable:
    """Lay the curves (``lr_curves`` of ``frame``) out, a row a variant, group by group."""
    compared = {(found.curve.group, found.curve.variant): found for found in against_baseline(curves, baseline)}
    groups = group_names(curves)
    rows, records = [], []
    for curve in curves:
        found = compared.get((curve.group, curve.variant))
        rows.append(
            (
                *([groups[curve.group]] if len(groups) > 1 else []),
                *(curve.label, *_sensitivity_cells(curve, found), *_rate_cells(curve, found)),
            )
        )
        records.append(_record(curve, found))
    return TextTable(
        name="lr_sensitivity",
        title=f"{study}: loss over the learning rate",
        facts=facts_of(frame, baseline),
        columns=(
            *(["batch"] if len(groups) > 1 else []),
            *("variant", "LR sensitivity\n(nats)", "difference\n[95 % interval]", "Holm p", "verdict"),
            *("best\nLR", "shift of the\nbest LR", "largest\nstable LR", "loss at best\n(nats)", "diverged"),
        ),
        rows=tuple(rows),
        frame=pd.DataFrame.from_records(records),
        legend=_legend(curves, baseline),
        n_words=2 if len(groups) > 1 else 1,
        notes=tuple(_notes(curves)),
    )


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


def difference_and_interval(found: Comparison, kind: str) -> str:
    """-0.0200 [-0.0300, -0.0100], the interval of two seeds or more."""
    text = number(found.mean, kind, signed=True)
    if math.isnan(found.low):
        return text
    return f"{text} [{number(found.low, kind, signed=True)}, {number(found.high, kind, signed=True)}]"


def rate(value: float) -> str:
    """A learning rate: 0.003, 1.2e-05."""
    return NOTHING if math.isnan(value) else f"{value:.3g}"


def _sensitivity_cells(curve: LrCurve, found: AgainstBaseline | None) -> tuple[str, ...]:
    estimate = _estimate(curve.sensitivity)
    own = mean_and_interval(estimate.mean, estimate.half_width, "nats")
    if found is None:
        return own, NOTHING, NOTHING, NOTHING
    compared = found.sensitivity
    difference = difference_and_interval(compared, "nats")
    return own, difference, p_value(compared.p_adjusted), compared.verdict or NOTHING


def _rate_cells(curve: LrCurve, found: AgainstBaseline | None) -> tuple[str, ...]:
    best = rate(curve.best) + (" (end)" if curve.at_edge else "")
    loss = _estimate(curve.complete[curve.best] if len(curve.complete) else pd.Series(dtype=float))
    n_runs = int(curve.losses.notna().to_numpy().sum())
    return (
        best,
        NOTHING if found is None else _shift(found),
        rate(curve.largest_stable),
        mean_and_interval(loss.mean, loss.half_width, "nats"),
        f"{len(curve.diverged)} of {n_runs}",
    )


def _shift(found: AgainstBaseline) -> str:
    factor, low, high = found.shift
    if math.isnan(factor):
        return NOTHING
    return f"x {factor:.3g}" + ("" if math.isnan(low) else f" [{low:.3g}, {high:.3g}]")


def _estimate(by_seed: pd.Series) -> Estimate:
    return Estimate(dict(zip(map(int, by_seed.index), map(float, by_seed), strict=True)))


def _record(curve: LrCurve, found: AgainstBaseline | None) -> dict[str, object]:
    sensitivity = _estimate(curve.sensitivity)
    record: dict[str, object] = {
        "group": curve.group,
        "batch_size": curve.batch_size,
        "variant": curve.variant,
        "label": curve.label,
        "n_seeds": sensitivity.n,
        "n_rates": len(curve.rates),
        "loss_0": curve.ceiling,
        "sensitivity": sensitivity.mean,
        "sensitivity_half_width": sensitivity.half_width,
        "best_lr": curve.best,
        "best_at_end": curve.at_edge,
        "largest_stable_lr": curve.largest_stable,
        "n_diverged": len(curve.diverged),
    }
    for name in ("sensitivity", "optimum"):
        compared = None if found is None else getattr(found, name)
        for key in ("mean", "low", "high", "p", "p_holm"):
            record[f"{name}_difference_{key}"] = math.nan if compared is None else getattr(compared, key)
    record["sensitivity_verdict"] = "" if found is None else found.sensitivity.verdict or ""
    record |= {f"sensitivity_seed_{seed}": value for seed, value in sensitivity.by_seed.items()}
    record |= {f"optimum_seed_{seed}": value for seed, value in curve.optima.items()}
    record |= {f"loss_at_{r:g}": curve.losses[r].mean() for r in curve.rates}
    return record


def _notes(curves: Sequence[LrCurve]) -> list[str]:
    notes = []
    for curve in curves:
        if lacking := sorted(set(curve.losses.index) - set(curve.complete.index)):
            notes.append(f"{curve.label} lacks a learning rate at seed {', '.join(map(str, lacking))}, left out here")
    return notes


def _legend(curves: Sequence[LrCurve], baseline: str) -> str:
    rates = ", ".join(sorted({rate(r) for curve in curves for r in curve.rates}, key=float))
    return (
        f"Held-out loss (mean over scored tokens) at learning rates {rates}. LR sensitivity (Wortsman et al. 2023): "
        "the mean over learning rates of min(loss, ln V) minus the smallest loss, at each seed; a run that diverged "
        f"counts as ln V; {MIN_RATES} rates or more. Differences are from {baseline}, paired by seed, p adjusted by "
        "Holm over the rows. Best LR: the smallest mean loss; (end): the first or last one tried, so that a better one "
        "may lie beyond. Its shift is between the lowest points of parabolas over log LR at each seed. Largest stable "
        f"LR: up to it, from the best one on, no seed diverges or loses {100 * STABLE_SHARE:.0f} % of what training "
        "gains (ln V minus the best loss)."
    )
