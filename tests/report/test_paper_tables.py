"""Tables 1 to 7 of the paper: its own numbers, read as if they were ours, print as they are printed."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gatebench import paper, variants
from gatebench.report.analysis import paper_tables as tables
from gatebench.report.analysis.paper_table import Column, PaperTable
from gatebench.report.read import committed_frames as compact
from gatebench.report.read import results
from gatebench.report.tables.document import Document
from gatebench.report.tables.paper_table import document
from gatebench.report.text import seed_counts
from tests.report.printed import in_terminal
from tests.report.synthetic_runs import diverged, summary

TASKS = ("hellaswag", "mmlu", "gsm8k", "humaneval", "ceval", "cmmlu")


def papers_runs(table: int) -> pd.DataFrame:
    """One run for every row of the paper's table, with its numbers in the columns that ours would be in."""
    rows: list[dict[str, Any]] = []
    for row in paper.paper_rows(table):
        numbers = row.numbers
        name, setting = variants.get(row.variant).name, tables.FORMS[table].setting(row)
        if table == 5:
            prefix = "ruler" if setting == "none" else "ruler_yarn"
            own = next((r for r in rows if r["variant"] == name), None) or summary(name, 0, 100.0)
            own |= {f"{prefix}/{length}": numbers[length] for length in tables.LENGTHS if length in numbers}
            rows = [r for r in rows if r["variant"] != name] + [own]
            continue
        if row.diverged:
            found = diverged(name, 0, 100)
        else:
            found = summary(name, 0, numbers["avg_ppl"])
            found |= {f"bench/{task}": numbers[task] for task in TASKS if task in numbers}
            found |= {"n_params_added": round(numbers.get("added_param_m", 0.0) * 1e6)}
            if table == 4:
                found |= {"first_token_share": numbers["f_attn"], "m_act": numbers["m_act"]}
                found |= {"gate_mean": numbers.get("gate_score")}
        rows.append(found | ({"setting": setting} if setting else {}))
    return results.as_frame(rows)


def made(table: int) -> PaperTable:
    frame = papers_runs(table)
    others = [name for name in dict.fromkeys(frame["variant"]) if name != "baseline"]
    return tables.make(table, frame, "baseline", others)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_the_papers_numbers_as_ours_print_to_its_digits(number: int) -> None:
    table = made(number)
    compared = 0
    for row in table.rows:
        for column in table.columns:
            if column.paper in row.theirs:
                assert column.written(row.ours[column.key].mean) == row.theirs[column.paper], (row.label, column.key)
                compared += 1
    cells = sum(len(set(row.printed) & {c.paper for c in table.columns}) for row in paper.paper_rows(number))
    assert compared == cells > 0
    assert [row.paper_row for row in table.rows] == list(range(1, len(paper.paper_rows(number)) + 1))


def test_table_7_is_our_recipes_beside_the_papers_shapes() -> None:
    table = tables.architectures(["quick"])
    models = table.rows[:3]
    assert [row.paper_row for row in table.rows] == [1, 2, 3, None]
    for row in models:
        shipped = row.ours["layers"].n > 0
        for column in table.columns if shipped else ():
            ours = column.written(row.ours[column.key].mean)
            assert ours == row.theirs.get(column.paper or "", "-"), (row.label, column.key)
    assert models[0].ours["hidden_size"].mean == 2048 and models[1].ours["hidden_size"].mean == 1536
    assert table.rows[3].variant == "quick" and table.rows[3].theirs == {}
    assert "seeds" not in document(table).to_markdown()


def test_table_5_says_what_its_runs_lack_and_what_was_changed() -> None:
    runs = [("baseline", 0), ("baseline", 1), ("g1_elementwise", 0)]
    rows = [summary(name, seed, 150.0, overrides="train.steps=500") for name, seed in runs]
    table = tables.make(5, results.as_frame(rows), "baseline", ["g1_elementwise"])
    assert table.notes == ("g1_elementwise has no run at seed 1",)
    assert "with train.steps=500" in document(table).to_markdown()


