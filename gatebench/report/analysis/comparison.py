"""The table of the main job: variants against their baseline, paired by seed, with a verdict where one is allowed.

:func:`compare` computes; ``tables.comparison_table`` says in words and prints what it found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from gatebench import metrics
from gatebench.config import SYNTHETIC_CORPORA
from gatebench.errors import UserError
from gatebench.metrics import Metric
from gatebench.report.analysis.flags import Flag, blocking_texts, comparison_flags
from gatebench.report.analysis.stats import (
    ALPHA,
    DESCRIPTIVE,
    NO_SINK,
    Comparison,
    Equivalence,
    equivalence,
    judge_family,
    paired_comparison,
)
from gatebench.report.read.results import domains

SINK_EXCESS = 2.0
"""Below this multiple of the uniform floor the baseline has no sink that a gate could remove."""

SYNTHETIC_ROWS = ("excess_loss", "excess_loss_copy", "excess_loss_other", "copy_accuracy", "entropy_floor")
"""In place of perplexity by domain and bits per byte: one domain, no bytes, and a floor that is known."""
PROBE_ROWS = (
    *("first_token_share", "first_token_floor", "first_token_excess", "first_token_share_excl", "m_act"),
    *("gate_mean", "gate_closed", "gate_open", "gate_abs_logit"),
)
FACTS = (
    *("recipe", "overrides", "param_match", "n_params", "tokens", "steps", "corpus", "corpus_fingerprint"),
    *("vocab_size", "seeds", "bos", "seq_len", "eval_seq_len", "eval_tokens", "probe_tokens", "precision", "compiled"),
    *("device", "threads", "n_devices", "machine", "git_commit", "git_dirty", "torch_version", "gatebench_version"),
)
"""What every number depends on."""
TRAINING_ROWS = ("final_train_loss", "n_params", "tokens_per_s")


@dataclass(frozen=True)
class MetricRow:
    """One metric of one variant. The means are over the paired seeds, or over a side's own seeds without pairs."""

    metric: Metric
    baseline_mean: float
    variant_mean: float
    floor: float
    """NaN for a metric without a floor."""
    comparison: Comparison


@dataclass(frozen=True)
class VariantComparison:
    """One variant against the baseline."""

    name: str
    label: str
    rows: tuple[MetricRow, ...]
    flags: tuple[Flag, ...]
    equivalence: Equivalence | None = None
    """Whether Avg PPL is shown to be the baseline's within a margin; None where nobody asked."""

    def row(self, column: str) -> MetricRow:
        """The row of one metric, by its column name."""
        return next(row for row in self.rows if row.metric.key == column)

    @property
    def primary(self) -> MetricRow:
        """The Avg PPL row."""
        return self.row("avg_ppl")


@dataclass(frozen=True)
class ComparisonTable:
    """What :func:`compare` found."""

    baseline: str
    baseline_label: str
    facts: Mapping[str, Any]
    """Recipe, scale, tokens, corpus, seeds, BOS, context, precision, device, commit: what every number depends on."""
    alpha: float
    variants: tuple[VariantComparison, ...]


def compare(
    frame: pd.DataFrame,
    baseline: str,
    variants: Sequence[str],
    labels: Mapping[str, str] | None = None,
    *,
    alpha: float = ALPHA,
    margin: float | None = None,
) -> ComparisonTable:
    """Compare ``variants`` with ``baseline`` over the runs in ``frame`` (from ``results.load``), paired by seed.

    ``labels`` gives the words to print for a variant's name. ``margin`` (0.01 for 1 % of the baseline's Avg PPL) asks
    for an equivalence test of Avg PPL, for whoever wants to say that a variant changes nothing. Holm's adjustment is
    made in three families over all variants given: Avg PPL; perplexity by domain; the probes (first-token share and
    M-Act).

    Raises :class:`UserError` when a variant has no finished run, when the frame mixes recipes or overrides, and when
    it has two runs of one variant at one seed.
    """
    labels = labels or {}
    runs = _checked(frame, baseline, variants)
    texts = [name for name, dtype in runs.dtypes.items() if isinstance(dtype, pd.StringDtype)]
    runs = runs.assign(**{str(name): runs[name].astype(object) for name in texts})  # rows are read from these faster
    by_seed = {name: runs[runs["variant"] == name].set_index("seed", drop=False) for name in (baseline, *variants)}
    shown = table_metrics(runs)
    flags = {name: tuple(comparison_flags(by_seed[baseline], by_seed[name], name)) for name in variants}
    base = {metric: _usable(by_seed[baseline], metric.key) for metric in shown}
    rows = {name: [_row(metric, base[metric], by_seed[name], alpha) for metric in shown] for name in variants}
    judged = _judged(rows, flags)
    found = [VariantComparison(name, labels.get(name, name), tuple(judged[name]), flags[name]) for name in variants]
    return ComparisonTable(
        baseline=baseline,
        baseline_label=labels.get(baseline, baseline),
        facts=run_facts(runs, by_seed[baseline]),
        alpha=alpha,
        variants=tuple(replace(item, equivalence=_equivalence(item, margin)) for item in found),
    )


def _equivalence(item: VariantComparison, margin: float | None) -> Equivalence | None:
    """The test of Avg PPL within ``margin`` of the baseline's; None where nobody asked or a flag blocks."""
    primary = item.primary.comparison
    if margin is None or primary.n == 0 or any(flag.blocking for flag in item.flags):
        return None
    return equivalence(primary, margin * abs(primary.baseline_mean))


