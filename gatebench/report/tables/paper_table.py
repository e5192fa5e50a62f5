"""A table of the paper beside ours as a document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from gatebench.report.analysis import paper_table as data
from gatebench.report.analysis.estimate import Estimate
from gatebench.report.analysis.paper_table import OrderCheck, PaperTable, RankCorrelation, VariantRow
from gatebench.report.tables.blocks import AT_CHANCE, MARKS, Cell, Column, Legend, Lines, Table, notes
from gatebench.report.tables.document import Document
from gatebench.report.text import NOTHING, listing, number, seed_counts


def document(found: PaperTable) -> Document:
    """The table, what it says of orders and ranks, notes, and how to read it.

    The CSV has a row a variant, every number unrounded: ``<key>``, ``<key>_half_width``, ``paper_<column>``.
    """
    return Document(
        name=f"table{found.number}",
        title=f"Table {found.number}. {found.title}, beside the paper's",
        caption=found.title,
        blocks=(
            _table(found),
            Lines(tuple(_findings(found))),
            notes(found.notes),
            Legend(" ".join(_legend(found))),
        ),
        facts=found.facts,
        frame=_frame(found),
        content=_content(found),
    )


def _table(found: PaperTable) -> Table:
    """Ours beside the paper's; of a quantity that no row of ours has, the paper's alone."""
    columns = [Column("", words=True)]
    for column in found.columns:
        if not column.shown:
            continue
        title, paper = column.title, column.paper_title
        if found.measured(column):
            columns.append(Column(title, span=_line(title), under="ours"))
        if column.paper:
            alone = "" if found.measured(column) else f"{title}\n"
            columns.append(Column(f"{alone}{paper}", span=_line(title), under=_line(paper)))
    rows = [(Cell(_label(row)), *_cells(found, row)) for row in found.rows]
    return Table(tuple(columns), tuple(rows))


def _cells(found: PaperTable, row: VariantRow) -> Iterator[Cell]:
    for column in found.columns:
        if column.shown and found.measured(column):
            own = row.ours[column.key]
            is_best = own.n > 0 and own.mean == found.best_of_ours(column)
            yield Cell(_estimate_text(column, own), row.verdicts.get(column.key), bold=is_best)
        if column.shown and column.paper:
            is_best = row.paper_number(column.paper) == found.best_of_the_papers(column)
            yield Cell(row.theirs.get(column.paper, NOTHING), bold=is_best, style="paper")


def _estimate_text(column: data.Column, estimate: Estimate) -> str:
    text = column.written(estimate.mean)
    if column.interval and math.isfinite(estimate.half_width):
        text += f" ± {column.written(estimate.half_width, like=estimate.mean)}"
    return f"{text} {AT_CHANCE}" if estimate.at_chance else text


def _label(row: VariantRow) -> str:
    return f"{row.label}, {row.setting}" if row.setting else row.label


def _line(title: str) -> str:
    return " ".join(title.split())


def _findings(found: PaperTable) -> Iterator[str]:
    yield from map(_correlation_line, found.correlations)
    if found.order is not None:
        yield from _order_lines(found.order)


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


def _name(column: data.Column) -> str:
    """A column's title inside a sentence."""
    title = _line(column.title).split(" (")[0]
    return title if title[1:2].isupper() or "-" in title[:2] else title[0].lower() + title[1:]


def _legend(found: PaperTable) -> Iterator[str]:
    """What the reader has to know to read a cell, a sentence each."""
    if not found.facts:
        yield "Ours: the shipped recipes. The paper's as printed."
        return
    measured = [column for column in found.columns if column.shown and found.measured(column)]
    counts = {_label(row): [row.ours[c.key].n for c in measured if row.ours[c.key].n] for row in found.rows}
    if max((n for own in counts.values() for n in own), default=0) < 2:
        yield "Ours: one seed, so that no interval can be given."
    else:
        level = f"{100 * (1 - found.alpha):.0f} %"
        yield f"Ours: mean over {seed_counts(counts)} ± half the width of its {level} t interval."
    yield "The paper gives one run each and no intervals."
    if any(column.best for column in found.columns):
        yield "Bold: the best mean of ours, and of the paper's."
    if any(row.verdicts for row in found.rows):
        yield f"Against the baseline, paired by seed: {', '.join(f'{mark} {word}' for word, mark in MARKS.items())}."
    if any(estimate.at_chance for row in found.rows for estimate in row.ours.values()):
        yield f"{AT_CHANCE} at chance: guessing lies within the score's 95 % interval over items."
    if missing := [_line(column.title) for column in found.columns if column.shown and column not in measured]:
        yield f"Not measured here: {listing(missing)}."


def _frame(found: PaperTable) -> pd.DataFrame:
    records = []
    for row in found.rows:
        record: dict[str, Any] = {"variant": row.variant, "label": row.label, "paper_row": row.paper_row}
        record["setting"] = row.setting
        record["n_seeds"] = max((estimate.n for estimate in row.ours.values()), default=0)
        for column in found.columns:
            estimate = row.ours[column.key]
            record[column.key] = estimate.mean
            if column.interval:
                record[f"{column.key}_half_width"] = estimate.half_width
            if any(other.ours[column.key].at_chance for other in found.rows):
                record[f"{column.key}_at_chance"] = estimate.at_chance
            if column.paper:
                record[f"paper_{column.paper}"] = row.paper_number(column.paper)
            if any(column.key in other.verdicts for other in found.rows):
                record[f"{column.key}_verdict"] = row.verdicts.get(column.key, "")
        records.append(record)
    frame = pd.DataFrame.from_records(records)
    frame["paper_row"] = frame["paper_row"].astype("Int64")
    return frame


def _content(found: PaperTable) -> dict[str, Any]:
    return {
        "schema": 1,
        "table": found.number,
        "title": found.title,
        "facts": found.facts,
        "baseline": found.baseline,
        "alpha": found.alpha,
        "columns": [{"key": c.key, "title": _line(c.title), "paper": c.paper} for c in found.columns],
        "rows": [
            {
                "variant": row.variant,
                "label": row.label,
                "paper_row": row.paper_row,
                "setting": row.setting,
                "ours": {key: _estimate_content(estimate) for key, estimate in row.ours.items()},
                "paper": {c.paper: row.paper_number(c.paper) for c in found.columns if c.paper},
                "verdicts": row.verdicts,
            }
            for row in found.rows
        ],
        "rank_correlations": [_correlation_content(one) for one in found.correlations],
        "order": None if found.order is None else _order_content(found.order),
    }


def _estimate_content(estimate: Estimate) -> dict[str, Any]:
    by_seed = {str(seed): value for seed, value in estimate.by_seed.items()}
    content = {"mean": estimate.mean, "half_width": estimate.half_width, "n": estimate.n, "by_seed": by_seed}
    return content | ({"at_chance": True} if estimate.at_chance else {})


def _correlation_content(found: RankCorrelation) -> dict[str, Any]:
    return {
        "of": found.of.key,
        "over": found.over.key,
        "method": "spearman",
        "n": found.n,
        "variants": found.variants,
        "ours": found.ours,
        "ours_by_seed": {str(seed): value for seed, value in found.by_seed.items()},
        "paper": found.theirs,
    }


def _order_content(order: OrderCheck) -> dict[str, Any]:
    seeds = {str(seed): {"holds": order.holds(numbers), "values": numbers} for seed, numbers in order.by_seed.items()}
    known = all(map(math.isfinite, order.theirs.values()))
    paper = {"holds": order.holds(order.theirs) if known else None, "values": order.theirs}
    return {"of": order.column.key, "groups": order.groups, "seeds": seeds, "paper": paper}
