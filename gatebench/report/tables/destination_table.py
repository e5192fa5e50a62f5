"""Where attention goes, as a table over variants and seeds: destinations, entropy, output norms and value norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from gatebench.report.read.probe_files import ProbedRun, by_variant, context
from gatebench.report.tables.comparison_table import markdown_table

DESTINATIONS = ("first", "self", "previous", "trigger", "rest", "none")
QUERIES = ("idle", "trigger")
STAGES = {"sdpa": "SDPA", "gated": "after G1", "o_proj": "o_proj", "output": "after G5"}
SHORT = {"previous": "prev", "trigger": "trig", "ordinary": "other"}
"""What a terminal has room for."""
ROUNDING = 1e-4
"""A share below it is a row of softmax that does not sum to one in fp32."""
VALUES = ("first", "trigger", "ordinary")


@dataclass(frozen=True)
class Row:
    """One variant, one kind of queries, in one layer or over all: means over heads and seeds."""

    variant: str
    n_seeds: int
    layer: int | None
    """From 1; None is the mean over layers."""
    queries: str
    """`idle`, `trigger`, or `all` on text, where nothing says which are which."""
    shares: dict[str, float]
    """Of the attention, by destination; without `trigger` on text, without `none` where all goes to tokens."""
    shares_by_seed: dict[str, tuple[float, ...]]
    entropy: float
    """Of the attention row, nats."""
    norms: dict[str, float]
    """Of the output, by stage; SDPA and G1 by head, the others by layer."""
    values: dict[str, float]
    """Norm of the value after G2, by the kind of token: the same for both kinds of queries."""


def rows(runs: Sequence[ProbedRun], baseline: str = "baseline") -> list[Row]:
    """Return a row for every variant, kind of queries and layer (first over all layers, then each where several)."""
    table = []
    for variant, seeds in by_variant(runs, baseline).items():
        n_layers = seeds[0].arrays["attention_idle"].shape[0]
        layers = [None, *range(n_layers)] if n_layers > 1 else [None]
        table += [_row(variant, seeds, layer, queries) for layer in layers for queries in _queries(seeds)]
    return table


def _queries(seeds: Sequence[ProbedRun]) -> list[str]:
    return [queries for queries in QUERIES if all(f"attention_{queries}" in run.arrays for run in seeds)]


def _row(variant: str, seeds: Sequence[ProbedRun], layer: int | None, queries: str) -> Row:
    chosen = slice(None) if layer is None else slice(layer, layer + 1)

    def mean(name: str) -> float:
        return float(np.mean([run.arrays[name][chosen].mean() for run in seeds]))

    has_triggers = len(_queries(seeds)) > 1
    by_seed = {
        name: tuple(float(run.arrays[f"attention_{queries}"][chosen][..., place].mean()) for run in seeds)
        for place, name in enumerate(DESTINATIONS)
        if name != "trigger" or has_triggers
    }
    if max(by_seed["none"]) < ROUNDING:
        del by_seed["none"]
    values = {name: f"value_norm_{name}" for name in VALUES} if has_triggers else {}
    values |= {} if has_triggers else {"first": "value_norm_first", "ordinary": "value_norm_rest"}
    return Row(
        variant=variant,
        n_seeds=len(seeds),
        layer=None if layer is None else layer + 1,
        queries=queries if has_triggers else "all",
        shares={name: float(np.mean(found)) for name, found in by_seed.items()},
        shares_by_seed=by_seed,
        entropy=mean(f"attention_{queries}_entropy"),
        norms={stage: mean(f"norm_{stage}_{queries}") for stage in STAGES},
        values={name: mean(array) for name, array in values.items()},
    )


def to_dicts(table: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as plain data, for JSON."""
    return [asdict(row) for row in table]


def to_rich(table: Sequence[Row]) -> Table:
    """Return the table for a terminal, means over layers and heads."""
    title = (
        "Where attention goes (shares; entropy in nats), norms of the output and of values after G2; means over seeds"
    )
    rich = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    rich.pad_edge, rich.collapse_padding = False, True
    for index, heading in enumerate(_headings(table)):
        for word, short in SHORT.items():
            heading = heading.replace(word, short)
        rich.add_column(heading.replace(": ", "\n"), justify="left" if index < 2 else "right", no_wrap=True)
    last = None
    for row in table:
        if row.layer is None:
            if last not in (None, row.variant):
                rich.add_section()
            rich.add_row(*_cells(row, table, first=last != row.variant))
            last = row.variant
    return rich


def to_markdown(table: Sequence[Row], runs: Sequence[ProbedRun]) -> str:
    """Return the table in Markdown; with several layers, one over all and then one a layer."""
    lines = ["# Where attention goes", "", context(runs), ""]
    lines += [
        "Share of the attention of a query by destination (a key counts for the first of these that it is), entropy of "
        "the row in nats, norm of the output at four points, norm of the value after G2 by kind of token. Means over "
        "heads and n seeds. Idle queries are those that are no trigger; docs/evaluation.md defines the rest.",
        "",
    ]
    for layer in dict.fromkeys(row.layer for row in table):
        if len({row.layer for row in table}) > 1:
            lines += ["## All layers" if layer is None else f"## Layer {layer}", ""]
        cells = [_cells(row, table, first=True) for row in table if row.layer == layer]
        lines += [*markdown_table(_headings(table), cells, n_words=2, words_last=False), ""]
    return "\n".join(lines)


def _headings(table: Sequence[Row]) -> list[str]:
    shares, values = _columns(table)
    return [
        "variant",
        "queries",
        "n",
        *(f"on: {name}" for name in shares),
        "entropy",
        *(f"out: {name}" for name in STAGES.values()),
        *(f"value: {name}" for name in values),
    ]


def _columns(table: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Destinations and kinds of tokens that any row has."""

    def present(names: Sequence[str], of: Callable[[Row], dict[str, float]]) -> list[str]:
        return [name for name in names if any(name in of(row) for row in table)]

    return present(DESTINATIONS, lambda row: row.shares), present(VALUES, lambda row: row.values)


def _cells(row: Row, table: Sequence[Row], *, first: bool) -> list[str]:
    shares, values = _columns(table)
    return [
        row.variant if first else "",
        row.queries,
        str(row.n_seeds),
        *(f"{row.shares[name]:.3f}" if name in row.shares else "-" for name in shares),
        f"{row.entropy:.2f}",
        *(f"{row.norms[stage]:.2f}" for stage in STAGES),
        *(f"{row.values[name]:.2f}" if name in row.values else "-" for name in values),
    ]
