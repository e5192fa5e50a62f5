"""`gatebench params`: the paper's column of added parameters, by arithmetic and by building."""

from __future__ import annotations

import pytest

from gatebench.model import build
from gatebench.report.tables.params_table import millions
from tests.cli.commands import Command

call = Command("params")
json_of, refusal = call.json, call.refusal


def test_table_1_at_the_papers_size_to_its_printed_digits() -> None:
    found = json_of("--recipe", "moe_15a2b", "--table", "1")
    assert found["is_papers_shape"] and found["skipped"] == {}
    assert [(row["variant"], row["added_m"], row["printed"]) for row in found["rows"]] == [
        ("baseline", "0", "0"),
        ("kv_heads_x2", "50", "50"),
        ("q_heads_x1p5", "201", "201"),
        ("experts_plus4", "453", "400"),
        ("g1_elementwise", "201", "201"),
        ("g2_elementwise", "25", "25"),
        ("g3_elementwise", "25", "25"),
        ("g4_elementwise", "201", "201"),
        ("g5_elementwise", "100", "100"),
        ("g1_headwise", "1.6", "1.6"),
        ("g2_headwise", "0.2", "0.2"),
        ("g1_elementwise_shared", "201", "201"),
        ("g2_elementwise_shared", "25", "25"),
        ("g1_elementwise_additive_silu", "201", "201"),
        ("g1_elementwise_silu", "201", "201"),
    ]
    assert [row["variant"] for row in found["rows"] if row["note"]] == ["experts_plus4"]
    assert found["rows"][0]["n_params"] == 15_577_227_264 and found["rows"][0]["n_active"] == 1_987_682_304


def test_table_6_at_the_papers_size_says_that_the_paper_has_other_numbers() -> None:
    found = json_of("--recipe", "moe_15a2b", "--table", "6")
    assert [(row["added_m"], row["printed"]) for row in found["rows"]] == [
        *(("0", None), ("355", "38"), ("152", "13"), ("76", "13"), ("177", "25"), ("0.2", "3")),
    ]
    assert {row["note"] for row in found["rows"][1:]} == {
        "Table 6's column does not follow from its text: see docs/scale.md"
    }


def test_a_dense_recipe_leaves_the_experts_out_and_says_that_the_shape_is_another() -> None:
    out = call("--recipe", "dense_1b7_28l").stdout
    assert "left out: experts_plus4 (variant 'experts_plus4': model.moe is null; legal: a recipe with experts)" in out
    assert "this recipe is of another shape" in out
    (row,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["g1_elementwise"]]
    assert row[1:] == ["1,838,015,488", "1,838,015,488", "+117,440,512", "117", "201"]


@pytest.mark.parametrize(
    ("variant", "ffn_dim", "residual"), [("g1_elementwise", 5461, -57_344), ("g1_headwise", 6139, 57_344)]
)
def test_matched_at_the_papers_size(variant: str, ffn_dim: int, residual: int) -> None:
    # 6144 - 2048 / 3 = 5461.3 and 6144 - 16 / 3 = 6138.7, to the nearest; a unit of ffn_dim is 172,032 parameters
    (row,) = json_of("--recipe", "dense_1b7_28l", "--variant", variant, "--set", "param_match=ffn")["rows"]
    assert (row["ffn_dim"], row["added"]) == (ffn_dim, residual)


def test_variants_are_named_or_matched() -> None:
    rows = json_of("--variant", "g1_headwise", "--variant", "g2_*wise")["rows"]
    assert [row["variant"] for row in rows] == ["g1_headwise", "g2_elementwise", "g2_headwise"]
    assert rows[0]["added"] == 4 * 128 * 4  # quick: 4 layers, d_model 128, 4 heads


def test_a_model_that_disagrees_with_the_arithmetic_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "count_built", lambda config, variant: 7)
    result = call("--variant", "baseline")
    assert result.exit_code == 1
    assert "baseline has 7 parameters when built and 1,262,976 by arithmetic" in result.stderr


def test_refusals() -> None:
    assert "--table 1 and --variant g1_headwise exclude each other" in refusal(
        "--table", "1", "--variant", "g1_headwise"
    )
    assert "model.moe is null" in refusal("--variant", "experts_plus4")
    assert "table '9'" in refusal("--table", "9")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (201_326_592, "201"),
        (100_663_296, "100"),  # cut, as the paper has it
        (1_572_864, "1.6"),
        (196_608, "0.2"),
        (-57_344, "-0.1"),
        (1_024, "0.001"),
    ],
)
def test_millions_as_the_paper_prints_them(count: int, text: str) -> None:
    assert millions(count) == text