def test_settings_in_common_stand_in_the_header_of_a_table_over_several() -> None:
    rows = [
        summary(name, 0, 150.0, setting=setting, overrides=f"train.steps=500 optim.lr={lr}")
        for setting, lr in (("low", "1e-3"), ("high", "1e-2"))
        for name in ("baseline", "g1_elementwise")
    ]
    table = tables.make(2, results.as_frame(rows), "baseline", ["g1_elementwise"])
    assert table.facts["overrides"] == "train.steps=500"


def test_a_row_that_diverged_has_no_number_in_either_column() -> None:
    row = made(2).row("baseline", "48l-1t-8.0e-3")
    assert row.ours["avg_ppl"].n == 0 and "avg_ppl" not in row.theirs
    assert row.label == "Baseline"


@pytest.mark.parametrize(
    ("value", "like", "decimals", "text"),
    [
        (1053.2, None, 0, "1053"), (94.4, None, 0, "94"), (9.14, None, 0, "9.1"), (0.5, None, 0, "0.50"),
        (0.048, None, 3, "0.048"), (0.0061, None, 3, "0.0061"), (0.467, None, 3, "0.467"), (0.02, 0.0061, 3, "0.0200"),
        (float("nan"), None, 3, "-"),
    ],
)  # fmt: skip
def test_a_number_has_the_papers_decimals_and_two_digits_at_least(
    value: float, like: float | None, decimals: int, text: str
) -> None:
    assert Column("x", "x", "share", decimals=decimals).written(value, like) == text


@pytest.fixture(scope="module")
def ours() -> PaperTable:
    """Table 1 with three variants on three seeds: one better, one worse, one that cannot be told."""
    rows = []
    shift = {
        "baseline": 0.0,
        "g1_elementwise": -8.0,
        "g1_headwise": -7.0,
        "g2_elementwise": 5.0,
        "g5_elementwise": 0.05,
    }
    for name, by in shift.items():
        for seed in range(4):
            noise = 0.2 * ((seed * 7 + len(name)) % 3 - 1)
            rows.append(summary(name, seed, 170 + 3 * seed + by + (noise if by else 0)))
    return tables.make(1, results.as_frame(rows), "baseline", list(shift)[1:])


def test_verdict_marks_and_bold(ours: PaperTable) -> None:
    verdicts = {row.variant: row.verdicts.get("avg_ppl") for row in ours.rows if row.ours["avg_ppl"].n}
    assert verdicts == {
        "baseline": None, "g1_elementwise": "better", "g2_elementwise": "worse", "g5_elementwise": "not resolvable",
        "g1_headwise": "better",
    }  # fmt: skip
    lines = document(ours).to_markdown().splitlines()
    best = next(line for line in lines if line.startswith("| SDPA Elementwise G1 |") and "✓" in line)
    assert "**" in best and "**5.761**" in best
    assert "✗" in next(line for line in lines if line.startswith("| v Elementwise G2"))
    assert "~" in next(line for line in lines if line.startswith("| Dense Output G5"))
    assert sum("**16" in line for line in lines) == 1  # one best mean of ours


def test_what_no_row_has_is_left_out_beside_the_papers_numbers_and_named_once_below(ours: PaperTable) -> None:
    made = document(ours)
    header = next(line for line in made.to_markdown().splitlines() if "Avg PPL" in line)
    assert header == (
        "|  | Added params (M) | paper | Avg PPL | paper | HellaSwag paper | MMLU paper | GSM8k paper | C-eval paper |"
    )
    for text in (made.to_markdown(), made.to_latex(), made.to_html(), in_terminal(made)):
        assert " ".join(text.split()).count("Not measured here: HellaSwag, MMLU, GSM8k and C-eval.") == 1
        assert "not measured" not in text


def test_latex_is_balanced_and_escaped(ours: PaperTable) -> None:
    text = document(ours).to_latex()
    body = [line for line in text.splitlines() if line.endswith("\\\\")]
    columns = body[1].count("&")
    for line in body[1:]:
        assert line.count("&") == columns
    assert sum(map(int, re.findall(r"\\multicolumn\{(\d)\}", body[0]))) == columns
    assert len(re.search(r"\\begin\{tabular\}\{(l r*|lr*)\}", text)[1]) == columns + 1  # type: ignore[index]
    for word in ("\\toprule", "\\midrule", "\\bottomrule", "\\cmidrule(lr){2-3}", "\\textbf{", "$^{+}$", "$\\pm$"):
        assert word in text
    unescaped = re.sub(r"^%.*$|\\[%&_#$]", "", text, flags=re.M)
    assert "%" not in unescaped and "_" not in unescaped


