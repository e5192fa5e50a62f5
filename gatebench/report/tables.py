"""The paper's tables, filled with our runs. A table is one function here: frame in, :class:`PaperTable` out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from gatebench.errors import UserError
from gatebench.paper import PaperRow, paper_rows
from gatebench.report.comparison import is_synthetic, run_facts
from gatebench.report.flags import Flag, comparison_flags, flag_text, seed_text
from gatebench.report.paper_table import Column, Estimate, PaperTable, Row, order_check, rank_correlation
from gatebench.report.wording import number
from gatebench.variants import get

SINK_ORDER = (
    ("baseline",),
    ("g1_elementwise_input_independent", "g1_elementwise_ns_sigmoid"),
    ("g1_elementwise", "g1_headwise"),
)
"""From the largest first-token share down: no gate; gates that cannot be sparse where the query wants it; those that
can. The paper's Table 4 has this order."""


def make(
    table: int,
    frame: pd.DataFrame,
    baseline: str,
    variants: Sequence[str],
    labels: Mapping[str, str] | None = None,
) -> PaperTable:
    """Fill the paper's table with the runs of ``baseline`` and ``variants`` in ``frame`` (``results.load``).

    Rows come in the paper's order, then those that its table lacks in the order of ``variants``. ``labels`` gives the
    words to print for a variant's name. Raises :class:`UserError` for a table that is not made here, a variant without
    a finished run, and two runs of one variant at one seed.
    """
    check_available([table])
    names = [baseline, *(name for name in variants if name != baseline)]
    runs = frame[frame["variant"].isin(names)]
    if missing := [name for name in names if name not in set(runs["variant"])]:
        raise UserError(f"table {table}: no finished run of {', '.join(missing)}; legal: variants that have some")
    twice = runs[runs.duplicated(["variant", "seed"])]
    if len(twice):
        first = twice.iloc[0]
        raise UserError(f"table {table}: several runs of {first['variant']} at seed {first['seed']}; legal: one")
    return _MAKERS[table](runs, baseline, names, labels or {})


def check_available(tables: Sequence[int]) -> None:
    """Raise :class:`UserError` for a table that is not made here."""
    if unknown := [table for table in tables if table not in _MAKERS]:
        raise UserError(f"table {unknown[0]}: cannot be made yet; legal: {', '.join(map(str, _MAKERS))}")


def _table4(runs: pd.DataFrame, baseline: str, names: Sequence[str], labels: Mapping[str, str]) -> PaperTable:
    """Gate score, M-Act, first-token share, and perplexity; on synthetic data the excess loss stands for the last."""
    floors = sorted({number(value, "floor") for value in runs["first_token_floor"].dropna()})
    floor = f"\n(floor {' or '.join(floors)})" if floors else ""
    columns = [
        Column("gate_mean", "Gate score", "score", "gate_score"),
        Column("m_act", "M-Act", "activation", "m_act"),
        Column("first_token_share", f"First-token share{floor}", "share", "f_attn"),
        Column("first_token_excess", "times\nfloor", "ratio", interval=False),
        Column("first_token_floor", "Uniform floor", "floor", interval=False, shown=False),
    ]
    if is_synthetic(runs):
        columns.append(Column("excess_loss", "Excess loss\n(nats)", "nats", "avg_ppl", "paper\nAvg PPL"))
    else:
        columns.append(Column("avg_ppl", "Avg PPL", "perplexity", "avg_ppl"))
    rows = _rows(4, runs, names, labels, columns)
    score, m_act, share = (
        next(c for c in columns if c.key == key) for key in ("gate_mean", "m_act", "first_token_share")
    )
    return PaperTable(
        number=4,
        title="Sparsity and attention sinks",
        facts=run_facts(runs, runs[runs["variant"] == baseline]),
        baseline=baseline,
        columns=tuple(columns),
        rows=tuple(rows),
        correlations=tuple(rank_correlation(rows, score, other) for other in (share, m_act)),
        order=order_check(rows, share, SINK_ORDER),
        notes=tuple(_notes(runs, baseline, names)),
    )


def _rows(
    table: int, runs: pd.DataFrame, names: Sequence[str], labels: Mapping[str, str], columns: Sequence[Column]
) -> list[Row]:
    """A row a variant: the paper's in its order, then the others."""
    printed = {_canonical(row): row for row in paper_rows(table)}
    rows = []
    for name in names:
        theirs = printed.get(name)
        own = runs[runs["variant"] == name]
        rows.append(
            Row(
                variant=name,
                label=labels.get(name, name),
                paper_row=None if theirs is None else theirs.row,
                ours={column.key: _estimate(own, column.key) for column in columns},
                theirs={}
                if theirs is None
                else {c.paper: theirs.printed[c.paper] for c in columns if c.paper in theirs.printed},
            )
        )
    return sorted(rows, key=lambda row: (row.paper_row is None, row.paper_row or 0))


def _canonical(row: PaperRow) -> str:
    return get(row.variant).name if row.variant else ""


def _estimate(runs: pd.DataFrame, column: str) -> Estimate:
    if column not in runs:
        return Estimate({})
    done = runs[runs["status"] == "done"].sort_values("seed")
    values = zip(done["seed"], done[column].astype("float64"), strict=True)
    return Estimate({int(seed): float(value) for seed, value in values if np.isfinite(value)})


def _notes(runs: pd.DataFrame, baseline: str, names: Sequence[str]) -> list[str]:
    """Variants that lack a seed, and what blocks a comparison with the baseline."""
    seeds = sorted({int(seed) for seed in runs["seed"]})
    flags: dict[tuple[str, str], Flag] = {}
    notes = []
    for name in names:
        own = runs[runs["variant"] == name]
        if lacking := sorted(set(seeds) - set(map(int, own["seed"]))):
            notes.append(f"{name} has no run at {seed_text(lacking)}")
        for flag in comparison_flags(runs[runs["variant"] == baseline], own, name) if name != baseline else ():
            if flag.blocking:
                flags.setdefault((flag.code, flag_text(flag)), flag)
    return [*notes, *(text for _, text in flags)]


Maker = Callable[[pd.DataFrame, str, Sequence[str], Mapping[str, str]], PaperTable]

_MAKERS: Mapping[int, Maker] = {4: _table4}
