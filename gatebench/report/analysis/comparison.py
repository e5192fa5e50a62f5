"""The table of the main job: variants against their baseline, paired by seed, with a verdict where one is allowed.

:func:`compare` computes; ``rendering`` turns the result into a terminal table, Markdown, CSV and JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from rich.console import Group

from gatebench.config import SYNTHETIC_CORPORA
from gatebench.errors import UserError
from gatebench.report.analysis.flags import Flag, blocking_texts, comparison_flags
from gatebench.report.analysis.stats import (
    ALPHA,
    DESCRIPTIVE,
    NO_SINK,
    Comparison,
    Equivalence,
    equivalence,
    holm,
    judge,
    paired_comparison,
    within_family,
)
from gatebench.report.read.results import domains
from gatebench.report.tables import comparison_table as rendering
from gatebench.report.tables import text as wording

Family = Literal["primary", "domain", "probe"]
Kind = Literal[
    "perplexity", "bits", "nats", "share", "floor", "activation", "ratio", "score", "percent", "count", "speed"
]

SINK_EXCESS = 2.0
"""Below this multiple of the uniform floor the baseline has no sink that a gate could remove."""


@dataclass(frozen=True)
class Metric:
    """One row of the table: a column of ``results.load`` and how to read it."""

    column: str
    title: str
    kind: Kind
    family: Family | None
    """The family whose p values Holm adjusts together; None for a number that is reported without a test."""
    lower_is_better: bool = True
    floor: str | None = None
    """The column with the value that uniform causal attention would give."""


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
    sentences: tuple[str, ...]
    """The verdict in plain words, what could have been resolved, and what these runs cannot say."""
    equivalence: Equivalence | None = None
    """Whether Avg PPL is shown to be the baseline's within a margin; None where nobody asked."""

    def row(self, column: str) -> MetricRow:
        """The row of one metric, by its column name."""
        return next(row for row in self.rows if row.metric.column == column)

    @property
    def primary(self) -> MetricRow:
        """The Avg PPL row."""
        return self.row("avg_ppl")


