"""A table of the paper beside ours in every form it is printed in. The same table gives the same bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatebench.report.analysis.stats import Verdict
from gatebench.report.tables.comparison_table import markdown_table, without_nan, write_forms
from gatebench.report.tables.text import NOTHING, header_lines, listing, number

if TYPE_CHECKING:
    from gatebench.report.tables.paper_table import Column, Estimate, OrderCheck, PaperTable, RankCorrelation, Row


_MARK_STYLE = {"better": "bold green", "worse": "bold red", "not resolvable": "yellow"}
_LATEX_MARKS: Mapping[Verdict, str] = {"better": "$^{+}$", "worse": "$^{-}$", "not resolvable": "$^{\\sim}$"}
_LATEX_ESCAPES = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "σ": r"$\sigma$",
    "<": "$<$",
    ">": "$>$",
    "|": r"$\vert$",
    "°": r"$^{\circ}$",
}

MARKS: Mapping[Verdict, str] = {"better": "✓", "worse": "✗", "not resolvable": "~"}
"""What stands behind a number with a verdict against the baseline."""


AT_CHANCE = "°"
"""What stands behind a benchmark's score that guessing could give."""


@dataclass(frozen=True)
class Cell:
    """One number of the printed table, whatever it is printed as."""

    text: str
    paper: bool = False
    bold: bool = False
    verdict: Verdict | None = None


