"""Standard output: one console for every command that prints a table."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_ELSEWHERE = 140
"""Columns where there is no terminal (a file, a pipe, CI), so that no column is squeezed out of a table."""


def stdout_console() -> Console:
    """Return a console on standard output, as wide as the terminal or, where there is none, wide enough."""
    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if known else WIDTH_ELSEWHERE)
