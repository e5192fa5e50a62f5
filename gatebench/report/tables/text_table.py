"""A table of text cells in every form that people and programs read. The same table gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatebench.report.tables.comparison_table import markdown_table, without_nan, write_forms
from gatebench.report.tables.paper_table_rendering import latex_text
from gatebench.report.tables.text import header_lines


@dataclass(frozen=True)
class TextTable:
    """What a table says, cell by cell, and the numbers behind it."""

    name: str
    """Stem of its files."""
    title: str
    facts: Mapping[str, Any]
    """What every number depends on (``comparison.run_facts``)."""
    columns: tuple[str, ...]
    """A line break in one is one in the terminal, and a space elsewhere."""
    rows: tuple[tuple[str, ...], ...]
    frame: pd.DataFrame
    """Every number unrounded, a record a row: the CSV, and the rows of the JSON."""
    legend: str
    n_words: int = 1
    """Columns from the left that hold words."""
    notes: tuple[str, ...] = ()

    def to_rich(self) -> Group:
        """For a terminal of 120 columns or more. What stands in the words of the row above is left out."""
        grid = Table(title=self.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        grid.pad_edge, grid.collapse_padding = False, True
        for index, column in enumerate(self.columns):
            grid.add_column(column, justify="left" if index < self.n_words else "right", overflow="fold")
        last: tuple[str, ...] = ()
        for row in self.rows:
            same = [last[: i + 1] == row[: i + 1] for i in range(self.n_words - 1)]
            grid.add_row(*("" if i < len(same) and same[i] else cell for i, cell in enumerate(row)))
            last = row
        parts: list[RenderableType] = [Text(line, style="dim") for line in header_lines(self.facts)]
        parts += [grid, *(Text(f"! {note}", style="yellow") for note in self.notes)]
        return Group(*parts, Text(self.legend, style="dim"))

    def to_markdown(self) -> str:
        """One Markdown document."""
        lines = [f"# {self.title}", ""]
        lines += [f"- {part}" for line in header_lines(self.facts) for part in line.split("; ")]
        lines += ["", *markdown_table(self._titles(), self.rows, n_words=self.n_words, words_last=False), ""]
        lines += [f"- Note: {note}." for note in self.notes] + [""] * bool(self.notes)
        return "\n".join([*lines, self.legend]) + "\n"

    def to_latex(self) -> str:
        """A table environment with booktabs rules."""
        lines = [f"% {line}" for line in header_lines(self.facts)]
        lines += ["\\begin{table}", "\\centering", "\\small", f"\\caption{{{latex_text(self._caption())}}}"]
        columns = "l" * self.n_words + "r" * (len(self.columns) - self.n_words)
        lines += [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", _latex_row(self._titles()), "\\midrule"]
        lines += map(_latex_row, self.rows)
        lines += ["\\bottomrule", "\\end{tabular}", f"\\label{{tab:gatebench-{self.name}}}", "\\end{table}"]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """A table element with what stands below it, to be put into a page."""
        lines = ['<table class="paper-table">', f"<caption>{escape(self.title)}</caption>"]
        lines.append(f"<thead><tr>{''.join(f'<th>{escape(title)}</th>' for title in self._titles())}</tr></thead>")
        lines.append("<tbody>")
        for row in self.rows:
            cells = [f"<{tag}>{escape(cell)}</{tag}>" for tag, cell in zip(self._tags(), row, strict=True)]
            lines.append(f"<tr>{''.join(cells)}</tr>")
        lines += ["</tbody>", "</table>", *(f"<p>{escape(f'Note: {note}.')}</p>" for note in self.notes)]
        return "\n".join([*lines, f'<p class="legend">{escape(self.legend)}</p>']) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is None."""
        content = {"schema": 1, "table": self.name, "title": self.title, "facts": dict(self.facts)}
        plain: dict[str, Any] = without_nan({**content, "rows": self.frame.to_dict("records")})
        return {**plain, "notes": list(self.notes), "legend": self.legend}

    def write(self, directory: Path) -> list[Path]:
        """Write every form but the terminal's and return the paths."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        more = {"tex": self.to_latex(), "html": self.to_html()}
        return write_forms(directory, self.name, self.to_markdown(), self.frame, text, **more)

    def _titles(self) -> list[str]:
        return [" ".join(column.split()) for column in self.columns]

    def _tags(self) -> list[str]:
        return ["th"] * self.n_words + ["td"] * (len(self.columns) - self.n_words)

    def _caption(self) -> str:
        return " ".join([f"{self.title}.", *(f"{note}." for note in self.notes), self.legend])


def _latex_row(cells: tuple[str, ...] | list[str]) -> str:
    return " & ".join(map(latex_text, cells)) + " \\\\"
