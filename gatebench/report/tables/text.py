"""Numbers and verdicts in words: how each kind of value is written, and the sentences under a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gatebench.config import SYNTHETIC_CORPORA
from gatebench.report.analysis.flags import flag_text, seed_text
from gatebench.report.analysis.stats import NO_SPREAD, Comparison, seeds_to_resolve

if TYPE_CHECKING:
    from gatebench.report.analysis.comparison import MetricRow, VariantComparison

MAX_SEEDS_SHOWN = 4
"""With more seeds a cell shows the range of the differences; CSV and JSON always have each."""

NOTHING = "-"
"""What stands where there is no number, as in the paper's tables."""

LEAST_DIGITS = 2
"""Significant digits that a number keeps where its decimals would leave fewer."""

_DECIMALS = {"bits": 4, "nats": 4, "share": 4, "floor": 4, "activation": 1, "score": 3, "ratio": 2, "points": 2}


def number(
    value: float, kind: str, *, signed: bool = False, like: float | None = None, decimals: int | None = None
) -> str:
    """A value of a metric's kind as text; "-" for NaN. A difference gets the decimals of ``like``, the value itself.

    ``decimals`` stand in place of those of a kind that has some.
    """
    if not math.isfinite(value):
        return NOTHING
    sign = "+" if signed else ""
    if kind == "percent":
        return f"{100 * value:{sign}.1f} %"
    if kind in ("count", "speed"):
        return f"{value:{sign},.0f}"
    if kind == "millions":  # 201, 1.6, 0.0023
        return f"{value:{sign}.{0 if abs(value) >= 10 else 2}{'f' if abs(value) >= 10 else 'g'}}"
    if kind == "size":
        return f"{value:.0f}"
    if kind == "yes or no":
        return "true" if value else "false"
    decimals = _DECIMALS.get(kind) if decimals is None else decimals
    if decimals is None:
        decimals = 3 if abs(value if like is None else like) < 10 else 2
    return f"{value:{sign},.{decimals}f}"


def mean_and_interval(mean: float, half_width: float, kind: str) -> str:
    """4.2800 ± 0.0120, the latter of two seeds or more."""
    text = number(mean, kind)
    return text if math.isnan(half_width) else f"{text} ± {number(half_width, kind)}"


def decimals_for(size: float, least: int) -> int:
    """The decimals, ``least`` to 6, that leave a number of this size :data:`LEAST_DIGITS` significant digits."""
    decimals = least
    while size and decimals < 6 and size < 10.0 ** (LEAST_DIGITS - 1 - decimals):
        decimals += 1
    return decimals


