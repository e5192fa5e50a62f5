"""A table on the terminal that is drawn again as things change, and lines that stay above it."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.live import Live


class LiveTable:
    """What both a sweep and tuning show; `_live` is None where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *ended: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
