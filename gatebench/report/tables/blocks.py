"""What a printed result is made of: tables, and what stands around them. ``forms`` prints these, ``document`` all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a table of plain words, as `gatebench list` prints, waits for no statistics
    from gatebench.report.analysis.stats import Verdict

MARKS: Mapping[Verdict, str] = {"better": "✓", "worse": "✗", "not resolvable": "~"}
"""What stands behind a number with a verdict against the baseline."""
AT_CHANCE = "°"
"""What stands behind a benchmark's score that guessing could give."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    verdict: Verdict | None = None
    """Its mark stands behind the text."""
    bold: bool = False
    tail: str = ""
    """Stands behind the text, and is not bold."""
    style: str = ""
    """A word of ``_STYLES``."""
    value: Any = None
    """What a page sorts by, where that is not the text."""
    link: str = ""
    """Where the text leads to, in a page."""

    @property
    def marked(self) -> str:
        """The text with the verdict's mark."""
        return f"{self.text} {MARKS[self.verdict]}" if self.verdict else self.text


@dataclass(frozen=True)
class Column:
    """The head of a column."""

    title: str
    """A line break in it is one in the terminal, and a space elsewhere."""
    words: bool = False
    """Whether it holds words, to the left; numbers stand to the right."""
    span: str = ""
    """A head over neighbours that have the same one, in LaTeX and HTML; ``under`` then stands in place of the title."""
    under: str = ""
    in_terminal: bool = True

    @property
    def line(self) -> str:
        """The title on one line."""
        return " ".join(self.title.split())


@dataclass(frozen=True)
class Table:
    """Rows of cells. In a terminal, words on the left that stand in the row above, too, are left out.

    An empty one stands for the one above in every form.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    """Where a document has several."""
    in_terminal: bool = True

    @property
    def n_words(self) -> int:
        """Columns from the left that hold words."""
        return next((i for i, column in enumerate(self.columns) if not column.words), len(self.columns))


@dataclass(frozen=True)
class Paragraph:
    """A sentence or several that stand between tables."""

    text: str
    in_terminal: bool = True


@dataclass(frozen=True)
class Lines:
    """Things of one kind, a line each; a line that begins with a blank belongs to the one above it."""

    lines: tuple[str, ...]
    in_terminal: bool = True


@dataclass(frozen=True)
class Sentences:
    """What a table says, in sentences of a line each, the most important first."""

    lines: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """What a reader must know, without a full stop."""

    text: str
    blocking: bool = False
    """Whether it is why there is no verdict."""

    @property
    def sentence(self) -> str:
        """As every form but the terminal has it."""
        return f"{'Blocks a verdict.' if self.blocking else 'Note:'} {self.text}."


@dataclass(frozen=True)
class Notes:
    """Notes that stand together."""

    notes: tuple[Note, ...]


@dataclass(frozen=True)
class Legend:
    """What the reader has to know to read a cell."""

    text: str
    in_terminal: bool = True


@dataclass(frozen=True)
class Heading:
    """A head of what follows, of a second level."""

    text: str


Block = Table | Paragraph | Lines | Sentences | Notes | Legend | Heading


def table(
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[str | Cell]],
    *,
    n_words: int = 1,
    title: str = "",
    in_terminal: bool = True,
) -> Table:
    """A table of plain titles and texts, of which the first ``n_words`` columns hold words."""
    heads = [c if isinstance(c, Column) else Column(c, words=i < n_words) for i, c in enumerate(columns)]
    cells = [tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows]
    return Table(tuple(heads), tuple(cells), title, in_terminal)


def notes(texts: Sequence[str]) -> Notes:
    """Notes of which none blocks a verdict."""
    return Notes(tuple(map(Note, texts)))
