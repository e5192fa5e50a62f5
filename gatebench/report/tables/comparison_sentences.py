"""What a comparison says about one variant, in plain words, a sentence or two each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gatebench.config import SYNTHETIC_CORPORA
from gatebench.report.analysis.comparison import SINK_EXCESS, ComparisonTable, MetricRow, VariantComparison
from gatebench.report.analysis.flags import blocking_texts
from gatebench.report.analysis.stats import NO_SPREAD, Comparison, seeds_to_resolve
from gatebench.report.text import MAX_SEEDS_SHOWN, NOTHING, listing, number, p_value, scale


def sentences(table: ComparisonTable, item: VariantComparison) -> tuple[str, ...]:
    """The verdict on one variant of the table, what could have been resolved, and what these runs cannot say."""
    return tuple(_sentences(table, item))


def _sentences(table: ComparisonTable, item: VariantComparison) -> Iterator[str]:
    comparison, baseline = item.primary.comparison, table.baseline
    yield _verdict_sentence(item, baseline, table.alpha)
    if 2 <= comparison.n <= MAX_SEEDS_SHOWN:
        pairs = zip(comparison.seeds, comparison.differences, strict=True)
        listed = ", ".join(f"{signed(item.primary, value)} at seed {seed}" for seed, value in pairs)
        yield f"Pair by pair: {listed}."
    if comparison.n >= 2 and comparison.resolvable > 0:
        yield _resolution_sentence(item)
        yield _check_sentence(comparison)
    if item.equivalence is not None:
        yield _equivalence_sentence(item, baseline)
    if by_domain := _domain_sentence(item):
        yield by_domain
    if sinks := _sink_sentence(item, baseline, table.facts):
        yield sinks


def _verdict_sentence(item: VariantComparison, baseline: str, alpha: float) -> str:
    row, comparison = item.primary, item.primary.comparison
    if blocking := blocking_texts(item.flags):
        return f"No verdict on {item.name}: {'; '.join(blocking)}."
    ours, theirs = number(row.variant_mean, "perplexity"), number(row.baseline_mean, "perplexity")
    difference = signed(row, comparison.mean)
    measured = f"Avg PPL {ours} against {theirs}, a difference of {difference} ({_percent(comparison)})"
    if comparison.n == 0:
        return f"No verdict on {item.name}: no seed has both an Avg PPL of {item.name} and one of {baseline}."
    if comparison.n == 1:
        return f"No verdict on {item.name}: one seed gives none. {measured} at seed {comparison.seeds[0]}."
    if comparison.reason == NO_SPREAD:
        return f"No verdict on {item.name}: {NO_SPREAD}. {measured}."
    interval = (
        f"{100 * (1 - alpha):.0f} % interval {signed(row, comparison.low)} to "
        f"{signed(row, comparison.high)}, "
        f"{comparison.n} seeds, Holm p {p_value(comparison.p_adjusted)}"
    )
    if comparison.verdict == "not resolvable":
        return f"These runs cannot tell {item.name} from {baseline}: {measured}; {interval}."
    return f"{item.name} is {comparison.verdict} than {baseline}: {measured}; {interval}."


def _resolution_sentence(item: VariantComparison) -> str:
    comparison = item.primary.comparison
    smallest = number(comparison.resolvable, "perplexity", like=item.primary.variant_mean)
    share = 100 * comparison.resolvable / abs(comparison.baseline_mean)
    family = f" in a family of {comparison.n_tests} tests, whatever the others show,"
    text = (
        f"The smallest Avg PPL difference that these {comparison.n} seeds could have resolved"
        f"{family if comparison.n_tests > 1 else ''} is {smallest} ({share:.2g} %)"
    )
    needed = seeds_to_resolve(comparison) if comparison.verdict == "not resolvable" else None
    if needed is not None and needed > comparison.n:
        text += f"; at the spread seen, a difference as large as the one measured would take about {needed} seeds"
    return text + "."


def _check_sentence(comparison: Comparison) -> str:
    """What a test says that does not assume normal differences, and how little it can say."""
    least = 2 / 2**comparison.n
    floor = f" (no p below {p_value(least)} is possible with {comparison.n} seeds)" if least > 0.005 else ""
    return (
        f"Sign-flip check: unadjusted p {p_value(comparison.p_flip)}{floor}; the t test's is {p_value(comparison.p)}."
    )


def _equivalence_sentence(item: VariantComparison, baseline: str) -> str:
    found = item.equivalence
    assert found is not None
    margin = number(found.margin, "perplexity", like=item.primary.variant_mean)
    share = 100 * found.margin / abs(item.primary.comparison.baseline_mean)
    words = "is shown to be" if found.shown else "is not shown to be"
    return (
        f"Equivalence: {item.name} {words} within ±{margin} ({share:.2g} %) of {baseline}'s Avg PPL "
        f"(two one-sided t tests, p {p_value(found.p)})."
    )


def _domain_sentence(item: VariantComparison) -> str | None:
    by_verdict: dict[str, list[str]] = {}
    for row in item.rows:
        if row.metric.family == "domain" and row.comparison.verdict is not None:
            by_verdict.setdefault(row.comparison.verdict, []).append(row.metric.key.removeprefix("ppl/"))
    if not by_verdict:
        return None
    parts = []
    total = sum(len(names) for names in by_verdict.values())
    for word in ("better", "worse", "not resolvable"):
        names = by_verdict.get(word, [])
        if names:
            parts.append(f"{word} in " + (f"all {total}" if len(names) == total and total > 1 else listing(names)))
    return f"By domain: {'; '.join(parts)}."


def _sink_sentence(item: VariantComparison, baseline: str, facts: Mapping[str, Any]) -> str | None:
    row = item.row("first_token_share")
    if not row.baseline_mean < SINK_EXCESS * row.floor:
        return None
    tokens = facts["tokens"]
    text = (
        f"Sinks: {baseline}'s first-token share is {row.baseline_mean / row.floor:.2f} times the floor of uniform "
        f"attention, so there is no sink here that a gate could remove, and these runs say nothing about sinks"
    )
    on_text = facts["corpus"] not in SYNTHETIC_CORPORA
    if on_text and isinstance(tokens, int) and tokens < 1e8:
        text += f"; at under 10^8 tokens (here {scale(tokens)}) real text usually grows none"
    return text + "."


def signed(row: MetricRow, value: float) -> str:
    """A difference of the row's metric, with its sign."""
    return number(value, row.metric.kind, signed=True, like=row.variant_mean)


def _percent(comparison: Comparison) -> str:
    if not comparison.baseline_mean:
        return NOTHING
    share = 100 * comparison.mean / abs(comparison.baseline_mean)
    return f"{share:+.1f} %" if abs(share) >= 1 else f"{share:+.2f} %"
