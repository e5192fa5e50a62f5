"""A table of the paper beside ours as a terminal table, Markdown, CSV and JSON. The same table gives the same bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatebench.report.rendering import markdown_table, without_nan, write_forms
from gatebench.report.wording import NOTHING, header_lines, listing, number

if TYPE_CHECKING:
    from gatebench.report.paper_table import Column, Estimate, OrderCheck, PaperTable, RankCorrelation, Row


def to_rich(table: PaperTable) -> Group:
    """The header, the table, and what stands below it."""
    grid = Table(title=_title(table), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    grid.pad_edge, grid.collapse_padding = False, True
    for index, name in enumerate(_headers(table)):
        grid.add_column(name, justify="right" if index else "left", overflow="fold", no_wrap=bool(index))
    for row in table.rows:
        cells = list(_cells(table, row))
        paper = _paper_positions(table)
        grid.add_row(*(Text(cell, style="cyan" if i in paper else "") for i, cell in enumerate(cells)))
    parts: list[RenderableType] = [Text(line, style="dim") for line in header_lines(table.facts)]
    parts.append(grid)
    parts += [Text(line) for line in _findings(table)]
    parts += [Text(f"! {note}", style="yellow") for note in table.notes]
    parts.append(Text(_legend(table), style="dim"))
    return Group(*parts)


def to_markdown(table: PaperTable) -> str:
    """The same as :func:`to_rich`, as a Markdown document."""
    lines = [f"# {_title(table)}", ""]
    lines += [f"- {part}" for line in header_lines(table.facts) for part in line.split("; ")]
    lines += [
        "",
        *markdown_table(
            [_on_one_line(header) for header in _headers(table)],
            [list(_cells(table, row)) for row in table.rows],
            words_last=False,
        ),
    ]
    if findings := list(_findings(table)):
        lines += ["", *(f"  - {line.strip()}" if line.startswith(" ") else f"- {line}" for line in findings)]
    if table.notes:
        lines += ["", *(f"- Note: {note}." for note in table.notes)]
    lines += ["", _legend(table)]
    return "\n".join(lines) + "\n"


def to_frame(table: PaperTable) -> pd.DataFrame:
    """A row a variant; see ``PaperTable.to_frame``."""
    records = []
    for row in table.rows:
        record: dict[str, Any] = {"variant": row.variant, "label": row.label, "paper_row": row.paper_row}
        record["n_seeds"] = max((estimate.n for estimate in row.ours.values()), default=0)
        for column in table.columns:
            estimate = row.ours[column.key]
            record[column.key] = estimate.mean
            if column.interval:
                record[f"{column.key}_half_width"] = estimate.half_width
            if column.paper:
                record[f"paper_{column.paper}"] = row.paper_number(column.paper)
        records.append(record)
    frame = pd.DataFrame.from_records(records)
    frame["paper_row"] = frame["paper_row"].astype("Int64")
    return frame


def to_dict(table: PaperTable) -> dict[str, Any]:
    """Plain values for JSON."""
    content = {
        "schema": 1,
        "table": table.number,
        "title": table.title,
        "facts": dict(table.facts),
        "baseline": table.baseline,
        "alpha": table.alpha,
        "columns": [{"key": c.key, "title": _on_one_line(c.title), "paper": c.paper} for c in table.columns],
        "rows": [
            {
                "variant": row.variant,
                "label": row.label,
                "paper_row": row.paper_row,
                "ours": {key: _estimate_dict(estimate) for key, estimate in row.ours.items()},
                "paper": {c.paper: row.paper_number(c.paper) for c in table.columns if c.paper},
            }
            for row in table.rows
        ],
        "rank_correlations": [_correlation_dict(found) for found in table.correlations],
        "order": None if table.order is None else _order_dict(table.order),
        "notes": list(table.notes),
    }
    plain: dict[str, Any] = without_nan(content)
    return plain


def to_json(table: PaperTable) -> str:
    """:func:`to_dict` as indented text without NaN, ending in a newline."""
    return json.dumps(to_dict(table), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write(table: PaperTable, directory: Path, stem: str) -> list[Path]:
    """Write the Markdown, CSV and JSON forms and return their paths."""
    return write_forms(directory, stem, to_markdown(table), to_frame(table), to_json(table))


def _title(table: PaperTable) -> str:
    return f"Table {table.number}. {table.title}, beside the paper's"


def _headers(table: PaperTable) -> list[str]:
    headers = [""]
    for column in table.columns:
        if column.shown:
            headers.append(column.title)
            headers += [column.paper_title] if column.paper else []
    return headers


def _paper_positions(table: PaperTable) -> set[int]:
    """Indices of the cells that are the paper's."""
    found, index = set(), 1
    for column in table.columns:
        if column.shown:
            index += 1
            if column.paper:
                found.add(index)
                index += 1
    return found


