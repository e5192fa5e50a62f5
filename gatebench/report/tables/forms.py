"""How each form prints a block of a document: terminal, Markdown, LaTeX, HTML. Nothing else knows how a form looks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import pairwise

from rich import box
from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from gatebench.report.tables.blocks import (
    AT_CHANCE,
    MARKS,
    Block,
    Cell,
    Heading,
    Legend,
    Lines,
    Notes,
    Paragraph,
    Sentences,
    Table,
)

_LATEX_MARKS = {"✓": "$^{+}$", "✗": "$^{-}$", "~": "$^{\\sim}$", AT_CHANCE: "$^{\\circ}$"}
_LATEX_ESCAPES = (
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {
        "\\": r"\textbackslash{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "σ": r"$\sigma$",
        "<": "$<$",
        ">": "$>$",
        "|": r"$\vert$",
    }
    | _LATEX_MARKS
)
_STYLES = {
    "better": "bold green",
    "worse": "bold red",
    "not resolvable": "yellow",
    "supported": "bold green",
    "contradicted": "bold red",
    "not tested": "dim",
    "paper": "cyan",
}
"""Of a cell's style, in a terminal; HTML has it as a class."""


def latex_text(text: str) -> str:
    """The text with what LaTeX minds spelled out."""
    return "".join(_LATEX_ESCAPES.get(letter, letter) for letter in text)


def prose(block: Block) -> Iterator[str]:
    """The sentences of what is no table."""
    if isinstance(block, Notes):
        yield from (note.sentence for note in block.notes)
    elif isinstance(block, Sentences):
        yield from block.lines
    elif isinstance(block, Lines):
        yield from (line.strip() if line.endswith(":") else f"{line.strip()}." for line in block.lines)
    elif isinstance(block, Heading):
        yield f"{block.text}."
    elif isinstance(block, Paragraph | Legend):
        yield block.text


def in_terminal(block: Block, title: str) -> Iterator[RenderableType]:
    """What a terminal shows of a block; ``title`` is of a table that has none."""
    if isinstance(block, Table | Lines | Paragraph | Legend) and not block.in_terminal:
        return
    if isinstance(block, Table):
        yield _rich_table(_for_terminal(block), block.title or title)
    elif isinstance(block, Notes):
        yield from (Text(f"! {note.text}", style="red" if note.blocking else "yellow") for note in block.notes)
    elif isinstance(block, Sentences):
        yield from (Text(line, style="" if i else "bold") for i, line in enumerate(block.lines))
    elif isinstance(block, Lines):
        yield from map(Text, block.lines)
    elif isinstance(block, Heading):
        yield Text(block.text, style="bold")
    else:
        yield Text(block.text, style="dim")


def _for_terminal(table: Table) -> Table:
    shown = [i for i, column in enumerate(table.columns) if column.in_terminal]
    rows = tuple(tuple(row[i] for i in shown) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in shown), rows=rows)


def _rich_table(table: Table, title: str) -> RichTable:
    named = Text(title, style="bold") if title else None  # a setting in it may hold brackets, which are no markup
    rich = RichTable(title=named, title_justify="left", box=box.SIMPLE_HEAD)
    rich.pad_edge, rich.collapse_padding = False, True
    for column in table.columns:
        rich.add_column(Text(column.title), justify="left" if column.words else "right", overflow="fold")
    groups = max(0, table.n_words - 1)
    above: list[str] = []
    is_grouped = groups and any(below[0].text in (row[0].text, "") for row, below in pairwise(table.rows))
    for row in table.rows:
        words = [cell.text or above[i] if above else cell.text for i, cell in enumerate(row[:groups])]
        same = [above[: i + 1] == words[: i + 1] for i in range(groups)]
        if is_grouped and above and not same[0]:
            rich.add_section()
        rich.add_row(*("" if i < groups and same[i] else _rich_text(cell) for i, cell in enumerate(row)))
        above = words
    return rich


def _rich_text(cell: Cell) -> Text:
    text = Text(cell.text, style=" ".join(filter(None, (_STYLES.get(cell.style, ""), "bold" if cell.bold else ""))))
    text.append(cell.tail, style="not bold")
    if cell.verdict:
        text.append(f" {MARKS[cell.verdict]}", style=_STYLES[cell.verdict])
    return text


def in_markdown(block: Block) -> str:
    """A block as Markdown, without blank lines around it."""
    if isinstance(block, Table):
        return "\n".join([*([f"## {block.title}", ""] if block.title else []), *markdown_table(block)])
    if isinstance(block, Notes):
        return "\n".join(
            f"- **Blocks a verdict.** {note.text}." if note.blocking else f"- {note.sentence}" for note in block.notes
        )
    if isinstance(block, Sentences):
        return "\n".join(f"{line if i else f'**{line}**'}  " for i, line in enumerate(block.lines))
    if isinstance(block, Lines):
        return "\n".join(f"  - {line.strip()}" if line.startswith(" ") else f"- {line}" for line in block.lines)
    return f"## {block.text}" if isinstance(block, Heading) else block.text


