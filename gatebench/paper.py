"""The paper's own numbers (arXiv 2505.06708), read from results/paper/*.csv. Standard library only."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gatebench.errors import UserError
from gatebench.paths import project_root

TABLES: Mapping[int, str] = {
    1: "table1_gating_variants.csv",
    2: "table2_dense_stability.csv",
    3: "table3_nonlinearity.csv",
    4: "table4_sparsity_and_sinks.csv",
    5: "table5_long_context_ruler.csv",
    6: "table6_switch_head.csv",
    7: "table7_architectures.csv",
}

_WORDS = frozenset({"group", "method", "variant", "act_func", "score_shape", "tokens", "model", "extension"})
"""Columns that are text even where they look like numbers."""


@dataclass(frozen=True)
class PaperRow:
    """One row of one table of the paper."""

    table: int
    row: int
    """From 1, in the paper's order."""
    method: str
    """The paper's own words for the row."""
    variant: str
    """Our name for it; empty in Table 7, whose rows are architectures."""
    printed: dict[str, str]
    """Every cell of the row as printed, by column; a cell without a value is absent."""

    @property
    def numbers(self) -> dict[str, float]:
        """The numeric cells. A diverged run has none for its metrics."""
        found = {}
        for column, text in self.printed.items():
            if column not in _WORDS and column != "row" and text not in ("true", "false"):
                found[column] = float(text)
        return found

    @property
    def diverged(self) -> bool:
        """Whether the paper prints "-" for the row because training diverged."""
        return self.printed.get("diverged") == "true"


def paper_rows(table: int) -> list[PaperRow]:
    """The rows of one table, in the paper's order. Raises :class:`UserError` for a table that is not there."""
    if table not in TABLES:
        raise UserError(f"paper: no table {table}; legal is one of {', '.join(map(str, TABLES))}")
    rows = []
    for number, cells in enumerate(_read(_folder() / TABLES[table]), start=1):
        printed = {column: text for column, text in cells.items() if text != ""}
        rows.append(
            PaperRow(
                table=table,
                row=int(printed.get("row", number)),
                method=printed.get("method") or printed.get("model", ""),
                variant=printed.get("variant", ""),
                printed=printed,
            )
        )
    return rows


def paper_numbers(variant: str, aliases: Iterable[str] = ()) -> dict[int, list[PaperRow]]:
    """Every row of the paper about a variant, by table; tables without one are absent.

    ``aliases`` are other names under which the tables list the same variant. Table 2 has several rows of one variant,
    one a scale and learning rate.
    """
    names = {variant, *aliases}
    found = {table: [row for row in paper_rows(table) if row.variant in names] for table in TABLES}
    return {table: rows for table, rows in found.items() if rows}


def figure_facts() -> list[dict[str, str]]:
    """Numbers read off the paper's figures and released curves: figure, model, quantity, baseline, sdpa_gate, note."""
    return [dict(cells) for cells in _read(_folder() / "figure_facts.csv")]


def _folder() -> Path:
    """results/paper of the project, or of this checkout when the project root is elsewhere and has none."""
    below = Path("results") / "paper"
    own = project_root() / below
    return own if own.is_dir() else Path(__file__).resolve().parent.parent / below


@cache
def _read(path: Path) -> tuple[dict[str, str], ...]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return tuple(csv.DictReader(file))
    except FileNotFoundError:
        raise UserError(f"paper: {path} not found; it is part of the repository, restore it with git") from None