@dataclass(frozen=True)
class ComparisonTable:
    """What :func:`compare` found; the methods give it in the forms that people and programs read."""

    baseline: str
    baseline_label: str
    facts: Mapping[str, Any]
    """Recipe, scale, tokens, corpus, seeds, BOS, context, precision, device, commit: what every number depends on."""
    alpha: float
    variants: tuple[VariantComparison, ...]

    def to_rich(self) -> Group:
        """For a terminal of 100 columns or more; print it with a ``rich.console.Console``."""
        return rendering.to_rich(self)

    def to_markdown(self) -> str:
        """One Markdown document with a table a variant."""
        return rendering.to_markdown(self)

    def to_frame(self) -> pd.DataFrame:
        """A row a variant and metric, every number unrounded, a column ``difference_seed_<s>`` a seed."""
        return rendering.to_frame(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is None."""
        return rendering.to_dict(self)

    def to_json(self) -> str:
        """:meth:`to_dict` as text."""
        return rendering.to_json(self)

    def write(self, directory: str | Path, stem: str = "comparison") -> list[Path]:
        """Write ``stem``.md, .csv and .json into ``directory``; the same runs give the same bytes."""
        return rendering.write(self, Path(directory), stem)


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
    metrics = table_metrics(runs)
    flags = {name: tuple(comparison_flags(by_seed[baseline], by_seed[name], name)) for name in variants}
    base = {metric: _usable(by_seed[baseline], metric.column) for metric in metrics}
    rows = {name: [_row(metric, base[metric], by_seed[name], alpha) for metric in metrics] for name in variants}
    judged = _judged(rows, flags)
    facts = run_facts(runs, by_seed[baseline])
    found = []
    for name in variants:
        item = VariantComparison(name, labels.get(name, name), tuple(judged[name]), flags[name], sentences=())
        item = replace(item, equivalence=_equivalence(item, margin))
        words = wording.sentences(item, baseline, facts, alpha, SINK_EXCESS)
        found.append(replace(item, sentences=tuple(words)))
    return ComparisonTable(
        baseline=baseline,
        baseline_label=labels.get(baseline, baseline),
        facts=facts,
        alpha=alpha,
        variants=tuple(found),
    )


def _equivalence(item: VariantComparison, margin: float | None) -> Equivalence | None:
    """The test of Avg PPL within ``margin`` of the baseline's; None where nobody asked or a flag blocks."""
    primary = item.primary.comparison
    if margin is None or primary.n == 0 or any(flag.blocking for flag in item.flags):
        return None
    return equivalence(primary, margin * abs(primary.baseline_mean))


def table_metrics(frame: pd.DataFrame) -> list[Metric]:
    """The rows of the table for these runs, in printing order. Gate rows only when some run has a gate."""
    metrics = [Metric("avg_ppl", "Avg PPL", "perplexity", "primary")]
    if is_synthetic(frame):  # one domain, no bytes, and a floor that is known
        metrics += [
            Metric("excess_loss", "Excess loss (nats)", "nats", None),
            Metric("excess_loss_copy", "  on copies", "nats", None),
            Metric("excess_loss_other", "  elsewhere", "nats", None),
            Metric("copy_accuracy", "Copy accuracy", "percent", None, lower_is_better=False),
            Metric("entropy_floor", "Entropy floor (nats)", "floor", None),
        ]
    else:
        metrics += [Metric(f"ppl/{name}", f"PPL {name}", "perplexity", "domain") for name in domains(frame)]
        metrics.append(Metric("avg_bpb", "Bits per byte", "bits", None))
    metrics += [
        Metric("first_token_share", "First-token share", "share", "probe", floor="first_token_floor"),
        Metric("first_token_floor", "  uniform floor", "floor", None),
        Metric("first_token_excess", "  times the floor", "ratio", None),
        Metric("first_token_share_excl", "  without query 0", "share", None, floor="first_token_floor_excl"),
        Metric("m_act", "M-Act", "activation", "probe"),
    ]
    if frame["gate_mean"].notna().any():
        metrics += [
            Metric("gate_mean", "Gate mean", "score", None),
            Metric("gate_closed", "  closed (< 0.1)", "percent", None),
            Metric("gate_open", "  open (> 0.9)", "percent", None),
            Metric("gate_abs_logit", "  mean |logit|", "ratio", None),
        ]
    metrics += [
        Metric("final_train_loss", "Training loss", "bits", None),
        Metric("n_params", "Parameters", "count", None),
        Metric("tokens_per_s", "Tokens/s", "speed", None, lower_is_better=False),
    ]
    return metrics


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
    ours = _usable(variant, metric.column)
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


def _judged(rows: dict[str, list[MetricRow]], flags: Mapping[str, Sequence[Flag]]) -> dict[str, list[MetricRow]]:
    """Adjust the p values by family over all variants that nothing blocks, then give the verdicts."""
    families: dict[Family, list[tuple[str, int]]] = {"primary": [], "domain": [], "probe": []}
    blocked = {name: blocking_texts(found) for name, found in flags.items()}
    for name, found in rows.items():
        for index, row in enumerate(found):
            if row.metric.family is not None and not blocked[name] and not _without_sink(row):
                families[row.metric.family].append((name, index))
    adjusted: dict[tuple[str, int], float] = {}
    n_tests: dict[tuple[str, int], int] = {}
    for members in families.values():
        values = holm([rows[name][index].comparison.p for name, index in members])
        adjusted.update(zip(members, values, strict=True))
        n_tests.update(dict.fromkeys(members, max(1, sum(not math.isnan(value) for value in values))))

    def decided(name: str, index: int, row: MetricRow) -> MetricRow:
        if row.metric.family is None:
            return replace(row, comparison=replace(row.comparison, reason=DESCRIPTIVE))
        p = adjusted.get((name, index), math.nan)
        if _without_sink(row) and not blocked[name]:
            return replace(row, comparison=replace(row.comparison, reason=NO_SINK))
        comparison = within_family(row.comparison, n_tests.get((name, index), 1))
        return replace(row, comparison=judge(comparison, p, blocked[name]))

    return {name: [decided(name, i, row) for i, row in enumerate(found)] for name, found in rows.items()}


def _without_sink(row: MetricRow) -> bool:
    """Whether the baseline's share is so near the floor that falling further is no improvement."""
    return row.metric.floor is not None and row.baseline_mean < SINK_EXCESS * row.floor


def run_facts(runs: pd.DataFrame, baseline: pd.DataFrame) -> dict[str, Any]:
    """What a header states of a table's runs and those of its baseline.

    A list where the runs differ, so that nothing is hidden by taking the first.
    """
    done = runs[runs["status"] == "done"]

    def one_or_all(column: str, shown: Callable[[Any], Any] = lambda value: value) -> Any:
        source = done if len(done) else runs
        values = [shown(value) for value in sorted(source[column].dropna().unique().tolist())]
        return values[0] if len(values) == 1 else values

    def whole(value: Any) -> Any:
        return int(value)

    return {
        "recipe": one_or_all("recipe"),
        "overrides": str(runs["overrides"].iloc[0]),
        "param_match": one_or_all("param_match"),
        "n_params": int(baseline["n_params"].iloc[0]) if len(baseline) else one_or_all("n_params_baseline", whole),
        "tokens": one_or_all("tokens", whole),
        "steps": one_or_all("steps", whole),
        "corpus": one_or_all("corpus"),
        "corpus_fingerprint": one_or_all("corpus_fingerprint"),
        "vocab_size": one_or_all("vocab_size", whole),
        "seeds": sorted(int(seed) for seed in runs["seed"].unique()),
        "bos": one_or_all("bos"),
        "seq_len": one_or_all("seq_len", whole),
        "eval_seq_len": one_or_all("eval_seq_len", whole),
        "eval_tokens": _eval_tokens(done),
        "probe_tokens": one_or_all("probe_tokens", whole),
        "precision": one_or_all("precision"),
        "compiled": one_or_all("compiled"),
        "device": one_or_all("device"),
        "threads": one_or_all("threads", whole),
        "n_devices": one_or_all("n_devices", whole),
        "machine": one_or_all("machine"),
        "git_commit": one_or_all("git_commit"),
        "git_dirty": bool(runs["git_dirty"].any()),
        "torch_version": one_or_all("torch_version"),
        "gatebench_version": one_or_all("gatebench_version"),
    }


def _eval_tokens(done: pd.DataFrame) -> int | None:
    columns = [name for name in done.columns if str(name).startswith("eval_tokens/")]
    if not columns or not len(done):
        return None
    return int(done[columns].sum(axis=1).max())
