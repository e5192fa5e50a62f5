"""What commands print: one console for every table, and the list of what was written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from gatebench.report.tables.blocks import Cell, Column

WIDTH_ELSEWHERE = 140
"""Columns where there is no terminal (a file, a pipe, CI), so that no column is squeezed out of a table."""


def stdout_console() -> Console:
    """Return a console on standard output, as wide as the terminal or, where there is none, wide enough."""
    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, markup=False, width=None if known else WIDTH_ELSEWHERE)


def stderr_console() -> Console:
    """Return a console on standard error. What it prints is text: a bracket in a message or a name is no markup."""
    from rich.console import Console

    return Console(stderr=True, markup=False)


def terminal_table(
    columns: Sequence[str | Column], rows: Iterable[Sequence[str | Cell]], *, n_words: int = 1, title: str = ""
) -> RenderableType:
    """A table of plain titles and texts as every report prints one; the first ``n_words`` columns hold words."""
    from gatebench.report.tables.blocks import table
    from gatebench.report.tables.forms import in_terminal

    return next(in_terminal(table(columns, rows, n_words=n_words, title=title), ""))


def print_written(files: Sequence[Path]) -> None:
    """List files that were written, on standard error."""
    stderr_console().print("written:", style="bold")
    for file in files:
        print(f"  {file}", file=sys.stderr)
