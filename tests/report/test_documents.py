"""A caveat is in every form: all documents of studies whose runs were planted with something to say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gatebench.paths import runs_dir
from gatebench.report import study_report
from gatebench.report.analysis import factors
from gatebench.report.analysis.claims import from_results
from gatebench.report.read.study_runs import collect
from gatebench.report.tables import claims_table, factors_table
from gatebench.report.tables.blocks import Heading, Legend, Lines, Notes, Paragraph, Sentences, notes, table
from gatebench.report.tables.document import Document
from gatebench.report.tables.forms import latex_text
from gatebench.sweep.plan import PlannedRun
from gatebench.sweep.study import load_study
from tests.report.printed import in_terminal
from tests.report.study_root import make_root, write_study_runs
from tests.report.test_factors import grid

STUDIES = {
    "planted": """
recipe: sink_lab
variants: [g1_elementwise, g1_headwise, g1_elementwise_ns_sigmoid]
seeds: 3
tables: [1, 4]
""",
    "rates": """
recipe: sink_lab
variants: [g1_elementwise]
seeds: 2
overrides: {grid: {optim.lr: [1e-3, 3e-3, 1e-2]}}
tables: [2]
""",
}


def avg_ppl(run: PlannedRun) -> float:
    return 10 + 0.3 * run.config.seed - 0.5 * (run.config.variant != "baseline") - 0.01 * len(run.config.overrides)


def planted(run: PlannedRun) -> dict[str, Any]:
    """A variant on another corpus, one with uncommitted changes, and one that has the curves of another."""
    name, seed = run.config.variant, run.config.seed
    if name == "g1_headwise":
        return {"corpus_fingerprint": "another", "micro_ppl": avg_ppl(run)}
    twin = {"curve_hash": f"twin{seed}"} if name.startswith("g1_elementwise") and not run.config.overrides else {}
    return {"git_dirty": name == "g1_elementwise", "micro_ppl": avg_ppl(run), **twin}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Document]]:
    with pytest.MonkeyPatch.context() as patch:
        make_root(tmp_path_factory.mktemp("root"), patch, STUDIES)
        made = []
        for name in STUDIES:
            write_study_runs(name, avg_ppl, planted, n_steps=20)
            if name == "planted":  # a missing seed
                (gone,) = runs_dir().rglob("g1_elementwise_ns_sigmoid-s2-*/summary.json")
                gone.unlink()
            made += study_report.write(collect(load_study(name))).documents
        claims = claims_table.document(from_results())
    yield [*made, claims, factors_table.document(factors.analyse(grid()))]


def plain(text: str) -> str:
    return " ".join(text.split())


def test_every_note_and_legend_is_in_every_form(documents: list[Document]) -> None:
    names = {document.name for document in documents}
    assert names >= {"comparison", "table1", "table4", "table2", "settings", "stability", "claims", "factors"}
    said = 0
    for made in documents:
        markdown, latex, html = plain(made.to_markdown()), plain(made.to_latex()), plain(unescape(made.to_html()))
        shown, content = plain(in_terminal(made, width=10_000)), made.to_dict()
        strings = plain(" ".join(values_of(content)))
        for block in made.blocks:
            if isinstance(block, Notes):
                for note in block.notes:
                    assert note.text in markdown and note.text in html and note.text in shown, (made.name, note)
                    assert plain(latex_text(note.sentence)) in latex and note.text in strings, (made.name, note)
                    said += 1
            elif isinstance(block, Legend):
                text = plain(block.text)
                assert text in markdown and text in html and text in strings, (made.name, text)
                assert plain(latex_text(text)) in latex, (made.name, text)
                assert text in shown or not block.in_terminal, (made.name, text)
                said += 1
    assert said > 20


def values_of(content: Any) -> Iterator[str]:
    """Every string of nested JSON values."""
    if isinstance(content, dict):
        for value in content.values():
            yield from values_of(value)
    elif isinstance(content, list):
        for value in content:
            yield from values_of(value)
    elif isinstance(content, str):
        yield content


def test_what_was_planted_is_said(documents: list[Document]) -> None:
    texts = {made.name: [note.text for note in made.notes] for made in documents}
    missing = "g1_elementwise_ns_sigmoid has no run at seed 2"
    assert missing in texts["table1"] and missing in texts["table4"]
    assert any("read different corpora" in text for text in texts["table1"])
    (twins,) = (text for text in texts["table4"] if "has the loss curves of a row above" in text)
    assert twins.startswith("g1_elementwise_ns_sigmoid")
    found = next(made for made in documents if made.name == "comparison")
    assert {note.blocking for note in found.notes} == {True, False}


def test_every_kind_of_block_is_in_every_form_once() -> None:
    around = (
        Paragraph("A paragraph above."),
        table(("", "loss"), [("first", "1.0")], title="One"),
        notes(["a note 5 % below the first"]),
        Heading("A heading"),
        Sentences(("The first sentence.", "The second one.")),
        table(("", "loss"), [("second", "2.0")], title="Two"),
        Lines(("a thing", "  of which a part")),
        notes(["a note below the second"]),
        Legend("How to read it."),
    )
    made = Document("mine", "Mine", around, content={"rows": []})
    words = ("A paragraph above.", "5 % below the first", "A heading", "The second one.", "of which a part",
             "below the second", "How to read it.")  # fmt: skip
    latex = made.to_latex().replace("\\%", "%")
    for text in (made.to_markdown(), latex, made.to_html(), in_terminal(made)):
        assert [text.count(word) for word in words] == [1] * len(words)
    first, second = re.findall(r"\\caption\{(.*)\}", latex)
    assert first == "Mine. One. Note: a note 5 % below the first. How to read it."
    assert second == "Mine. Two. Note: a note below the second."
    assert re.findall(r"\\label\{(.*)\}", latex) == ["tab:gatebench-mine-1", "tab:gatebench-mine-2"]
    assert json.loads(made.to_json()) == {
        "rows": [],
        "notes": ["a note 5 % below the first", "a note below the second"],
        "legend": "How to read it.",
    }


def test_a_document_without_a_table_says_in_latex_what_it_says_elsewhere() -> None:
    made = Document("mine", "Mine", (notes(["nothing was measured"]), Legend("Why not.")))
    assert "Note: nothing was measured." in made.to_latex() and "Why not." in made.to_latex()


def test_files_appear_whole_and_the_same_twice(tmp_path: Path) -> None:
    made = Document("mine", "Mine", (table(("", "loss"), [("first", "1.0")]),))
    first = {path.name: path.read_bytes() for path in made.write(tmp_path)}
    assert sorted(first) == ["mine.csv", "mine.html", "mine.json", "mine.md", "mine.tex"]
    assert {path.name: path.read_bytes() for path in made.write(tmp_path)} == first
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(first)