def _cells(table: PaperTable, row: Row) -> Iterator[str]:
    yield row.label
    for column in table.columns:
        if column.shown:
            yield _estimate_cell(column, row.ours[column.key])
            if column.paper:
                yield row.theirs.get(column.paper, NOTHING)


def _estimate_cell(column: Column, estimate: Estimate) -> str:
    text = number(estimate.mean, column.kind)
    if column.interval and math.isfinite(estimate.half_width):
        text += f" ± {number(estimate.half_width, column.kind, like=estimate.mean)}"
    return text


def _findings(table: PaperTable) -> Iterator[str]:
    for found in table.correlations:
        yield _correlation_line(found)
    if table.order is not None:
        yield from _order_lines(table.order)


def _correlation_line(found: RankCorrelation) -> str:
    by_seed = ", ".join(f"{number(value, 'ratio')} (seed {seed})" for seed, value in found.by_seed.items())
    text = f"Rank correlation of {_name(found.of)} with {_name(found.over)}: ours {number(found.ours, 'ratio')}"
    text += f" by the means, {by_seed}" if len(found.by_seed) > 1 else ""
    return f"{text}; the paper's {number(found.theirs, 'ratio')}; n = {found.n} rows that both have (Spearman)"


def _order_lines(order: OrderCheck) -> Iterator[str]:
    groups = " > ".join(listing(group) if len(group) == 1 else f"{{{', '.join(group)}}}" for group in order.groups)
    yield f"Order of the {_name(order.column)}, {groups}:"
    for seed, numbers in order.by_seed.items():
        yield f"  seed {seed}: {_order_text(order, numbers, lambda value: number(value, order.column.kind))}"
    if not order.by_seed:
        yield "  no seed has all of them"
    if all(map(math.isfinite, order.theirs.values())):
        yield f"  the paper: {_order_text(order, order.theirs, '{:g}'.format)}"


def _order_text(order: OrderCheck, numbers: Mapping[str, float], written: Callable[[float], str]) -> str:
    levels = [", ".join(written(numbers[name]) for name in group) for group in order.groups]
    return f"yes ({' > '.join(levels)})" if order.holds(numbers) else f"no ({' | '.join(levels)})"


def _on_one_line(title: str) -> str:
    return " ".join(title.split())


def _name(column: Column) -> str:
    """A column's title inside a sentence."""
    title = _on_one_line(column.title).split(" (")[0]
    return title if title[1:2].isupper() or "-" in title[:2] else title[0].lower() + title[1:]


def _legend(table: PaperTable) -> str:
    seeds = table.facts["seeds"]
    if len(seeds) < 2:
        return "Ours: one seed, so that no interval can be given. The paper gives one run each and no intervals."
    return (
        f"Ours: mean over {len(seeds)} seeds ± half the width of its {100 * (1 - table.alpha):.0f} % t interval. "
        "The paper gives one run each and no intervals."
    )


def _estimate_dict(estimate: Estimate) -> dict[str, Any]:
    by_seed = {str(seed): value for seed, value in estimate.by_seed.items()}
    return {"mean": estimate.mean, "half_width": estimate.half_width, "n": estimate.n, "by_seed": by_seed}


def _correlation_dict(found: RankCorrelation) -> dict[str, Any]:
    return {
        "of": found.of.key,
        "over": found.over.key,
        "method": "spearman",
        "n": found.n,
        "variants": list(found.variants),
        "ours": found.ours,
        "ours_by_seed": {str(seed): value for seed, value in found.by_seed.items()},
        "paper": found.theirs,
    }


def _order_dict(order: OrderCheck) -> dict[str, Any]:
    seeds = {
        str(seed): {"holds": order.holds(numbers), "values": dict(numbers)} for seed, numbers in order.by_seed.items()
    }
    known = all(map(math.isfinite, order.theirs.values()))
    paper = {"holds": order.holds(order.theirs) if known else None, "values": dict(order.theirs)}
    return {"of": order.column.key, "groups": [list(group) for group in order.groups], "seeds": seeds, "paper": paper}
