"""The table of LR curves: how much each variant's loss depends on the learning rate, and where its best one lies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from gatebench.report.analysis.estimate import Estimate
from gatebench.report.analysis.lr_curves import (
    MIN_RATES,
    STABLE_SHARE,
    AgainstBaseline,
    LrCurve,
    against_baseline,
    group_names,
)
from gatebench.report.analysis.paper_tables import facts_of
from gatebench.report.tables.blocks import table
from gatebench.report.tables.document import Document, of_one_table
from gatebench.report.text import NOTHING, difference_and_interval, learning_rate, mean_and_interval, p_value


def lr_table(study: str, frame: pd.DataFrame, curves: Sequence[LrCurve], baseline: str) -> Document:
    """Lay the curves (``lr_curves`` of ``frame``) out, a row a variant, group by group."""
    compared = {(found.curve.group, found.curve.variant): found for found in against_baseline(curves, baseline)}
    pairs = [(curve, compared.get((curve.group, curve.variant))) for curve in curves]
    groups = group_names(curves)
    batch = ["batch"] if len(groups) > 1 else []
    shown = table(
        (
            *(*batch, "variant", "LR sensitivity\n(nats)", "difference\n[95 % interval]", "Holm p", "verdict"),
            *("best\nLR", "shift of the\nbest LR", "largest\nstable LR", "loss at best\n(nats)", "diverged"),
        ),
        [(*(groups[curve.group] for _ in batch), *_cells(curve, found)) for curve, found in pairs],
        n_words=1 + len(batch),
    )
    return of_one_table(
        "lr_sensitivity",
        f"{study}: loss over the learning rate",
        facts_of(frame, baseline),
        shown,
        pd.DataFrame.from_records([_record(*pair) for pair in pairs]),
        _legend(curves, baseline),
        _notes(curves),
    )


def _cells(curve: LrCurve, found: AgainstBaseline | None) -> tuple[str, ...]:
    sensitivity = Estimate.of(curve.sensitivity)
    loss = Estimate.of(curve.complete[curve.best] if len(curve.complete) else pd.Series(dtype=float))
    compared = found.sensitivity if found else None
    return (
        curve.label,
        mean_and_interval(sensitivity.mean, sensitivity.half_width, "nats"),
        difference_and_interval(compared, "nats") if compared else NOTHING,
        p_value(compared.p_adjusted if compared else None),
        (compared.verdict if compared else None) or NOTHING,
        learning_rate(curve.best) + (" (end)" if curve.at_edge else ""),
        _shift(found) if found else NOTHING,
        learning_rate(curve.largest_stable),
        mean_and_interval(loss.mean, loss.half_width, "nats"),
        f"{len(curve.diverged)} of {curve.losses.notna().to_numpy().sum()}",
    )


def _shift(found: AgainstBaseline) -> str:
    factor, low, high = found.shift
    if math.isnan(factor):
        return NOTHING
    return f"x {factor:.3g}" + ("" if math.isnan(low) else f" [{low:.3g}, {high:.3g}]")


def _record(curve: LrCurve, found: AgainstBaseline | None) -> dict[str, object]:
    sensitivity = Estimate.of(curve.sensitivity)
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
    rates = ", ".join(sorted({learning_rate(r) for curve in curves for r in curve.rates}, key=float))
    return (
        f"Held-out loss (mean over scored tokens) at learning rates {rates}. LR sensitivity (Wortsman et al. 2023): "
        "the mean over learning rates of min(loss, ln V) minus the smallest loss, at each seed; a run that diverged "
        f"counts as ln V; {MIN_RATES} rates or more. Differences are from {baseline}, paired by seed, p adjusted by "
        "Holm over the rows. Best LR: the smallest mean loss; (end): the first or last one tried, so that a better one "
        "may lie beyond. Its shift is between the lowest points of parabolas over log LR at each seed. Largest stable "
        f"LR: up to it, from the best one on, no seed diverges or loses {100 * STABLE_SHARE:.0f} % of what training "
        "gains (ln V minus the best loss)."
    )
