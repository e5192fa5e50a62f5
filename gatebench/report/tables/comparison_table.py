"""A comparison as a document: an overview, then a table, flags and sentences for each variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from gatebench.report.analysis.comparison import ComparisonTable, MetricRow, VariantComparison
from gatebench.report.analysis.flags import flag_text
from gatebench.report.analysis.stats import DESCRIPTIVE, NO_SINK, ONE_SEED
from gatebench.report.tables.blocks import Block, Cell, Column, Legend, Note, Notes, Sentences, Table, table
from gatebench.report.tables.comparison_sentences import sentences, signed
from gatebench.report.tables.document import Document
from gatebench.report.text import MAX_SEEDS_SHOWN, NOTHING, number, p_value

_SHORT_REASON = {ONE_SEED: "one seed", NO_SINK: "no sink"}
_NAME_WIDTH = 14


def document(found: ComparisonTable) -> Document:
    """Every variant against the baseline: the CSV has a row a variant and metric, ``difference_seed_<s>`` a seed."""
    several = len(found.variants) > 1
    blocks: list[Block] = [_overview(found)] if several else []
    for item in found.variants:
        blocks += [
            _table(found, item, f"{_name(item)} against {found.baseline_label}" if several else ""),
            Notes(tuple(Note(flag_text(flag), flag.blocking) for flag in item.flags)),
            Sentences(sentences(found, item)),
        ]
    what = f"{len(found.variants)} variants" if several else _name(found.variants[0])
    return Document(
        name="comparison",
        title=f"{what} against {found.baseline_label}",
        blocks=(*blocks, Legend(_legend(found), in_terminal=False)),
        facts=found.facts,
        frame=_frame(found),
        content={
            "schema": 1,
            "baseline": found.baseline,
            "baseline_label": found.baseline_label,
            "alpha": found.alpha,
            "facts": found.facts,
            "variants": [_content(found, item) for item in found.variants],
        },
    )


def _overview(found: ComparisonTable) -> Table:
    """The primary metric of every variant, a row each."""
    rows: list[list[str | Cell]] = [
        [
            item.name,
            str(item.primary.comparison.n),
            number(item.primary.baseline_mean, "perplexity"),
            number(item.primary.variant_mean, "perplexity"),
            _interval(item.primary),
            p_value(item.primary.comparison.p_adjusted),
            verdict_cell(item.primary),
        ]
        for item in found.variants
    ]
    interval = f"difference\n± {_level(found)} interval"
    return table(["", "seeds", "baseline", "variant", interval, "Holm p", _VERDICT], rows, title="Avg PPL")


def _table(found: ComparisonTable, item: VariantComparison, title: str) -> Table:
    """Every metric of one variant, a row each."""
    paired = item.primary.comparison.seeds or tuple(found.facts["seeds"])
    seeds = f"at seed {', '.join(map(str, paired))}" if len(paired) <= MAX_SEEDS_SHOWN else f"over {len(paired)} seeds"
    baseline = found.baseline if len(found.baseline) <= _NAME_WIDTH else "baseline"
    variant = item.name if len(item.name) <= _NAME_WIDTH else "variant"
    rows: list[list[str | Cell]] = [
        [
            row.metric.row_title,
            number(row.baseline_mean, row.metric.kind),
            number(row.variant_mean, row.metric.kind),
            _differences(row),
            _interval(row),
            p_value(row.comparison.p_adjusted),
            verdict_cell(row),
        ]
        for row in item.rows
    ]
    interval = f"mean\n± {_level(found)} interval"
    return table(["", baseline, variant, f"difference\n{seeds}", interval, "Holm p", _VERDICT], rows, title=title)


_VERDICT = Column("verdict", words=True)


def verdict_cell(row: MetricRow) -> Cell:
    """The verdict, or in a word why there is none; empty for a number that is reported without a test."""
    comparison = row.comparison
    if comparison.verdict is not None:
        return Cell(comparison.verdict, style=comparison.verdict)
    if comparison.reason == DESCRIPTIVE:
        return Cell("")
    if comparison.reason in _SHORT_REASON:
        return Cell(_SHORT_REASON[comparison.reason])
    return Cell(NOTHING if comparison.n == 0 else "blocked")


def _differences(row: MetricRow) -> str:
    differences, kind = row.comparison.differences, row.metric.kind
    if not differences or kind in ("count", "floor"):
        return NOTHING
    if len(differences) <= MAX_SEEDS_SHOWN:
        return ", ".join(signed(row, value) for value in differences)
    return f"{signed(row, min(differences))} .. {signed(row, max(differences))}"


def _interval(row: MetricRow) -> str:
    comparison, kind = row.comparison, row.metric.kind
    if kind == "floor":
        return NOTHING
    text = signed(row, comparison.mean)
    if kind in ("count", "speed"):
        base = comparison.baseline_mean
        return f"{text} ({100 * comparison.mean / base:+.2g} %)" if comparison.n and base else text
    if math.isfinite(comparison.low):
        text += f" ± {number((comparison.high - comparison.low) / 2, kind, like=row.variant_mean)}"
    return text


def _level(found: ComparisonTable) -> str:
    return f"{100 * (1 - found.alpha):.0f} %"


def _name(item: VariantComparison) -> str:
    return item.name if item.label == item.name else f"{item.label} ({item.name})"


def _legend(found: ComparisonTable) -> str:
    return (
        f"Differences are variant minus {found.baseline}, paired by seed; intervals and p from the paired t test, p "
        "adjusted by Holm over each family (Avg PPL; perplexity by domain; first-token share and M-Act). Lower is "
        "better for all tested metrics. The smallest difference that these seeds could have resolved is the "
        "half-width of the interval where a family has one test, and larger where it has more. Uniform floor: the "
        "first-token share of uniform causal attention, H_T/T. No sink: the baseline's share is under twice that floor."
    )


def _frame(found: ComparisonTable) -> pd.DataFrame:
    seeds: Sequence[int] = found.facts["seeds"]
    rows = []
    for item in found.variants:
        for row in item.rows:
            numbers = _numbers(row)
            numbers |= {key: numbers[key] or "" for key in ("family", "verdict", "reason")}
            differences = dict(zip(row.comparison.seeds, row.comparison.differences, strict=True))
            by_seed = {f"difference_seed_{seed}": differences.get(seed, math.nan) for seed in seeds}
            rows.append({"variant": item.name, "label": item.label, "baseline": found.baseline, **numbers, **by_seed})
    return pd.DataFrame.from_records(rows)


def _content(found: ComparisonTable, item: VariantComparison) -> dict[str, Any]:
    return {
        "variant": item.name,
        "label": item.label,
        "verdict": item.primary.comparison.verdict,
        "metrics": [
            {
                **_numbers(row),
                "seeds": row.comparison.seeds,
                "baseline_by_seed": row.comparison.baseline,
                "variant_by_seed": row.comparison.variant,
                "differences": row.comparison.differences,
            }
            for row in item.rows
        ],
        "flags": [asdict(flag) for flag in item.flags],
        "sentences": sentences(found, item),
        "equivalence": None if item.equivalence is None else asdict(item.equivalence),
    }


def _numbers(row: MetricRow) -> dict[str, Any]:
    comparison = row.comparison
    return {
        "metric": row.metric.key,
        "family": row.metric.family,
        "n_seeds": comparison.n,
        "baseline_mean": row.baseline_mean,
        "variant_mean": row.variant_mean,
        "floor": row.floor,
        "difference": comparison.mean,
        "low": comparison.low,
        "high": comparison.high,
        "resolvable": comparison.resolvable,
        "p": comparison.p,
        "p_sign_flip": comparison.p_flip,
        "p_holm": comparison.p_holm,
        "verdict": comparison.verdict,
        "reason": comparison.reason,
    }
