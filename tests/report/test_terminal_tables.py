"""What a table of plain words looks like in a terminal, and what of a document a terminal leaves out."""

from __future__ import annotations

import json
from io import StringIO

import pandas as pd
from rich.console import Console

from gatebench.report.tables.blocks import Cell, Column, Lines, Paragraph, Table, table
from gatebench.report.tables.document import Document, of_one_table
from gatebench.report.tables.forms import in_markdown


def printed(*blocks: Table | Lines | Paragraph) -> list[str]:
    """The lines that hold something, without blanks around them."""
    console = Console(file=StringIO(), width=100)
    console.print(Document("mine", "Mine", blocks).to_rich())
    assert isinstance(console.file, StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines()]


def below_the_rule(shown: Table) -> list[str]:
    lines = printed(shown)
    return lines[next(i for i, line in enumerate(lines) if line.startswith("─")) + 1 : -1]


def test_words_that_stand_above_are_left_out_and_groups_are_apart() -> None:
    shown = table(("setting", "variant", "loss"), [("a", "x", "1"), ("a", "y", "2"), ("b", "x", "3")], n_words=2)
    assert [line.split() for line in below_the_rule(shown)] == [["a", "x", "1"], ["y", "2"], [], ["b", "x", "3"]]


def test_rows_without_a_common_word_are_not_apart() -> None:
    shown = table(("trial", "status", "loss"), [("0", "failed", "1"), ("1", "failed", "2")], n_words=2)
    assert [line.split() for line in below_the_rule(shown)] == [["0", "failed", "1"], ["1", "failed", "2"]]


def test_an_empty_word_is_the_one_above() -> None:
    rows = [(Cell("x", bold=True, tail=", 2 seeds"), "a", "1"), ("", "b", "2"), ("", "c", "3"), (Cell("y"), "a", "4")]
    shown = table(("variant", "intervention", Column("effect", words=True)), rows, n_words=2)
    lines = [line.split() for line in below_the_rule(shown)]
    assert lines == [["x,", "2", "seeds", "a", "1"], ["b", "2"], ["c", "3"], [], ["y", "a", "4"]]
    assert "| **x**, 2 seeds | a | 1 |" in in_markdown(shown)
    latex = Document("mine", "Mine", (shown,)).to_latex()
    assert "\\textbf{x}, 2 seeds & a & 1" in latex and "<b>x</b>, 2 seeds" in Document("mine", "", (shown,)).to_html()


def test_what_is_not_for_a_terminal_is_in_every_other_form() -> None:
    hidden = table(("task", "n"), [("copy", "400")], title="Tasks", in_terminal=False)
    blocks = (hidden, Paragraph("What changes:", in_terminal=False), Lines(("deep: 2 layers",), in_terminal=False))
    assert printed(*blocks) == []
    document = Document("mine", "Mine", blocks)
    for text in (document.to_markdown(), document.to_latex(), document.to_html()):
        assert "copy" in text and "What changes:" in text and "deep: 2 layers" in text


def test_a_document_of_one_table_has_notes_legend_and_a_record_a_row() -> None:
    frame = pd.DataFrame([{"variant": "x", "loss": float("nan")}])
    shown = table(("variant", "loss"), [("x", "-")])
    document = of_one_table("mine", "Mine", {}, shown, frame, "A legend.", ["x diverged"])
    assert document.to_markdown() == (
        "# Mine\n\n| variant | loss |\n|---|---:|\n| x | - |\n\n- Note: x diverged.\n\nA legend.\n"
    )
    content = json.loads(document.to_json())
    assert content["rows"] == [{"variant": "x", "loss": None}]
    assert (content["table"], content["notes"], content["legend"]) == ("mine", ["x diverged"], "A legend.")
