"""The paper's numbers as printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatebench.errors import UserError
from gatebench.paper import TABLES, figure_facts, paper_numbers, paper_rows


@pytest.mark.parametrize(("table", "rows"), [(1, 15), (2, 14), (3, 7), (4, 7), (5, 4), (6, 6), (7, 3)])
def test_each_table_has_all_its_rows_in_order(table: int, rows: int) -> None:
    found = paper_rows(table)
    assert [row.row for row in found] == list(range(1, rows + 1))
    assert all(row.method for row in found)


def test_cells_keep_the_printed_digits() -> None:
    row = paper_rows(1)[4]
    assert (row.method, row.variant) == ("SDPA Elementwise G1", "g1_elementwise")
    assert row.printed["avg_ppl"] == "5.761" and row.printed["hellaswag"] == "74.64"
    assert row.printed["score_shape"] == "n x q x dk"
    assert row.numbers["added_param_m"] == 201.0


def test_numbers_of_one_variant_by_table() -> None:
    found = paper_numbers("g1_headwise")
    assert list(found) == [1, 2, 4]
    assert found[1][0].numbers["avg_ppl"] == 5.792
    assert found[4][0].numbers["f_attn"] == 0.073


def test_aliases_find_the_same_variant_under_another_name() -> None:
    assert [row.method for row in paper_numbers("g1_elementwise_additive_silu", ["g1_additive_silu"])[1]] == [
        "SDPA Additive G1"
    ]
    assert paper_numbers("no_such_variant") == {}


def test_a_diverged_row_has_no_perplexity() -> None:
    rows = [row for row in paper_rows(2) if row.diverged]
    assert [row.row for row in rows] == [12]
    assert "avg_ppl" not in rows[0].numbers


def test_an_unknown_table_names_the_legal_ones() -> None:
    with pytest.raises(UserError, match="no table 9; legal is one of 1, 2, 3, 4, 5, 6, 7"):
        paper_rows(9)
    assert set(TABLES) == set(range(1, 8))


def test_figure_facts() -> None:
    assert figure_facts()[0]["baseline"] == "0.467"


def test_the_numbers_are_found_from_another_project_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    assert paper_rows(1)[0].printed["avg_ppl"] == "6.026"
