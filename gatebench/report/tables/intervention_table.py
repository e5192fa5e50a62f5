"""What the sink does for each variant: interventions on trained models as one table over variants and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from gatebench import metrics
from gatebench.metrics import number
from gatebench.report.analysis.interventions import ALL, COPY, INVISIBLE, NONE, OTHER, Change, Row
from gatebench.report.read.probe_files import ProbedRun, context
from gatebench.report.tables.blocks import Cell, Column, Paragraph, Table, table
from gatebench.report.tables.document import Document
from gatebench.report.text import NOTHING

SHOWN = ("first_token_share", "first_token_excess", "m_act")


def document(found: Sequence[Row], runs: Sequence[ProbedRun]) -> Document:
    """The change in loss at a glance, and what each intervention does to each variant.

    Sink rate, gate and every seed are in the JSON alone.
    """
    content = [_content(row) for row in found]
    has_copies = any(row.changes and COPY in row.changes for row in found)
    return Document(
        name="interventions_table",
        title="Interventions",
        blocks=(
            Paragraph(context(runs)),
            Paragraph(
                "Change in held-out loss, nats per token, ± half the 95 % interval (over seeds from two on, else "
                f"windows). The effect is nothing where the whole interval lies within ±{INVISIBLE:.5f}."
            ),
            _at_a_glance(found, COPY if has_copies else ALL),
            _in_full(found, has_copies),
        ),
        frame=pd.DataFrame.from_records(content),
        content=content,
    )


def _content(row: Row) -> dict[str, Any]:
    content = asdict(row)
    figures = content.pop("figures")
    return {**content, **{metric.key: figures.get(metric.key) for metric in metrics.followed()}, "effect": row.effect}


def _at_a_glance(found: Sequence[Row], group: str) -> Table:
    """A row a variant, a column an intervention."""
    names = [name for name in dict.fromkeys(row.intervention for row in found) if name != NONE]
    cells: dict[str, dict[str, str]] = {}
    for row in found:
        text = _change_in_words((row.changes or {}).get(group)) if row.applies else row.effect
        cells.setdefault(row.variant, {})[row.intervention] = text
    return table(
        ["variant", *names],
        [[variant, *(of.get(name, NOTHING) for name in names)] for variant, of in cells.items()],
        title=f"Change in loss {'on copies' if group == COPY else 'over all tokens'}",
        in_terminal=False,
    )


def _in_full(found: Sequence[Row], has_copies: bool) -> Table:
    """A row a variant and intervention."""
    groups = {ALL: "change", **({COPY: "copies", OTHER: "elsewhere"} if has_copies else {})}
    shown = [metrics.get(key) for key in SHOWN]
    titles = ["\n".join(shown[0].words.rsplit(" ", 1)), *(metric.wrapped for metric in shown[1:])]
    columns = ["variant", "intervention", "loss", *groups.values(), *titles]
    rows, above = [], ""
    for row in found:
        variant = Cell(row.variant, bold=True, tail=f", {row.n_seeds} seed{'s' if row.n_seeds > 1 else ''}")
        changes = row.changes or {}
        rows.append(
            (
                variant if row.variant != above else "",
                row.intervention,
                NOTHING if row.loss is None else number(row.loss, "nats"),
                *("" if row.intervention == NONE else _change_in_words(changes.get(group)) for group in groups),
                *(metric.text(row.figures.get(metric.key)) for metric in shown),
                row.effect,
            )
        )
        above = row.variant
    title = "Loss, sink and largest activations under each intervention"
    return table([*columns, Column("effect", words=True)], rows, n_words=2, title=title)


def _change_in_words(change: Change | None) -> str:
    if change is None:
        return NOTHING
    text = f"{round(change.change, 4) + 0.0:+.4f}"  # no -0.0000
    if change.low is None or change.high is None:
        return text
    return f"{text} ± {(change.high - change.low) / 2:.4f}"