def p_value(p: float | None) -> str:
    """Two significant digits, "<0.001" below that, "-" for none."""
    if p is None or math.isnan(p):
        return NOTHING
    if p < 0.001:
        return "<0.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def scale(value: float) -> str:
    """A large count in the unit people say it in: 2.40 M, 1.72 B."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.0f}"


def listing(values: Sequence[Any]) -> str:
    """a; a and b; a, b and c."""
    words = [str(value) for value in values]
    if len(words) < 2:
        return "".join(words)
    return ", ".join(words[:-1]) + " and " + words[-1]


def header_lines(facts: Mapping[str, Any]) -> list[str]:
    """Three lines that state what every number below depends on."""
    context = f"context {_value(facts['seq_len'])}"
    if facts["eval_seq_len"] != facts["seq_len"]:
        context += f" (evaluation {_value(facts['eval_seq_len'])})"
    eval_tokens = facts["eval_tokens"]
    commit = facts["git_commit"]
    commits = [str(item)[:9] for item in (commit if isinstance(commit, list) else [commit]) if item]
    scale_line = [
        f"recipe {_value(facts['recipe'])}" + (f" with {facts['overrides']}" if facts["overrides"] else ""),
        f"{_scaled(facts['n_params'])} parameters",
        f"{_scaled(facts['tokens'])} tokens in {_value(facts['steps'])} steps",
        seed_text(facts["seeds"]),
        f"param_match {_value(facts['param_match'])}",
    ]
    data_line = [
        f"corpus {_value(facts['corpus'])}" + (f" ({_scaled(eval_tokens)} tokens evaluated)" if eval_tokens else ""),
        f"vocabulary {_value(facts['vocab_size'])}",
        f"BOS {_value(facts['bos'])}",
        context,
    ]
    machine_line = [
        f"precision {_value(facts['precision'])}" + (", compiled" if facts["compiled"] is True else ""),
        f"device {_value(facts['device'])}" + _devices(facts),
        f"commit {', '.join(commits) or 'unknown'}" + (" with uncommitted changes" if facts["git_dirty"] else ""),
    ]
    return ["; ".join(line) for line in (scale_line, data_line, machine_line)]


def sentences(
    item: VariantComparison, baseline: str, facts: Mapping[str, Any], alpha: float, sink_excess: float
) -> Iterator[str]:
    """The verdict on one variant in plain words, one sentence or two each."""
    comparison = item.primary.comparison
    yield _verdict_sentence(item, baseline, alpha)
    if 2 <= comparison.n <= MAX_SEEDS_SHOWN:
        pairs = zip(comparison.seeds, comparison.differences, strict=True)
        listed = ", ".join(f"{_difference(item.primary, value)} at seed {seed}" for seed, value in pairs)
        yield f"Pair by pair: {listed}."
    if comparison.n >= 2 and comparison.resolvable > 0:
        yield _resolution_sentence(item)
        yield _check_sentence(comparison)
    if item.equivalence is not None:
        yield _equivalence_sentence(item, baseline)
    by_domain = _domain_sentence(item)
    if by_domain:
        yield by_domain
    sinks = _sink_sentence(item, baseline, facts, sink_excess)
    if sinks:
        yield sinks


def _verdict_sentence(item: VariantComparison, baseline: str, alpha: float) -> str:
    row, comparison = item.primary, item.primary.comparison
    blocking = [flag_text(flag) for flag in item.flags if flag.blocking]
    if blocking:
        return f"No verdict on {item.name}: {'; '.join(blocking)}."
    ours, theirs = number(row.variant_mean, "perplexity"), number(row.baseline_mean, "perplexity")
    difference = _difference(row, comparison.mean)
    measured = f"Avg PPL {ours} against {theirs}, a difference of {difference} ({_percent(comparison)})"
    if comparison.n == 0:
        return f"No verdict on {item.name}: no seed has both an Avg PPL of {item.name} and one of {baseline}."
    if comparison.n == 1:
        return f"No verdict on {item.name}: one seed gives none. {measured} at seed {comparison.seeds[0]}."
    if comparison.reason == NO_SPREAD:
        return f"No verdict on {item.name}: {NO_SPREAD}. {measured}."
    interval = (
        f"{100 * (1 - alpha):.0f} % interval {_difference(row, comparison.low)} to "
        f"{_difference(row, comparison.high)}, "
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
            by_verdict.setdefault(row.comparison.verdict, []).append(row.metric.column.removeprefix("ppl/"))
    if not by_verdict:
        return None
    parts = []
    total = sum(len(names) for names in by_verdict.values())
    for word in ("better", "worse", "not resolvable"):
        names = by_verdict.get(word, [])
        if names:
            parts.append(f"{word} in " + (f"all {total}" if len(names) == total and total > 1 else listing(names)))
    return f"By domain: {'; '.join(parts)}."


def _sink_sentence(item: VariantComparison, baseline: str, facts: Mapping[str, Any], sink_excess: float) -> str | None:
    row = item.row("first_token_share")
    if not row.baseline_mean < sink_excess * row.floor:
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


def _difference(row: MetricRow, value: float) -> str:
    return number(value, row.metric.kind, signed=True, like=row.variant_mean)


def _percent(comparison: Comparison) -> str:
    if not comparison.baseline_mean:
        return NOTHING
    share = 100 * comparison.mean / abs(comparison.baseline_mean)
    return f"{share:+.1f} %" if abs(share) >= 1 else f"{share:+.2f} %"


def _devices(facts: Mapping[str, Any]) -> str:
    if facts["device"] == "cpu":
        threads = facts["threads"]
        return f" ({_value(threads)} thread{'' if threads == 1 else 's'})"
    return f" x {_value(facts['n_devices'])}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " or ".join(_value(item) for item in value) or "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value) or "unknown"


def _scaled(value: Any) -> str:
    if isinstance(value, list):
        return " or ".join(_scaled(item) for item in value) or "unknown"
    return scale(value)
