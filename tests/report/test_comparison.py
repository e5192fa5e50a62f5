"""The table of the main job."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gatebench.errors import UserError
from gatebench.report.analysis.comparison import ComparisonTable, compare
from gatebench.report.read import results
from gatebench.report.tables.comparison_sentences import sentences
from gatebench.report.tables.comparison_table import document
from tests.report.printed import in_terminal
from tests.report.synthetic_runs import diverged, summary, write_run, write_study

THREE_SEEDS = {
    "baseline": {0: 168.3, 1: 183.3, 2: 175.0},
    "g1_headwise": {0: 151.8, 1: 151.3, 2: 153.2},
    "g1_elementwise": {0: 144.4, 1: 152.6, 2: 149.0},
}
LABELS = {"baseline": "Baseline", "g1_headwise": "SDPA Headwise G1"}


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return results.load(write_study(tmp_path_factory.mktemp("runs"), THREE_SEEDS))


def rendered(table: ComparisonTable, width: int = 118) -> str:
    return in_terminal(document(table), width)


def said(table: ComparisonTable) -> tuple[str, ...]:
    """The sentences on the first variant."""
    return sentences(table, table.variants[0])


def test_the_primary_row_holds_the_paired_numbers(frame: pd.DataFrame) -> None:
    row = compare(frame, "baseline", ["g1_headwise"]).variants[0].primary
    assert row.baseline_mean == pytest.approx(175.5333, abs=1e-4)
    assert row.variant_mean == pytest.approx(152.1)
    assert row.comparison.differences == pytest.approx((-16.5, -32.0, -21.8))
    assert row.comparison.mean == pytest.approx(-23.4333, abs=1e-4)
    assert row.comparison.verdict == "better"
    assert row.comparison.p_adjusted == row.comparison.p


def test_holm_is_over_all_variants_of_the_table(frame: pd.DataFrame) -> None:
    alone = compare(frame, "baseline", ["g1_elementwise"]).variants[0].primary.comparison
    both = compare(frame, "baseline", ["g1_headwise", "g1_elementwise"]).variants[1].primary.comparison
    assert alone.p_adjusted == pytest.approx(alone.p)
    assert both.p == pytest.approx(alone.p)
    assert both.p_adjusted == pytest.approx(2 * alone.p)


def test_a_probe_that_some_runs_have_is_a_row_without_a_verdict(frame: pd.DataFrame) -> None:
    assert "Residual sinks" not in rendered(compare(frame, "baseline", ["g1_headwise"]))
    table = compare(frame.assign(residual_sinks=2.0), "baseline", ["g1_headwise"])
    row = table.variants[0].row("residual_sinks")
    assert (row.metric.title, row.variant_mean, row.comparison.verdict) == ("Residual sinks", 2.0, None)
    assert "Residual sinks" in rendered(table)


def test_six_domains_are_one_family(frame: pd.DataFrame) -> None:
    rows = [r for r in compare(frame, "baseline", ["g1_headwise"]).variants[0].rows if r.metric.family == "domain"]
    assert len(rows) == 6
    smallest = min(r.comparison.p for r in rows)
    assert min(r.comparison.p_adjusted or 0 for r in rows) == pytest.approx(6 * smallest)


def test_two_seeds_resolve_little_and_the_report_says_how_little(frame: pd.DataFrame) -> None:
    table = compare(frame[frame["seed"] < 2], "baseline", ["g1_headwise"])
    item = table.variants[0]
    # Differences -16.5 and -32: sd 10.96, half-width 12.706 * 10.96 / sqrt(2) = 98.47.
    assert item.primary.comparison.verdict == "not resolvable"
    assert item.primary.comparison.resolvable == pytest.approx(98.47, abs=0.01)
    text = " ".join(said(table))
    assert "cannot tell g1_headwise from baseline" in text
    assert "could have resolved is 98.47 (56 %)" in text
    assert "about 4 seeds" in text


def test_a_family_of_ten_does_not_contradict_itself(tmp_path: Path) -> None:
    others = {f"g1_headwise_{i}": {0: 100.0 + 0.1 * i, 1: 101.2, 2: 101.7 - 0.1 * i} for i in range(9)}
    values = {"baseline": {0: 100.0, 1: 101.0, 2: 102.0}, "g1_headwise": {0: 98.0, 1: 98.2, 2: 99.6}}
    table = compare(results.load(write_study(tmp_path, values | others)), "baseline", ["g1_headwise", *others])
    item = table.variants[0]
    comparison = item.primary.comparison
    assert (comparison.verdict, comparison.p_adjusted) == ("not resolvable", pytest.approx(0.0914, abs=1e-4))
    # t(0.9975, 2) = 14.0890 at the first step of Holm over ten tests: 14.0890 * 0.4 / sqrt(3)
    assert comparison.resolvable == pytest.approx(3.2537, abs=1e-4)
    assert (comparison.high - comparison.low) / 2 == pytest.approx(0.9937, abs=1e-4)
    text = " ".join(said(table))
    assert "could have resolved in a family of 10 tests, whatever the others show, is 3.25 (3.2 %)" in text
    assert "would take about 4 seeds" in text
    for other in table.variants:
        for row in other.rows:
            if row.comparison.verdict == "not resolvable" and row.comparison.sd > 0:
                assert abs(row.comparison.mean) <= row.comparison.resolvable
    assert (
        "half-width of the interval where a family has one test, and larger where it has more"
        in document(table).to_markdown()
    )


def test_one_seed_gives_no_verdict(frame: pd.DataFrame) -> None:
    table = compare(frame[frame["seed"] == 0], "baseline", ["g1_headwise"])
    assert all(row.comparison.verdict is None for row in table.variants[0].rows)
    assert said(table)[0] == (
        "No verdict on g1_headwise: one seed gives none. "
        "Avg PPL 151.80 against 168.30, a difference of -16.50 (-9.8 %) at seed 0."
    )
    assert "one seed" in rendered(table)


@pytest.mark.parametrize(
    "changes", [{"curve_hash": "baseline0"}, {"final_train_loss": 8.0}, {"data_hash": "x"}, {"corpus_fingerprint": "x"}]
)
def test_a_blocking_flag_at_one_seed_leaves_no_verdict_at_all(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_study(tmp_path, {"baseline": {0: 168.3, 1: 183.3, 2: 175.0}, "g1_headwise": {1: 151.3, 2: 153.2}})
    write_run(tmp_path, summary("g1_headwise", 0, 151.8, **changes))
    table = compare(results.load(tmp_path), "baseline", ["g1_headwise"])
    assert all(row.comparison.verdict is None for row in table.variants[0].rows)
    assert said(table)[0].startswith("No verdict on g1_headwise: ")
    assert "blocked" in rendered(table)


def test_a_blocked_variant_does_not_count_in_the_family(tmp_path: Path) -> None:
    write_study(tmp_path, {name: THREE_SEEDS[name] for name in ("baseline", "g1_elementwise")})
    for seed in range(3):
        write_run(tmp_path, summary("g1_headwise", seed, 150.0 + seed, curve_hash=f"baseline{seed}"))
    table = compare(results.load(tmp_path), "baseline", ["g1_headwise", "g1_elementwise"])
    sound = table.variants[1].primary.comparison
    assert sound.p_adjusted == pytest.approx(sound.p)


def test_a_diverged_run_is_a_dash_and_no_verdict(tmp_path: Path) -> None:
    write_study(tmp_path, {"baseline": {0: 168.3, 1: 183.3}})
    for seed in (0, 1):
        write_run(tmp_path, diverged("g1_headwise", seed, 40))
    table = compare(results.load(tmp_path), "baseline", ["g1_headwise"])
    row = table.variants[0].primary
    assert math.isnan(row.variant_mean) and row.comparison.verdict is None
    assert "diverged at step 40" in said(table)[0]
    line = next(line for line in rendered(table).splitlines() if "Avg PPL" in line)
    assert line.split()[:4] == ["Avg", "PPL", "175.80", "-"]


def test_a_missing_baseline_is_said_and_the_variant_still_shown(tmp_path: Path) -> None:
    write_study(tmp_path, {"g1_headwise": {0: 151.8, 1: 151.3}})
    table = compare(results.load(tmp_path), "baseline", ["g1_headwise"])
    assert "the baseline has no run (seeds 0, 1)" in said(table)[0]
    assert table.variants[0].primary.variant_mean == pytest.approx(151.55)


def test_the_floor_stands_beside_the_first_token_share(frame: pd.DataFrame) -> None:
    row = compare(frame, "baseline", ["g1_headwise"]).variants[0].row("first_token_share")
    assert row.floor == pytest.approx(0.023923, abs=1e-6)  # H_256 / 256
    text = rendered(compare(frame, "baseline", ["g1_headwise"]))
    assert "uniform floor" in text and "0.0239" in text


def test_without_a_sink_there_is_none_to_remove(frame: pd.DataFrame) -> None:
    table = compare(frame, "baseline", ["g1_headwise"])
    assert table.variants[0].row("first_token_share").comparison.verdict is None
    assert "no sink here that a gate could remove" in said(table)[-1]
    assert "at under 10^8 tokens (here 4.92 M) real text usually grows none" in said(table)[-1]


def test_a_sink_that_is_there_is_judged(tmp_path: Path) -> None:
    for seed, (before, after) in enumerate([(0.46, 0.05), (0.47, 0.04), (0.45, 0.05)]):
        for name, share in (("baseline", before), ("g1_headwise", after)):
            changes = {"first_token_share": share, "first_token_excess": share / 0.0239}
            write_run(tmp_path, summary(name, seed, 170.0 + seed, **changes))
    table = compare(results.load(tmp_path), "baseline", ["g1_headwise"])
    assert table.variants[0].row("first_token_share").comparison.verdict == "better"
    assert not any(sentence.startswith("Sinks") for sentence in said(table))


def test_the_header_states_what_the_numbers_depend_on(frame: pd.DataFrame) -> None:
    text = rendered(compare(frame, "baseline", ["g1_headwise"]))
    for words in (
        "recipe quick", "2.38 M parameters", "4.92 M tokens in 1,200 steps", "seeds 0, 1, 2", "corpus six_domains",
        "197 k tokens evaluated", "BOS yes", "context 256", "precision fp32", "device cpu (1 thread)",
        "commit 012345678", "param_match none",
    ):  # fmt: skip
        assert words in text


def test_uncommitted_changes_are_in_the_header(tmp_path: Path) -> None:
    write_study(tmp_path, {"baseline": {0: 168.3}, "g1_headwise": {0: 151.8}}, git_dirty=True)
    assert "with uncommitted changes" in rendered(compare(results.load(tmp_path), "baseline", ["g1_headwise"]))


@pytest.mark.parametrize("n_seeds", [1, 2, 3])
def test_the_terminal_table_fits_120_columns_without_wrapping(frame: pd.DataFrame, n_seeds: int) -> None:
    text = rendered(compare(frame[frame["seed"] < n_seeds], "baseline", ["g1_headwise"], LABELS), width=120)
    (line,) = (line for line in text.splitlines() if "PPL encyclopedia" in line)
    assert len(line.rstrip()) <= 120
    assert "SDPA Headwise G1 (g1_headwise) against Baseline" in text


def test_csv_has_a_column_a_seed_and_every_number(frame: pd.DataFrame) -> None:
    table = compare(frame, "baseline", ["g1_headwise", "g1_elementwise"])
    rows = document(table).frame.set_index(["variant", "metric"])
    assert rows.loc[("g1_elementwise", "avg_ppl"), "difference_seed_1"] == pytest.approx(-30.7)
    assert rows.loc[("g1_headwise", "n_params"), "difference"] == 2_304
    assert rows.loc[("g1_headwise", "gate_closed"), "variant_mean"] == pytest.approx(0.22)
    assert rows.loc[("g1_headwise", "avg_ppl"), "verdict"] == "better"


def test_json_is_strict_and_has_null_where_there_is_no_number(frame: pd.DataFrame) -> None:
    table = compare(frame[frame["seed"] == 0], "baseline", ["g1_headwise"])

    def refuse(word: str) -> None:
        raise AssertionError(word)

    data = json.loads(document(table).to_json(), parse_constant=refuse)
    assert data["schema"] == 1
    (variant,) = data["variants"]
    assert variant["verdict"] is None
    primary = variant["metrics"][0]
    assert (primary["metric"], primary["difference"], primary["p"]) == ("avg_ppl", -16.5, None)
    assert data["facts"]["seeds"] == [0]


def test_the_same_runs_give_the_same_bytes(frame: pd.DataFrame, tmp_path: Path) -> None:
    variants = ["g1_headwise", "g1_elementwise"]
    first = document(compare(frame, "baseline", variants, LABELS)).write(tmp_path / "a")
    mixed = frame.sample(frac=1, random_state=3)
    second = document(compare(mixed, "baseline", variants, LABELS)).write(tmp_path / "b")
    assert [path.name for path in first] == [f"comparison.{suffix}" for suffix in ("md", "csv", "json", "tex", "html")]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_csv_file_reads_back(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = document(compare(frame, "baseline", ["g1_headwise"])).write(tmp_path)[1]
    with path.open(newline="") as file:
        primary = next(csv.DictReader(file))
    assert float(primary["baseline_mean"]) == pytest.approx(175.533333)
    assert primary["verdict"] == "better"


def test_markdown_tables_are_well_formed(frame: pd.DataFrame) -> None:
    text = document(compare(frame, "baseline", ["g1_headwise", "g1_elementwise"], LABELS)).to_markdown()
    tables = [line for line in text.splitlines() if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in tables}
    assert widths == {8}  # the overview and both tables have seven columns
    assert "## SDPA Headwise G1 (g1_headwise) against Baseline" in text


@pytest.mark.parametrize(
    ("baseline", "variants", "message"),
    [
        ("baseline", [], "no variants given"),
        ("baseline", ["baseline"], "baseline is the baseline"),
        ("baseline", ["g1_headwise", "g1_headwise"], "g1_headwise given twice"),
        ("baseline", ["g5_headwise"], "no finished run of g5_headwise; there are runs of baseline, g1_elementwise"),
    ],
)
def test_bad_input_is_one_line(frame: pd.DataFrame, baseline: str, variants: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare(frame, baseline, variants)


def test_two_runs_at_one_seed_are_refused_by_name(tmp_path: Path) -> None:
    write_study(tmp_path, {"baseline": {0: 168.3}, "g1_headwise": {0: 151.8}})
    write_run(tmp_path, summary("g1_headwise", 0, 150.0, run="again"))
    with pytest.raises(UserError, match=r"2 runs of g1_headwise at seed 0 \(again, g1_headwise-s0\)"):
        compare(results.load(tmp_path), "baseline", ["g1_headwise"])


def test_mixed_recipes_are_refused(tmp_path: Path) -> None:
    write_study(tmp_path, {"baseline": {0: 168.3}})
    write_run(tmp_path, summary("g1_headwise", 0, 151.8, recipe="sink_lab"))
    with pytest.raises(UserError, match="differ in recipe"):
        compare(results.load(tmp_path), "baseline", ["g1_headwise"])
