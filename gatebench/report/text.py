"""Numbers in words: how each kind of value is written, and the header that states what they depend on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gatebench.metrics import NOTHING as NOTHING
from gatebench.metrics import number as number
from gatebench.metrics import scale as scale
from gatebench.report.analysis.stats import Comparison

MAX_SEEDS_NAMED = 10
MAX_ROWS_NAMED = 4
MAX_SEEDS_SHOWN = 4
"""With more seeds a cell shows the range of the differences; CSV and JSON always have each."""

LEAST_DIGITS = 2
"""Significant digits that a number keeps where its decimals would leave fewer."""


def mean_and_interval(mean: float, half_width: float, kind: str) -> str:
    """4.2800 ± 0.0120, the latter of two seeds or more."""
    text = number(mean, kind)
    return text if math.isnan(half_width) else f"{text} ± {number(half_width, kind)}"


def difference_and_interval(found: Comparison, kind: str) -> str:
    """-0.0200 [-0.0300, -0.0100], the interval of two seeds or more."""
    text = number(found.mean, kind, signed=True)
    if math.isnan(found.low):
        return text
    return f"{text} [{number(found.low, kind, signed=True)}, {number(found.high, kind, signed=True)}]"


def learning_rate(value: float) -> str:
    """0.003, 1.2e-05."""
    return NOTHING if math.isnan(value) else f"{value:.3g}"


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


def listing(values: Sequence[Any]) -> str:
    """a; a and b; a, b and c."""
    words = [str(value) for value in values]
    if len(words) < 2:
        return "".join(words)
    return ", ".join(words[:-1]) + " and " + words[-1]


def seed_text(seeds: Sequence[int]) -> str:
    """seed 0; seeds 0, 1; 100 seeds from 0 to 99."""
    if len(seeds) > MAX_SEEDS_NAMED:
        return f"{len(seeds)} seeds from {min(seeds)} to {max(seeds)}"
    return f"seed{'s' if len(seeds) != 1 else ''} {', '.join(map(str, seeds))}"


def seed_counts(counts: Mapping[str, Sequence[int]]) -> str:
    """Over how many seeds the means of a table are: 3 seeds; 2 to 3 seeds (2 of g1_headwise).

    ``counts`` has, by the label of a row, the number of seeds of each of its numbers; none for a row without any.
    """
    ranges = {label: (min(own), max(own)) for label, own in counts.items() if own}
    if not ranges:
        return "no seed"
    every = list(ranges.values())
    usual = max(every, key=lambda one: (every.count(one), one))
    others = {label: one for label, one in ranges.items() if one != usual}
    all_rows = min(low for low, _ in every), max(high for _, high in every)
    seeds = f"{_from_to(*all_rows)} seed{'' if all_rows == (1, 1) else 's'}"
    if len(others) > MAX_ROWS_NAMED:
        return f"{seeds} (the CSV has each row's number)"
    words = ", ".join(f"{_from_to(*one)} of {label}" for label, one in others.items())
    return f"{seeds} ({words})" if words else seeds


def _from_to(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


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