def every_form(made: Document) -> list[str]:
    """Markdown, LaTeX without its escapes, HTML, JSON and a terminal."""
    return [
        made.to_markdown(),
        made.to_latex().replace("\\_", "_").replace("$\\pm$", "±"),
        made.to_html(),
        made.to_json(),
        " ".join(in_terminal(made).split()),
    ]


def test_a_missing_seed_is_in_every_form_and_the_number_of_seeds_is_that_of_the_rows() -> None:
    frame = compact.read_runs(Path("results/table1"))
    assert frame is not None
    frame = frame[~((frame.variant == "g1_headwise") & (frame.seed == 2))]
    made = document(tables.make(1, frame, "baseline", ["g1_headwise", "g1_elementwise"]))
    for text in every_form(made):
        assert "g1_headwise has no run at seed 2" in text
        assert "Ours: mean over 2 to 3 seeds (2 of SDPA Headwise G1) ± half the width" in text
        assert "mean over 3 seeds ±" not in text
    whole = document(tables.make(1, frame[frame.seed < 2], "baseline", ["g1_headwise", "g1_elementwise"]))
    assert all("Ours: mean over 2 seeds ± half the width" in text for text in every_form(whole))


def test_what_blocks_a_verdict_is_in_every_form() -> None:
    frame = compact.read_runs(Path("results/table1"))
    assert frame is not None
    frame.loc[frame.variant == "g1_headwise", "corpus_fingerprint"] = "other"
    for text in every_form(document(tables.make(1, frame, "baseline", ["g1_headwise"]))):
        assert "g1_headwise and the baseline read different corpora (other against" in text


def test_a_run_that_diverged_counts_in_no_mean() -> None:
    rows = [summary(name, seed, 150.0 + seed) for name in ("baseline", "g1_elementwise") for seed in range(3)]
    rows[-1] = diverged("g1_elementwise", 2, 40)
    text = document(tables.make(3, results.as_frame(rows), "baseline", ["g1_elementwise"])).to_markdown()
    assert "mean over 2 to 3 seeds (2 of SDPA Elementwise Gate)" in text


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ({"a": [3, 3], "b": [3], "c": []}, "3 seeds"),
        ({"a": [3], "b": [3, 1], "c": [2]}, "1 to 3 seeds (1 to 3 of b, 2 of c)"),
        ({str(n): [n] for n in range(1, 8)}, "1 to 7 seeds (the CSV has each row's number)"),
        ({"a": [1], "b": [1]}, "1 seed"),
        ({"a": []}, "no seed"),
    ],
)
def test_means_over_different_numbers_of_seeds_are_told_apart(counts: dict[str, list[int]], text: str) -> None:
    assert seed_counts(counts) == text


def test_html_has_a_cell_for_every_column(ours: PaperTable) -> None:
    rows = re.findall(r"<tr><th>.*?</tr>", document(ours).to_html().split("<tbody>")[1])
    assert len(rows) == len(ours.rows)
    columns = sum(1 + ours.measured(column) for column in ours.columns)
    assert {row.count("<td") for row in rows} == {columns} == {2 * 2 + 4}
    assert '<abbr title="better">✓</abbr>' in document(ours).to_html()


def test_the_csv_says_the_verdict(ours: PaperTable, tmp_path: Path) -> None:
    path = next(path for path in document(ours).write(tmp_path) if path.suffix == ".csv")
    with path.open(newline="") as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert rows["g1_elementwise"]["avg_ppl_verdict"] == "better" and rows["baseline"]["avg_ppl_verdict"] == ""
    assert rows["kv_heads_x2"]["avg_ppl"] == "" and rows["kv_heads_x2"]["paper_avg_ppl"] == "5.979"