def table_metrics(frame: pd.DataFrame) -> list[Metric]:
    """The rows of the table for these runs, in printing order.

    Gate rows only when some run has a gate; likewise those of probes that runs made before the probe was there lack.
    """
    of_the_data = SYNTHETIC_ROWS if is_synthetic(frame) else (*(f"ppl/{name}" for name in domains(frame)), "avg_bpb")
    newer = [metric.key for metric in metrics.measured("probe") if metric.in_summary and not metric.in_frames]
    rows = [metrics.get(key) for key in ("avg_ppl", *of_the_data, *PROBE_ROWS, *newer, *TRAINING_ROWS)]
    optional = {*newer, *(row.key for row in rows if row.where == "gate")}
    return [row for row in rows if row.key not in optional or (row.key in frame and frame[row.key].notna().any())]


def is_synthetic(frame: pd.DataFrame) -> bool:
    """Whether the runs read data whose true distribution is known (docs/sinks.md), and not text."""
    return "excess_loss" in frame and bool(frame["corpus"].isin(SYNTHETIC_CORPORA).all())


def _checked(frame: pd.DataFrame, baseline: str, variants: Sequence[str]) -> pd.DataFrame:
    if not variants:
        raise UserError("compare: no variants given; legal is one or more names other than the baseline's")
    if baseline in variants:
        raise UserError(f"compare: {baseline} is the baseline; legal is a variant other than it")
    repeated = sorted({name for name in variants if list(variants).count(name) > 1})
    if repeated:
        raise UserError(f"compare: {', '.join(repeated)} given twice; legal is each variant once")
    present = sorted(frame["variant"].unique())
    for name in variants:
        if name not in present:
            raise UserError(f"compare: no finished run of {name}; there are runs of {', '.join(present) or 'nothing'}")
    runs = frame[frame["variant"].isin([baseline, *variants])]
    for column in ("recipe", "overrides"):
        values = sorted(runs[column].unique())
        if len(values) > 1:
            listed = ", ".join(repr(value) for value in values)
            raise UserError(f"compare: the runs differ in {column} ({listed}); legal is one {column} in a comparison")
    twice = runs[runs.duplicated(["variant", "seed"], keep=False)]
    if len(twice):
        first = twice.iloc[0]
        same = twice[(twice["variant"] == first["variant"]) & (twice["seed"] == first["seed"])]
        names = ", ".join(same["run"])
        where = f"{first['variant']} at seed {first['seed']}"
        raise UserError(f"compare: {len(same)} runs of {where} ({names}); legal is one")
    return runs


def _row(metric: Metric, theirs: pd.Series, variant: pd.DataFrame, alpha: float) -> MetricRow:
    """``theirs`` is the baseline's metric by seed."""
    ours = _usable(variant, metric.key)
    comparison = paired_comparison(theirs, ours, lower_is_better=metric.lower_is_better, alpha=alpha)
    paired = comparison.n > 0
    return MetricRow(
        metric=metric,
        baseline_mean=comparison.baseline_mean if paired else float(theirs.mean()),
        variant_mean=comparison.variant_mean if paired else float(ours.mean()),
        floor=float(variant[metric.floor].mean()) if metric.floor else math.nan,
        comparison=comparison,
    )


def _usable(runs: pd.DataFrame, column: str) -> pd.Series:
    """A metric by seed, without the runs that diverged: a result, but not one with a number."""
    values = runs[column].astype("float64")
    return values.where(runs["status"] == "done").dropna()


def _judged(rows: Mapping[str, list[MetricRow]], flags: Mapping[str, Sequence[Flag]]) -> dict[str, list[MetricRow]]:
    """Adjust the p values by family over all variants that nothing blocks, then give the verdicts."""
    judged = {
        name: [replace(row, comparison=replace(row.comparison, reason=DESCRIPTIVE)) for row in found]
        for name, found in rows.items()
    }
    blocked = {name: blocking_texts(found) for name, found in flags.items()}
    for family in ("primary", "domain", "probe"):
        members = [(name, i) for name in rows for i, row in enumerate(rows[name]) if row.metric.family == family]
        tested = [rows[name][i] for name, i in members]
        without_sink = [[NO_SINK] if _without_sink(row) else [] for row in tested]
        reasons = [blocked[name] or why for (name, _), why in zip(members, without_sink, strict=True)]
        found = judge_family([row.comparison for row in tested], reasons)
        for (name, i), row, comparison in zip(members, tested, found, strict=True):
            judged[name][i] = replace(row, comparison=comparison)
    return judged


def _without_sink(row: MetricRow) -> bool:
    """Whether the baseline's share is so near the floor that falling further is no improvement."""
    return row.metric.floor is not None and row.baseline_mean < SINK_EXCESS * row.floor


def run_facts(runs: pd.DataFrame, baseline: pd.DataFrame) -> dict[str, Any]:
    """What a header states of a table's runs and those of its baseline.

    A list where the runs differ, so that nothing is hidden by taking the first.
    """
    done = runs[runs["status"] == "done"]

    def one_or_all(column: str) -> Any:
        values = sorted((done if len(done) else runs)[column].dropna().unique().tolist())
        values = [int(value) if isinstance(value, float) else value for value in values]  # counts, beside a NaN
        return values[0] if len(values) == 1 else values

    known = {
        "overrides": str(runs["overrides"].iloc[0]),
        "n_params": int(baseline["n_params"].iloc[0]) if len(baseline) else one_or_all("n_params_baseline"),
        "seeds": sorted(int(seed) for seed in runs["seed"].unique()),
        "eval_tokens": _eval_tokens(done),
        "git_dirty": bool(runs["git_dirty"].any()),
    }
    return {key: known[key] if key in known else one_or_all(key) for key in FACTS}


def _eval_tokens(done: pd.DataFrame) -> int | None:
    columns = [name for name in done.columns if str(name).startswith("eval_tokens/")]
    if not columns or not len(done):
        return None
    return int(done[columns].sum(axis=1).max())
