"""A printed result in every form: terminal, Markdown, LaTeX, HTML, CSV, JSON. The same document gives the same bytes.

A module of a table says what stands in it, as blocks: tables, lists, sentences, notes, a legend. Every form prints
every block, so that a caveat that one of them has is in all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from gatebench.files import write_atomic
from gatebench.report.tables import forms
from gatebench.report.tables.blocks import Block, Legend, Lines, Note, Notes, Sentences, Table, notes
from gatebench.report.text import header_lines


@dataclass(frozen=True)
class Document:
    """What a result says, and the numbers behind it."""

    name: str
    """Stem of its files."""
    title: str
    blocks: tuple[Block, ...]
    """Empty ones are left out."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What every number depends on (``comparison.run_facts``); stated above the rest."""
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Every number unrounded: the CSV."""
    content: Any = None
    """Plain values: the JSON, to which notes and legend are added. A number that does not exist is NaN or None."""
    caption: str = ""
    """The title in LaTeX and above the table in a page, where it is another."""

    @cached_property
    def _header(self) -> list[str]:
        return header_lines(self.facts) if self.facts else []

    @cached_property
    def _shown(self) -> list[Block]:
        return [
            block
            for block in self.blocks
            if not (isinstance(block, Lines | Sentences) and not block.lines)
            and not (isinstance(block, Notes) and not block.notes)
        ]

    @property
    def _table_title(self) -> str:
        return self.title if len(self.tables) == 1 else ""

    @property
    def heading(self) -> str:
        """The title above a table that names itself: LaTeX has it, and a page."""
        return self.caption or self.title

    @property
    def prose(self) -> list[str]:
        """What stands around the tables, sentence by sentence."""
        return [part for block in self._shown for part in forms.prose(block)]

    @property
    def notes(self) -> tuple[Note, ...]:
        """All notes, in their order."""
        return tuple(note for block in self.blocks if isinstance(block, Notes) for note in block.notes)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables, in their order."""
        return tuple(block for block in self.blocks if isinstance(block, Table))

    def to_rich(self) -> Group:
        """For a terminal of 120 columns or more; print it with a ``rich.console.Console``."""
        parts: list[RenderableType] = [Text(line, style="dim") for line in self._header]
        parts += [part for block in self._shown for part in forms.in_terminal(block, self._table_title)]
        return Group(*parts)

    def to_markdown(self) -> str:
        """One Markdown document."""
        parts = [f"# {self.title}"]
        if self._header:
            parts.append("\n".join(f"- {part}" for line in self._header for part in line.split("; ")))
        return "\n\n".join([*parts, *map(forms.in_markdown, self._shown)]) + "\n"

    def to_latex(self) -> str:
        """A ``table`` environment (``booktabs``) a table, and paragraphs where other text stands.

        A caption holds what the table must not be read without: the notes below it and, in the first, legends.
        """
        captions = [[f"{self.heading}.", *([f"{table.title}."] if table.title else [])] for table in self.tables]
        body: list[Table | str] = []
        n_above = 0
        for block in self._shown:
            if isinstance(block, Table):
                body.append(block)
                n_above += 1
            elif isinstance(block, Notes | Legend) and captions:
                captions[0 if isinstance(block, Legend) else max(n_above - 1, 0)] += forms.prose(block)
            else:
                body += forms.prose(block)
        names = [self.name] if len(captions) == 1 else [f"{self.name}-{i + 1}" for i in range(len(captions))]
        heads = zip(captions, names, strict=True)
        lines = [f"% {line}" for line in self._header]
        for part in body:
            if isinstance(part, Table):
                caption, name = next(heads)
                lines += forms.in_latex(part, " ".join(caption), name)
            else:
                lines += ["", forms.latex_text(part), ""]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """Tables with what stands around them, to be put into a page."""
        return "\n".join(line for block in self._shown for line in forms.in_html(block, self.title)) + "\n"

    def to_csv(self) -> str:
        """The frame, every number with ten digits."""
        return self.frame.to_csv(index=False, lineterminator="\n", float_format="%.10g")

    def to_dict(self) -> Any:
        """Plain values for JSON, notes and legend among them; a number that does not exist is None."""
        if not isinstance(self.content, Mapping):
            return without_nan(self.content)
        around: dict[str, Any] = {}
        if any(isinstance(block, Notes) for block in self.blocks):
            around["notes"] = [note.text for note in self.notes]
        if legends := [block.text for block in self.blocks if isinstance(block, Legend)]:
            around["legend"] = " ".join(legends)
        return without_nan({**self.content, **around})

    def to_json(self) -> str:
        """:meth:`to_dict` as indented text, ending in a newline."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, directory: str | Path) -> list[Path]:
        """Write every form but the terminal's as ``<name>.<suffix>`` and return the paths."""
        texts = {
            "md": self.to_markdown(),
            "csv": self.to_csv(),
            "json": self.to_json(),
            "tex": self.to_latex(),
            "html": self.to_html(),
        }
        Path(directory).mkdir(parents=True, exist_ok=True)
        paths = []
        for suffix, text in texts.items():
            paths.append(Path(directory) / f"{self.name}.{suffix}")
            write_atomic(paths[-1], text)
        return paths


def of_one_table(
    name: str,
    title: str,
    facts: Mapping[str, Any],
    table: Table,
    frame: pd.DataFrame,
    legend: str,
    caveats: Sequence[str] = (),
) -> Document:
    """A table with what must be known of it below; a record of ``frame`` is a row of the JSON."""
    content = {"schema": 1, "table": name, "title": title, "facts": facts, "rows": frame.to_dict("records")}
    return Document(name, title, (table, notes(caveats), Legend(legend)), facts, frame, content)


def without_nan(value: Any) -> Any:
    """The same nested value with None in place of every number that is not finite, as strict JSON wants it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value
