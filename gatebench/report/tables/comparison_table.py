"""A comparison as a terminal table, Markdown, CSV and JSON. The same comparison gives the same bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatebench.report.analysis.flags import flag_text
from gatebench.report.analysis.stats import DESCRIPTIVE, NO_SINK, ONE_SEED
from gatebench.report.tables.text import MAX_SEEDS_SHOWN, NOTHING, header_lines, number, p_value

if TYPE_CHECKING:
    from gatebench.report.analysis.comparison import ComparisonTable, MetricRow, VariantComparison

_SHORT_REASON = {ONE_SEED: "one seed", NO_SINK: "no sink"}
_NAME_WIDTH = 14
_STYLE = {"better": "bold green", "worse": "bold red", "not resolvable": "yellow"}


def to_rich(table: ComparisonTable) -> Group:
    """A header, an overview when there are several variants, then a table, flags and sentences for each."""
    parts: list[RenderableType] = [Text(line, style="dim") for line in header_lines(table.facts)]
    if len(table.variants) > 1:
        parts.append(_rich_table(f"Avg PPL against {table.baseline_label}", *_overview(table)))
    for item in table.variants:
        parts.append(_rich_table(_title(table, item), _columns(table, item), list(_cells(item))))
        parts.extend(Text(f"! {line}", style="red" if blocking else "yellow") for blocking, line in _flag_lines(item))
        parts.extend(Text(sentence, style="bold" if i == 0 else "") for i, sentence in enumerate(item.sentences))
    return Group(*parts)


def to_markdown(table: ComparisonTable) -> str:
    """The same as :func:`to_rich`, as a Markdown document."""
    lines = [f"# {_names(table)} against {table.baseline_label}", ""]
    lines += [f"- {part}" for line in header_lines(table.facts) for part in line.split("; ")]
    if len(table.variants) > 1:
        lines += ["", "## Avg PPL", "", *markdown_table(*_overview(table))]
    for item in table.variants:
        if len(table.variants) > 1:
            lines += ["", f"## {_title(table, item)}"]
        lines += ["", *markdown_table(_columns(table, item), list(_cells(item))), ""]
        for blocking, line in _flag_lines(item):
            lines.append(f"- {'**Blocks a verdict.** ' if blocking else 'Note: '}{line}.")
        if item.flags:
            lines.append("")
        lines += [f"{'**' + sentence + '**' if i == 0 else sentence}  " for i, sentence in enumerate(item.sentences)]
    lines += ["", _legend(table)]
    return "\n".join(lines) + "\n"


def to_frame(table: ComparisonTable) -> pd.DataFrame:
    """A row a variant and metric; see ``ComparisonTable.to_frame``."""
    seeds = table.facts["seeds"]
    rows = []
    for item in table.variants:
        for row in item.rows:
            comparison = row.comparison
            record = {"variant": item.name, "label": item.label, "baseline": table.baseline, **_numbers(row)}
            differences = dict(zip(comparison.seeds, comparison.differences, strict=True))
            record.update({f"difference_seed_{seed}": differences.get(seed, math.nan) for seed in seeds})
            rows.append(record)
    return pd.DataFrame.from_records(rows)


def to_dict(table: ComparisonTable) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "schema": 1,
        "baseline": table.baseline,
        "baseline_label": table.baseline_label,
        "alpha": table.alpha,
        "facts": dict(table.facts),
        "variants": [
            {
                "variant": item.name,
                "label": item.label,
                "verdict": item.primary.comparison.verdict,
                "metrics": [_metric_dict(row) for row in item.rows],
                "flags": [{**asdict(flag), "seeds": list(flag.seeds)} for flag in item.flags],
                "sentences": list(item.sentences),
                "equivalence": None if item.equivalence is None else asdict(item.equivalence),
            }
            for item in table.variants
        ],
    }


def to_json(table: ComparisonTable) -> str:
    """:func:`to_dict` as indented text without NaN, ending in a newline."""
    return json.dumps(without_nan(to_dict(table)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write(table: ComparisonTable, directory: Path, stem: str) -> list[Path]:
    """Write the Markdown, CSV and JSON forms and return their paths."""
    return write_forms(directory, stem, to_markdown(table), to_frame(table), to_json(table))


def write_forms(
    directory: Path, stem: str, markdown: str, frame: pd.DataFrame, as_json: str, **others: str
) -> list[Path]:
    """Write a table as ``stem``.md, .csv, .json, and others by suffix; the same table gives the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    csv = frame.to_csv(index=False, lineterminator="\n", float_format="%.10g")
    texts = {"md": markdown, "csv": csv, "json": as_json, **others}
    paths = []
    for suffix, text in texts.items():
        path = directory / f"{stem}.{suffix}"
        path.write_text(text, encoding="utf-8", newline="\n")
        paths.append(path)
    return paths


def _columns(table: ComparisonTable, item: VariantComparison) -> list[str]:
    seeds = table.facts["seeds"]
    paired = item.primary.comparison.seeds or tuple(seeds)
    shown = f"at seed {', '.join(map(str, paired))}" if len(paired) <= MAX_SEEDS_SHOWN else f"over {len(paired)} seeds"
    baseline = table.baseline if len(table.baseline) <= _NAME_WIDTH else "baseline"
    variant = item.name if len(item.name) <= _NAME_WIDTH else "variant"
    return ["", baseline, variant, f"difference {shown}", f"mean ± {_level(table)} interval", "Holm p", "verdict"]