def markdown_table(table: Table) -> list[str]:
    """Its lines: words to the left, numbers to the right."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "".join("---|" if column.words else "---:|" for column in table.columns)
    cells = [[_in_markdown(cell) for cell in row] for row in table.rows]
    return [line([column.line for column in table.columns]), rule, *map(line, cells)]


def _in_markdown(cell: Cell) -> str:
    text = (f"**{cell.text}**" if cell.bold else cell.text) + cell.tail
    return f"{text} {MARKS[cell.verdict]}" if cell.verdict else text


def _spans(table: Table) -> Iterator[tuple[str, int]]:
    """Heads of the upper of two lines, with the number of columns below each."""
    at = 0
    while at < len(table.columns):
        span = table.columns[at].span
        width = 1
        while span and at + width < len(table.columns) and table.columns[at + width].span == span:
            width += 1
        yield span, width
        at += width


def in_latex(table: Table, caption: str, label: str) -> list[str]:
    """The lines of a ``table`` environment with booktabs rules."""
    lines = ["\\begin{table}", "\\centering", "\\small", f"\\caption{{{latex_text(caption)}}}"]
    lines += [f"\\begin{{tabular}}{{{''.join('l' if c.words else 'r' for c in table.columns)}}}", "\\toprule"]
    if any(column.span for column in table.columns):
        heads, rules, at = [], [], 1
        for span, width in _spans(table):
            heads.append(f"\\multicolumn{{{width}}}{{c}}{{{latex_text(span)}}}" if span else "")
            rules += [f"\\cmidrule(lr){{{at}-{at + width - 1}}}"] if span else []
            at += width
        lines += [_latex_row(heads), " ".join(rules)]
    lines += [_latex_row(latex_text(c.under if c.span else c.line) for c in table.columns), "\\midrule"]
    lines += [_latex_row(map(_latex_cell, row)) for row in table.rows]
    return [*lines, "\\bottomrule", "\\end{tabular}", f"\\label{{tab:gatebench-{label}}}", "\\end{table}"]


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + " \\\\"


def _latex_cell(cell: Cell) -> str:
    text = latex_text(cell.text)
    text = (f"\\textbf{{{text}}}" if cell.bold else text) + latex_text(cell.tail)
    return text + (_LATEX_MARKS[MARKS[cell.verdict]] if cell.verdict else "")


def in_html(block: Block, title: str) -> Iterator[str]:
    """The lines of a block, to be put into a page; ``title`` is of a table that has none."""
    if isinstance(block, Table):
        yield '<table class="paper-table">'
        yield f"<caption>{escape(block.title or title)}</caption>"
        yield from _html_head(block)
        yield "<tbody>"
        for row in block.rows:
            pairs = zip(block.columns, row, strict=True)
            yield f"<tr>{''.join(_html_cell(cell, 'th' if c.words else 'td') for c, cell in pairs)}</tr>"
        yield "</tbody>\n</table>"
    elif isinstance(block, Heading):
        yield f"<h3>{escape(block.text)}</h3>"
    else:
        style = ' class="legend"' if isinstance(block, Legend) else ""
        lines = [line.strip() for line in block.lines] if isinstance(block, Lines) else prose(block)
        yield from (f"<p{style}>{escape(line)}</p>" for line in lines)


def _html_head(table: Table) -> Iterator[str]:
    if not any(column.span for column in table.columns):
        yield f"<thead><tr>{''.join(f'<th>{escape(column.line)}</th>' for column in table.columns)}</tr></thead>"
        return
    wide = [(span, f' colspan="{width}"' if width > 1 else "") for span, width in _spans(table)]
    above = "".join(f"<th{width}>{escape(span)}</th>" for span, width in wide)
    below = "".join(f"<th>{escape(c.under if c.span else c.line)}</th>" for c in table.columns)
    yield f"<thead><tr>{above}</tr><tr>{below}</tr></thead>"


def _html_cell(cell: Cell, tag: str) -> str:
    text = (f"<b>{escape(cell.text)}</b>" if cell.bold else escape(cell.text)) + escape(cell.tail)
    mark = f' <abbr title="{cell.verdict}">{MARKS[cell.verdict]}</abbr>' if cell.verdict else ""
    style = f' class="{escape(cell.style)}"' if cell.style else ""
    return f"<{tag}{style}>{text}{mark}</{tag}>"