def to_rich(table: PaperTable) -> Group:
    """The header, the table, and what stands below it. Of a quantity that was not measured only the paper's numbers."""
    grid = Table(title=_title(table), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    grid.pad_edge, grid.collapse_padding = False, True
    columns = [column for column in table.columns if column.shown]
    grid.add_column("", justify="left", overflow="fold")
    for column in columns:
        ours = [column.title] if table.measured(column) else []
        theirs = [column.paper_title if ours else f"{column.title}\n{column.paper_title}"] if column.paper else []
        for name in (*ours, *theirs):
            grid.add_column(name, justify="right", no_wrap=True)
    for row in table.rows:
        cells = [
            cell for column in columns for cell in _cells(table, row, column) if cell.paper or table.measured(column)
        ]
        grid.add_row(Text(_label(row)), *map(_rich_text, cells))
    parts: list[RenderableType] = [Text(line, style="dim") for line in _header(table)]
    parts.append(grid)
    parts += [Text(line) for line in _findings(table)]
    parts += [Text(f"! {note}", style="yellow") for note in table.notes]
    parts.append(Text(" ".join(_legend(table)), style="dim"))
    return Group(*parts)


def _rich_text(cell: Cell) -> Text:
    text = Text(cell.text, style=" ".join(["cyan"] * cell.paper + ["bold"] * cell.bold))
    if cell.verdict:
        text.append(f" {MARKS[cell.verdict]}", style=_MARK_STYLE[cell.verdict])
    return text


def to_markdown(table: PaperTable) -> str:
    """The same as :func:`to_rich`, as a Markdown document, with the empty columns of what was not measured."""
    lines = [f"# {_title(table)}", ""]
    lines += [f"- {part}" for line in _header(table) for part in line.split("; ")]
    columns = [column for column in table.columns if column.shown]
    headers = [name for column in columns for name in _headers(table, column)]
    rows = [
        [_label(row), *(_markdown_cell(c) for column in columns for c in _cells(table, row, column))]
        for row in table.rows
    ]
    lines += ["", *markdown_table(["", *headers], rows, words_last=False)]
    if findings := list(_findings(table)):
        lines += ["", *(f"  - {line.strip()}" if line.startswith(" ") else f"- {line}" for line in findings)]
    if table.notes:
        lines += ["", *(f"- Note: {note}." for note in table.notes)]
    lines += ["", " ".join(_legend(table))]
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    mark = f" {MARKS[cell.verdict]}" if cell.verdict else ""
    return (f"**{cell.text}**" if cell.bold else cell.text) + mark


def to_latex(table: PaperTable) -> str:
    """A table environment with booktabs rules: ours and the paper's under one head for each quantity."""
    columns = [column for column in table.columns if column.shown]
    heads, rules, below, at = [""], [], [""], 2
    for column in columns:
        width = 2 if column.paper else 1
        title = latex_text(_headers(table, column)[0])
        heads.append(f"\\multicolumn{{{width}}}{{c}}{{{title}}}")
        rules.append(f"\\cmidrule(lr){{{at}-{at + width - 1}}}")
        below += ["ours", latex_text(_on_one_line(column.paper_title))] if column.paper else ["ours"]
        at += width
    lines = [f"% {line}" for line in _header(table)]
    lines += ["\\begin{table}", "\\centering", "\\small"]
    caption = " ".join([f"{table.title}.", *_legend(table, _LATEX_MARKS)])
    lines.append(f"\\caption{{{latex_text(caption, marks=True)}}}")
    lines += [f"\\begin{{tabular}}{{l{'r' * (len(below) - 1)}}}", "\\toprule"]
    lines += [" & ".join(heads) + " \\\\", " ".join(rules), " & ".join(below) + " \\\\", "\\midrule"]
    for row in table.rows:
        cells = [_latex_cell(cell) for column in columns for cell in _cells(table, row, column)]
        lines.append(" & ".join([latex_text(_label(row)), *cells]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", f"\\label{{tab:gatebench-{table.number}}}", "\\end{table}"]
    return "\n".join(lines) + "\n"


def _latex_cell(cell: Cell) -> str:
    text = latex_text(cell.text)
    return (f"\\textbf{{{text}}}" if cell.bold else text) + (_LATEX_MARKS[cell.verdict] if cell.verdict else "")


def latex_text(text: str, *, marks: bool = False) -> str:
    """The text with what LaTeX minds spelled out; ``marks`` leaves the marks of the verdicts, which are LaTeX."""
    kept = _LATEX_MARKS.values() if marks else ()
    for index, mark in enumerate(kept):
        text = text.replace(mark, f"\0{index}\0")
    text = "".join(_LATEX_ESCAPES.get(letter, letter) for letter in text)
    for index, mark in enumerate(kept):
        text = text.replace(f"\0{index}\0", mark)
    return text


def to_html(table: PaperTable) -> str:
    """A table element with its caption and what stands below it, to be put into a page."""
    columns = [column for column in table.columns if column.shown]
    above, below = ['<th rowspan="2"></th>'], []
    for column in columns:
        above.append(f'<th colspan="{2 if column.paper else 1}">{escape(_headers(table, column)[0])}</th>')
        below.append("<th>ours</th>")
        if column.paper:
            below.append(f'<th class="paper">{escape(_on_one_line(column.paper_title))}</th>')
    lines = ['<table class="paper-table">', f"<caption>{escape(_title(table))}</caption>", "<thead>"]
    lines += [f"<tr>{''.join(above)}</tr>", f"<tr>{''.join(below)}</tr>", "</thead>", "<tbody>"]
    for row in table.rows:
        cells = "".join(_html_cell(cell) for column in columns for cell in _cells(table, row, column))
        lines.append(f"<tr><th>{escape(_label(row))}</th>{cells}</tr>")
    lines += ["</tbody>", "</table>"]
    lines += [f"<p>{escape(line)}</p>" for line in [*_findings(table), *(f"Note: {note}." for note in table.notes)]]
    lines.append(f'<p class="legend">{escape(" ".join(_legend(table)))}</p>')
    return "\n".join(lines) + "\n"


def _html_cell(cell: Cell) -> str:
    text = f"<b>{escape(cell.text)}</b>" if cell.bold else escape(cell.text)
    mark = f' <abbr title="{cell.verdict}">{MARKS[cell.verdict]}</abbr>' if cell.verdict else ""
    return f'<td class="paper">{text}{mark}</td>' if cell.paper else f"<td>{text}{mark}</td>"


def to_frame(table: PaperTable) -> pd.DataFrame:
    """A row a variant; see ``PaperTable.to_frame``."""
    records = []
    for row in table.rows:
        record: dict[str, Any] = {"variant": row.variant, "label": row.label, "paper_row": row.paper_row}
        record["setting"] = row.setting
        record["n_seeds"] = max((estimate.n for estimate in row.ours.values()), default=0)
        for column in table.columns:
            estimate = row.ours[column.key]
            record[column.key] = estimate.mean
            if column.interval:
                record[f"{column.key}_half_width"] = estimate.half_width
            if any(other.ours[column.key].at_chance for other in table.rows):
                record[f"{column.key}_at_chance"] = estimate.at_chance
            if column.paper:
                record[f"paper_{column.paper}"] = row.paper_number(column.paper)
            if any(column.key in other.verdicts for other in table.rows):
                record[f"{column.key}_verdict"] = row.verdicts.get(column.key, "")
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
                "setting": row.setting,
                "ours": {key: _estimate_dict(estimate) for key, estimate in row.ours.items()},
                "paper": {c.paper: row.paper_number(c.paper) for c in table.columns if c.paper},
                "verdicts": dict(row.verdicts),
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
    """Write every form but the terminal's and return the paths."""
    more = {"tex": to_latex(table), "html": to_html(table)}
    return write_forms(directory, stem, to_markdown(table), to_frame(table), to_json(table), **more)


def _title(table: PaperTable) -> str:
    return f"Table {table.number}. {table.title}, beside the paper's"


def _header(table: PaperTable) -> list[str]:
    return header_lines(table.facts) if table.facts else []


def _headers(table: PaperTable, column: Column) -> list[str]:
    """The words above a column of ours and, where the paper has one, above the paper's beside it."""
    title = _on_one_line(column.title) + ("" if table.measured(column) else " (not measured)")
    return [title, _on_one_line(column.paper_title)] if column.paper else [title]


def _label(row: Row) -> str:
    return f"{row.label}, {row.setting}" if row.setting else row.label


def _cells(table: PaperTable, row: Row, column: Column) -> Iterator[Cell]:
    """Ours and, where the paper has the column, the paper's."""
    estimate, best = row.ours[column.key], table.best_of_ours(column)
    yield Cell(
        _estimate_text(column, estimate) if table.measured(column) else "",
        bold=estimate.n > 0 and estimate.mean == best,
        verdict=row.verdicts.get(column.key),
    )
    if column.paper:
        best = table.best_of_the_papers(column)
        printed = row.theirs.get(column.paper, NOTHING)
        yield Cell(printed, paper=True, bold=row.paper_number(column.paper) == best)


def _estimate_text(column: Column, estimate: Estimate) -> str:
    text = column.written(estimate.mean)
    if column.interval and math.isfinite(estimate.half_width):
        text += f" ± {column.written(estimate.half_width, like=estimate.mean)}"
    return f"{text} {AT_CHANCE}" if estimate.at_chance else text


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


def _legend(table: PaperTable, marks: Mapping[Verdict, str] = MARKS) -> Iterator[str]:
    """What the reader has to know to read a cell, a sentence each."""
    if not table.facts:
        yield "Ours: the shipped recipes. The paper's as printed."
        return
    seeds = table.facts["seeds"]
    if len(seeds) < 2:
        yield "Ours: one seed, so that no interval can be given."
    else:
        yield f"Ours: mean over {len(seeds)} seeds ± half the width of its {100 * (1 - table.alpha):.0f} % t interval."
    yield "The paper gives one run each and no intervals."
    if any(column.best for column in table.columns):
        yield "Bold: the best mean of ours, and of the paper's."
    if any(row.verdicts for row in table.rows):
        words = ", ".join(f"{mark} {verdict}" for verdict, mark in marks.items())
        yield f"Against the baseline, paired by seed: {words}."
    if any(estimate.at_chance for row in table.rows for estimate in row.ours.values()):
        yield f"{AT_CHANCE} at chance: guessing lies within the score's 95 % interval over items."
    if missing := [_on_one_line(c.title) for c in table.columns if c.shown and not table.measured(c)]:
        yield f"Not measured here: {listing(missing)}."


def _estimate_dict(estimate: Estimate) -> dict[str, Any]:
    by_seed = {str(seed): value for seed, value in estimate.by_seed.items()}
    found = {"mean": estimate.mean, "half_width": estimate.half_width, "n": estimate.n, "by_seed": by_seed}
    return found | ({"at_chance": True} if estimate.at_chance else {})


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