def _cells(item: VariantComparison) -> Iterator[list[str]]:
    """The table of one variant, a list of cells a row."""
    for row in item.rows:
        comparison, kind = row.comparison, row.metric.kind
        yield [
            row.metric.title,
            number(row.baseline_mean, kind),
            number(row.variant_mean, kind),
            _difference_cell(row),
            _interval_cell(row),
            p_value(comparison.p_adjusted),
            verdict_cell(row),
        ]


def verdict_cell(row: MetricRow) -> str:
    """The verdict, or in a word why there is none; empty for a number that is reported without a test."""
    comparison = row.comparison
    if comparison.verdict is not None:
        return str(comparison.verdict)
    if comparison.reason == DESCRIPTIVE:
        return ""
    if comparison.reason in _SHORT_REASON:
        return _SHORT_REASON[comparison.reason]
    return NOTHING if comparison.n == 0 else "blocked"


def _difference_cell(row: MetricRow) -> str:
    differences, kind = row.comparison.differences, row.metric.kind
    if not differences or kind in ("count", "floor"):
        return NOTHING
    if len(differences) <= MAX_SEEDS_SHOWN:
        return ", ".join(_difference(row, value) for value in differences)
    return f"{_difference(row, min(differences))} .. {_difference(row, max(differences))}"


def _interval_cell(row: MetricRow) -> str:
    comparison, kind = row.comparison, row.metric.kind
    if kind == "floor":
        return NOTHING
    text = _difference(row, comparison.mean)
    if kind in ("count", "speed"):
        base = comparison.baseline_mean
        return f"{text} ({100 * comparison.mean / base:+.2g} %)" if comparison.n and base else text
    if math.isfinite(comparison.low):
        text += f" ± {number((comparison.high - comparison.low) / 2, kind, like=row.variant_mean)}"
    return text


def _difference(row: MetricRow, value: float) -> str:
    return number(value, row.metric.kind, signed=True, like=row.variant_mean)


def _level(table: ComparisonTable) -> str:
    return f"{100 * (1 - table.alpha):.0f} %"


def _overview(table: ComparisonTable) -> tuple[list[str], list[list[str]]]:
    """The primary metric of every variant, one line each."""
    interval = f"difference ± {_level(table)} interval"
    columns = ["", "seeds", "baseline", "variant", interval, "Holm p", "verdict"]
    rows = []
    for item in table.variants:
        row = item.primary
        rows.append(
            [
                item.name,
                str(row.comparison.n),
                number(row.baseline_mean, "perplexity"),
                number(row.variant_mean, "perplexity"),
                _interval_cell(row),
                p_value(row.comparison.p_adjusted),
                verdict_cell(row),
            ]
        )
    return columns, rows


def _title(table: ComparisonTable, item: VariantComparison) -> str:
    label = item.name if item.label == item.name else f"{item.label} ({item.name})"
    return f"{label} against {table.baseline_label}"


def _names(table: ComparisonTable) -> str:
    if len(table.variants) > 1:
        return f"{len(table.variants)} variants"
    item = table.variants[0]
    return item.name if item.label == item.name else f"{item.label} ({item.name})"


def _flag_lines(item: VariantComparison) -> list[tuple[bool, str]]:
    return [(flag.blocking, flag_text(flag)) for flag in item.flags]


def _legend(table: ComparisonTable) -> str:
    return (
        f"Differences are variant minus {table.baseline}, paired by seed; intervals and p from the paired t test, p "
        "adjusted by Holm over each family (Avg PPL; perplexity by domain; first-token share and M-Act). Lower is "
        "better for all tested metrics. The smallest difference that these seeds could have resolved is the "
        "half-width of the interval where a family has one test, and larger where it has more. Uniform floor: the "
        "first-token share of uniform causal attention, H_T/T. No sink: the baseline's share is under twice that floor."
    )


def _rich_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.pad_edge, table.collapse_padding = False, True
    for index, name in enumerate(columns):
        last = index == len(columns) - 1
        justify: Any = "left" if index == 0 or last else "right"
        wraps = name.startswith(("difference at", "difference over"))
        table.add_column(name.replace(" at ", "\nat ").replace(" ± ", "\n± "), justify=justify, no_wrap=not wraps)
    for cells in rows:
        style = _STYLE.get(cells[-1], "")
        table.add_row(*(Text(cell, style=style if i == len(cells) - 1 else "") for i, cell in enumerate(cells)))
    return table


def markdown_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, n_words: int = 1, words_last: bool = True
) -> list[str]:
    """Lines of a table: the first ``n_words`` columns left, numbers right, and the last left where it holds words."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "---|" * n_words + "---:|" * (len(columns) - n_words - 1) + ("---|" if words_last else "---:|")
    return [line(columns), rule, *(line(cells) for cells in rows)]


def _numbers(row: MetricRow) -> dict[str, Any]:
    comparison = row.comparison
    return {
        "metric": row.metric.column,
        "family": row.metric.family or "",
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
        "verdict": comparison.verdict or "",
        "reason": comparison.reason or "",
    }


def _metric_dict(row: MetricRow) -> dict[str, Any]:
    comparison = row.comparison
    numbers = _numbers(row)
    numbers["family"] = row.metric.family
    numbers["verdict"] = comparison.verdict
    numbers["reason"] = comparison.reason
    numbers["seeds"] = list(comparison.seeds)
    numbers["baseline_by_seed"] = list(comparison.baseline)
    numbers["variant_by_seed"] = list(comparison.variant)
    numbers["differences"] = list(comparison.differences)
    return numbers


def without_nan(value: Any) -> Any:
    """The same nested value with None in place of every number that is not finite, as strict JSON wants it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return value
