"""Where attention goes, as a table over variants and seeds: destinations, entropy, output norms and value norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from gatebench.report.analysis.destinations import DESTINATIONS, STAGES, VALUES, Row
from gatebench.report.analysis.flags import Flag, flag_text
from gatebench.report.read.probe_files import ProbedRun, context
from gatebench.report.tables.blocks import Block, Paragraph, notes, table
from gatebench.report.tables.document import Document
from gatebench.report.text import NOTHING


def document(found: Sequence[Row], runs: Sequence[ProbedRun], findings: Sequence[Flag] = ()) -> Document:
    """One table over all layers and, in all forms but the terminal, with several layers one a layer.

    Below it the findings about single gates.
    """
    content = [asdict(row) for row in found]
    shares = [name for name in DESTINATIONS if any(name in row.shares for row in found)]
    values = [name for name in VALUES if any(name in row.values for row in found)]
    columns = (
        *("variant", "queries", "n", *(f"on:\n{name}" for name in shares), "entropy"),
        *(f"out:\n{name}" for name in STAGES.values()),
        *(f"value:\n{name}" for name in values),
    )
    layers = dict.fromkeys(row.layer for row in found)
    tables: list[Block] = []
    for layer in layers:
        title = "" if len(layers) == 1 else "All layers" if layer is None else f"Layer {layer}"
        cells = [_cells(row, shares, values) for row in found if row.layer == layer]
        tables.append(table(columns, cells, n_words=2, title=title, in_terminal=layer is None))
    return Document(
        name="destinations",
        title="Where attention goes",
        blocks=(
            Paragraph(context(runs)),
            Paragraph(
                "Share of the attention of a query by destination (a key counts for the first of these that it is), "
                "entropy of the row in nats, norm of the output at four points, norm of the value after G2 by kind of "
                "token. Means over heads and n seeds. Idle queries are those that are no trigger; docs/evaluation.md "
                "defines the rest."
            ),
            *tables,
            notes([flag_text(flag) for flag in findings]),
        ),
        frame=pd.DataFrame.from_records(content),
        content=content,
    )


def _cells(row: Row, shares: Sequence[str], values: Sequence[str]) -> list[str]:
    return [
        row.variant,
        row.queries,
        str(row.n_seeds),
        *(f"{row.shares[name]:.3f}" if name in row.shares else NOTHING for name in shares),
        f"{row.entropy:.2f}",
        *(f"{row.norms[stage]:.2f}" for stage in STAGES),
        *(f"{row.values[name]:.2f}" if name in row.values else NOTHING for name in values),
    ]
