"""The paper's Table 4 with our numbers beside its own."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gatebench import paper, variants
from gatebench.errors import UserError
from gatebench.report.analysis import paper_tables as tables
from gatebench.report.analysis.comparison import compare
from gatebench.report.analysis.estimate import Estimate
from gatebench.report.analysis.paper_table import PaperTable
from gatebench.report.read import results
from gatebench.report.tables.comparison_sentences import sentences
from gatebench.report.tables.paper_table import document
from tests.report.printed import in_terminal
from tests.report.synthetic_runs import diverged, summary, uniform_floor, write_run

FLOOR = uniform_floor(128)
SYNTHETIC: dict[str, Any] = {
    "recipe": "sink_lab",
    "corpus": "bigram_backcopy",
    "vocab_size": 68,
    "seq_len": 128,
    "eval_seq_len": 128,
    "first_token_floor": FLOOR,
    "final_train_loss": 2.4,
    "entropy_floor": 2.39848,
    "excess_loss_copy": 0.002,
    "excess_loss_other": 0.001,
    "copy_accuracy": 0.999,
}
# first-token share, gate score, M-Act, excess loss at seed 0
LAB: dict[str, tuple[float, float | None, float, float]] = {
    "g1_rmsnorm": (0.037, None, 14.0, 0.0014),
    "baseline": (0.137, None, 30.0, 0.0020),
    "g2_headwise": (0.847, 0.470, 41.0, 0.0017),
    "g1_elementwise_ns_sigmoid": (0.097, 0.633, 22.0, 0.0018),
    "g1_elementwise_input_independent": (0.120, 0.348, 25.0, 0.0020),
    "g2_elementwise": (0.856, 0.410, 40.0, 0.0016),
    "g1_elementwise_shared": (0.060, 0.200, 13.0, 0.0016),
    "g1_headwise": (0.054, 0.145, 12.0, 0.0016),
    "g1_elementwise": (0.020, 0.150, 9.0, 0.0015),
}
PAPER_ORDER = [
    "baseline",
    "g1_elementwise",
    "g1_headwise",
    "g1_elementwise_shared",
    "g2_elementwise",
    "g1_elementwise_input_independent",
    "g1_elementwise_ns_sigmoid",
]


def lab_run(root: Path, name: str, seed: int, **changes: Any) -> None:
    share, score, m_act, excess = LAB[name]
    share += 0.01 * seed
    numbers: dict[str, Any] = {
        "first_token_share": share,
        "first_token_excess": share / FLOOR,
        "gate_mean": score,
        "m_act": m_act + seed,
        "excess_loss": excess,
    }
    write_run(
        root, summary(name, seed, 11.0 + 0.01 * len(name) + 0.1 * seed, **{**SYNTHETIC, **numbers, **changes}), 20
    )


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    root = tmp_path_factory.mktemp("lab")
    for name in LAB:
        for seed in (0, 1):
            lab_run(root, name, seed)
    return results.load(root)


def table4(frame: pd.DataFrame, labels: Mapping[str, str] | None = None) -> PaperTable:
    return tables.make(4, frame, "baseline", [name for name in LAB if name != "baseline"], labels)


def rendered(table: PaperTable) -> str:
    return in_terminal(document(table))


# --- the numbers


def test_rows_come_in_the_papers_order_and_ours_alone_after_it(frame: pd.DataFrame) -> None:
    rows = table4(frame).rows
    assert [row.variant for row in rows] == [*PAPER_ORDER, "g1_rmsnorm", "g2_headwise"]
    assert [row.paper_row for row in rows] == [1, 2, 3, 4, 5, 6, 7, None, None]


def test_a_number_is_the_mean_over_seeds_with_its_half_width(frame: pd.DataFrame) -> None:
    row = table4(frame).row("baseline")
    share = row.ours["first_token_share"]
    assert share.by_seed == pytest.approx({0: 0.137, 1: 0.147})
    assert share.mean == pytest.approx(0.142)
    # sd 0.01 / sqrt(2), t(0.975, 1) = 12.706: 12.706 * 0.01 / 2.
    assert share.half_width == pytest.approx(0.063531, abs=1e-6)
    assert row.ours["first_token_excess"].mean == pytest.approx(0.142 / FLOOR)
    assert row.ours["gate_mean"].n == 0 and math.isnan(row.ours["gate_mean"].mean)
    assert row.theirs == {"m_act": "1053", "f_attn": "0.467", "avg_ppl": "6.026"}


def test_one_seed_has_no_interval(frame: pd.DataFrame) -> None:
    table = table4(frame[frame["seed"] == 0])
    assert math.isnan(table.row("baseline").ours["m_act"].half_width)
    assert "one seed, so that no interval" in rendered(table) and "±" not in rendered(table)
    assert math.isnan(Estimate({}).mean) and math.isnan(Estimate({0: 1.0}).half_width)


def test_the_papers_own_numbers_give_its_rank_correlations_and_its_order(tmp_path: Path) -> None:
    printed = {variants.get(row.variant).name: row.numbers for row in paper.paper_rows(4)}
    assert list(printed) == PAPER_ORDER
    for name, numbers in printed.items():
        changes = {"first_token_share": numbers["f_attn"], "m_act": numbers["m_act"]}
        changes |= {f"bench/{task}": numbers[task] for task in ("hellaswag", "mmlu", "gsm8k")}
        write_run(tmp_path, summary(name, 0, numbers["avg_ppl"], gate_mean=numbers.get("gate_score"), **changes), 20)
    table = tables.make(4, results.load(tmp_path), "baseline", PAPER_ORDER[1:])
    for row in table.rows:
        for column in table.columns:
            if column.paper and column.paper in row.theirs:
                assert row.ours[column.key].mean == float(row.theirs[column.paper])
    sink, m_act = table.correlations
    assert (sink.of.key, sink.over.key, m_act.over.key) == ("gate_mean", "first_token_share", "m_act")
    for found in (sink, m_act):
        assert (found.n, found.ours, found.theirs) == (6, pytest.approx(1.0), pytest.approx(1.0))
    assert table.order is not None and table.order.holds(table.order.theirs)
    assert table.order.by_seed[0] == table.order.theirs


def test_rank_correlations_are_over_the_gated_rows_of_the_paper(frame: pd.DataFrame) -> None:
    sink, m_act = table4(frame).correlations
    assert sink.variants == tuple(PAPER_ORDER[1:])
    # Ranks of the gate scores 2 1 3 5 4 6 against those of the shares 1 2 3 6 5 4: sum d^2 = 8, 1 - 6 * 8 / 210.
    assert sink.ours == pytest.approx(1 - 48 / 210)
    assert sink.by_seed == {0: pytest.approx(1 - 48 / 210), 1: pytest.approx(1 - 48 / 210)}
    assert (sink.theirs, m_act.theirs) == (pytest.approx(1.0), pytest.approx(1.0))
    assert m_act.ours == pytest.approx(1 - 48 / 210)


def test_two_rows_of_one_model_count_once_in_a_rank_correlation(frame: pd.DataFrame) -> None:
    twins = frame["variant"].isin(["g1_elementwise", "g1_elementwise_shared"])
    table = table4(frame.assign(curve_hash=frame["curve_hash"].mask(twins, frame["seed"].astype(str))))
    kept = tuple(name for name in PAPER_ORDER[1:] if name != "g1_elementwise_shared")
    assert [found.variants for found in table.correlations] == [kept, kept]
    assert (
        "g1_elementwise_shared has the loss curves of a row above, and counts once with it in rank correlations"
        in table.notes
    )


def test_two_rows_have_no_rank_correlation(frame: pd.DataFrame) -> None:
    table = tables.make(4, frame, "baseline", ["g1_headwise", "g1_elementwise"])
    assert [found.n for found in table.correlations] == [2, 2]
    assert all(math.isnan(found.ours) and math.isnan(found.theirs) for found in table.correlations)
    assert table.order is None
    assert "Order of" not in rendered(table)


def test_the_order_is_checked_at_each_seed(tmp_path: Path) -> None:
    for name in LAB:
        lab_run(tmp_path, name, 0)
        lab_run(tmp_path, name, 1, **({"first_token_share": 0.2} if name == "g1_headwise" else {}))
    table = table4(results.load(tmp_path))
    assert table.order is not None
    assert [table.order.holds(numbers) for numbers in table.order.by_seed.values()] == [True, False]
    text = rendered(table)
    assert "seed 0: yes (0.1370 > 0.1200, 0.0970 > 0.0200, 0.0540)" in text
    assert "seed 1: no (0.1470 | 0.1300, 0.1070 | 0.0300, 0.2000)" in text
    assert "the paper: yes (0.467 > 0.364, 0.451 > 0.048, 0.073)" in text


def test_a_diverged_run_has_no_number_and_is_said(tmp_path: Path) -> None:
    for name in LAB:
        lab_run(tmp_path, name, 0)
        if name != "g1_headwise":
            lab_run(tmp_path, name, 1)
    write_run(tmp_path, {**diverged("g1_headwise", 1, 40), **SYNTHETIC, "final_train_loss": None}, 20)
    table = table4(results.load(tmp_path))
    assert table.row("g1_headwise").ours["m_act"].by_seed == {0: 12.0}
    assert table.order is not None and list(table.order.by_seed) == [0]
    assert table.notes == ("g1_headwise diverged at step 40 (seed 1)",)
    assert "! g1_headwise diverged at step 40 (seed 1)" in rendered(table)


def test_a_missing_seed_is_said(frame: pd.DataFrame) -> None:
    table = table4(frame[(frame["seed"] == 0) | (frame["variant"] != "g1_rmsnorm")])
    assert table.notes == ("g1_rmsnorm has no run at seed 1",)


# --- text and synthetic data


def test_synthetic_data_has_the_excess_loss_in_place_of_perplexity(frame: pd.DataFrame) -> None:
    table = table4(frame)
    assert [column.key for column in table.columns if column.shown] == [
        *("gate_mean", "m_act", "first_token_share", "first_token_excess", "excess_loss"),
    ]
    text = rendered(table)
    assert "(floor 0.0424)" in text and "Excess loss" in text


def test_text_has_perplexity(tmp_path: Path) -> None:
    for name in ("baseline", "g1_headwise"):
        write_run(tmp_path, summary(name, 0, 150.0), 20)
    table = tables.make(4, results.load(tmp_path), "baseline", ["g1_headwise"])
    assert "avg_ppl" in [column.key for column in table.columns] and "150.00" in rendered(table)


def test_a_comparison_on_synthetic_data_speaks_of_excess_and_not_of_text(frame: pd.DataFrame) -> None:
    item = compare(frame, "baseline", ["g1_headwise"]).variants[0]
    columns = [row.metric.key for row in item.rows]
    assert columns[:6] == [
        *("avg_ppl", "excess_loss", "excess_loss_copy", "excess_loss_other", "copy_accuracy", "entropy_floor"),
    ]
    assert "avg_bpb" not in columns and not [name for name in columns if name.startswith("ppl/")]
    assert item.row("excess_loss").variant_mean == pytest.approx(0.0016)
    assert item.row("entropy_floor").baseline_mean == pytest.approx(2.39848)


def test_without_a_sink_synthetic_data_is_not_told_about_real_text(tmp_path: Path) -> None:
    for name in ("baseline", "g1_headwise"):
        for seed in (0, 1):
            lab_run(tmp_path, name, seed, first_token_share=1.2 * FLOOR)
    compared = compare(results.load(tmp_path), "baseline", ["g1_headwise"])
    text = " ".join(sentences(compared, compared.variants[0]))
    assert "1.20 times the floor" in text and "real text" not in text


# --- the forms


def test_the_terminal_table_fits_120_columns_with_three_seeds(frame: pd.DataFrame) -> None:
    third = frame[frame["seed"] == 1].assign(seed=2, run="third")
    labels = {name: variants.get(name).label for name in LAB}
    text = rendered(table4(pd.concat([frame, third]), labels))
    assert max(len(line) for line in text.splitlines()) <= 120
    (line,) = (line for line in text.splitlines() if line.strip().startswith("Baseline"))
    assert line.split()[-1] == "6.026" and "0.467" in line and "1053" in line


def test_the_header_states_scale_tokens_data_seeds_and_commit(frame: pd.DataFrame) -> None:
    for text in (rendered(table4(frame)), document(table4(frame)).to_markdown()):
        for words in (
            *("recipe sink_lab", "2.38 M parameters", "4.92 M tokens in 1,200 steps", "corpus bigram_backcopy"),
            *("seeds 0, 1", "commit 012345678", "context 128"),
        ):
            assert words in text


def test_extras_have_dashes_in_the_papers_columns(frame: pd.DataFrame) -> None:
    lines = document(table4(frame)).to_markdown().splitlines()
    (line,) = (line for line in lines if line.startswith("| g2_headwise"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert [cells[i] for i in (2, 4, 6, 9)] == ["-"] * 4
    assert cells[1] == "0.470 ± 0.000" and cells[7] == f"{0.852 / FLOOR:.2f}"
    assert len({row.count("|") for row in lines if row.startswith("|")}) == 1


def test_files_hold_every_number_and_the_same_runs_give_the_same_bytes(frame: pd.DataFrame, tmp_path: Path) -> None:
    first = document(table4(frame)).write(tmp_path / "a")
    second = document(table4(frame.sample(frac=1, random_state=3))).write(tmp_path / "b")
    assert [path.name for path in first] == [f"table4.{suffix}" for suffix in ("md", "csv", "json", "tex", "html")]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    with first[1].open(newline="") as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert float(rows["g1_headwise"]["paper_f_attn"]) == 0.073 and rows["g1_headwise"]["paper_row"] == "3"
    assert float(rows["g1_headwise"]["first_token_floor"]) == pytest.approx(FLOOR)
    assert rows["g2_headwise"]["paper_row"] == rows["g2_headwise"]["paper_f_attn"] == ""
    assert float(rows["baseline"]["first_token_share_half_width"]) == pytest.approx(0.063531, abs=1e-6)


def test_json_is_strict_and_whole(frame: pd.DataFrame) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    data = json.loads(document(table4(frame)).to_json(), parse_constant=refuse)
    assert (data["schema"], data["table"], data["facts"]["seeds"]) == (1, 4, [0, 1])
    baseline = data["rows"][0]
    assert baseline["ours"]["gate_mean"]["mean"] is None and baseline["paper"]["gate_score"] is None
    assert baseline["ours"]["m_act"] == {
        "mean": 30.5,
        "half_width": pytest.approx(6.3531, abs=1e-4),
        "n": 2,
        "by_seed": {"0": 30.0, "1": 31.0},
    }
    assert [found["n"] for found in data["rank_correlations"]] == [6, 6]
    assert [data["order"]["seeds"][seed]["holds"] for seed in ("0", "1")] == [True, True]


# --- what is refused


def test_a_table_that_the_paper_does_not_have_is_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(UserError, match="table 8: not in the paper; legal: 1, 2, 3, 4, 5, 6, 7"):
        tables.make(8, frame, "baseline", ["g1_headwise"])


def test_a_variant_without_runs_and_two_runs_at_one_seed_are_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(UserError, match="table 4: no finished run of g3_headwise"):
        tables.make(4, frame, "baseline", ["g3_headwise"])
    with pytest.raises(UserError, match="table 4: several runs of baseline at seed 0"):
        tables.make(4, pd.concat([frame, frame]), "baseline", ["g1_headwise"])
