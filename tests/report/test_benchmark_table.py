"""Benchmark results of runs: columns, the paper's tables with them, and the table of a study."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gatebench.errors import UserError
from gatebench.report.analysis import paper_tables as tables
from gatebench.report.read import committed_frames as compact
from gatebench.report.read import results
from gatebench.report.read.benchmark_results import at_chance, columns
from gatebench.report.tables import benchmark_table, paper_table
from gatebench.report.tables.benchmark_table import ASKED_DIFFERENTLY, GUESSED
from tests.report.synthetic_runs import summary, write_run

VARIANTS = {"baseline": 0.30, "g1_headwise": 0.36}


def record(task: str, score: float, *, bits: float | None = 2.0, **asked: Any) -> dict[str, Any]:
    """A result over 400 items of four choices, with its binomial standard error."""
    words = {"task": task, "task_version": "1", "harness": "lm_eval 0.4.13", "shots": 0, "limit": None, "seed": 1234}
    words |= {"checkpoint": "quick/x", "corpus": "six_domains", "corpus_fingerprint": "c0ffee00" * 8}
    stderr = math.sqrt(score * (1 - score) / 400)
    found = {"n": 400, "score": score, "stderr": stderr, "chance": 0.25, "answer_bpb": bits}
    return {"schema": 1, "asked": words | asked, **found}


def write_result(run_dir: Path, content: dict[str, Any], name: str = "") -> None:
    folder = run_dir / "benchmarks"
    folder.mkdir(exist_ok=True)
    (folder / f"{name or content['asked']['task']}.json").write_text(json.dumps(content), encoding="utf-8")


def write_runs(root: Path, results_of: Callable[[str, int], list[dict[str, Any]]], n_seeds: int = 3) -> pd.DataFrame:
    for variant in VARIANTS:
        for seed in range(n_seeds):
            directory = write_run(root, summary(variant, seed, 30 - 2 * (variant != "baseline") + 0.1 * seed))
            for content in results_of(variant, seed):
                write_result(directory, content)
    return results.load(root)


def typical(variant: str, seed: int) -> list[dict[str, Any]]:
    """A task that the gate helps with, one that both guess at, and one of the paper's."""
    gain = VARIANTS[variant] - 0.30
    score = 0.30 + gain + 0.002 * seed + 0.001 * (seed == 1) * (variant != "baseline")
    return [
        record("gb_cloze_law", score, bits=2.4 - gain + 0.01 * seed),
        record("gb_copy", 0.245 + 0.001 * seed, bits=2.9 - gain - 0.01 * seed),
        record("hellaswag", 0.27 + gain, shots=10, bits=1.5 + 0.01 * seed),
    ]


def test_a_result_is_a_few_columns(tmp_path: Path) -> None:
    directory = write_run(tmp_path, summary("baseline", 0, 30.0))
    write_result(directory, record("hellaswag", 0.5, shots=10))
    assert columns(directory) == {
        "bench/hellaswag": 50.0,
        "bench_stderr/hellaswag": pytest.approx(2.5),
        "bench_chance/hellaswag": 25.0,
        "bench_bpb/hellaswag": 2.0,
        "bench_n/hellaswag": 400,
        "bench_asked/hellaswag": "v1 10-shot seed 1234 lm_eval 0.4.13 c0ffee00",
    }


@pytest.mark.parametrize(
    ("task", "shots", "column"),
    [
        ("hellaswag", 10, "hellaswag"),
        ("hellaswag", 0, "hellaswag-0shot"),
        ("gsm8k_cot", 4, "gsm8k"),
        ("gsm8k", 4, "gsm8k-4shot"),
        ("ceval-valid", 5, "ceval"),
        ("arc_easy", 0, "arc_easy-0shot"),
        ("gb_humaneval", 0, "gb_humaneval"),
    ],
)
def test_only_the_papers_way_of_asking_has_the_papers_name(tmp_path: Path, task: str, shots: int, column: str) -> None:
    directory = write_run(tmp_path, summary("baseline", 0, 30.0))
    write_result(directory, record(task, 0.5, shots=shots))
    assert [name for name in columns(directory) if name.startswith("bench/")] == [f"bench/{column}"]


def test_tries_are_no_column_and_a_broken_file_is_named(tmp_path: Path) -> None:
    directory = write_run(tmp_path, summary("baseline", 0, 30.0))
    write_result(directory, record("gb_copy", 0.5, limit=8), "gb_copy-limit8")
    assert columns(directory) == {}
    write_result(directory, {}, "gb_copy")
    with pytest.raises(UserError, match=r"gb_copy\.json: no benchmark result \(KeyError: 'asked'\)"):
        results.load(tmp_path)


def test_the_cache_sees_a_new_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "MIN_CACHED", 1)
    directory = write_run(tmp_path, summary("baseline", 0, 30.0))
    assert "bench/gb_copy" not in results.load(tmp_path)
    assert (tmp_path / results.CACHE).is_file()
    write_result(directory, record("gb_copy", 0.5))
    assert results.load(tmp_path)["bench/gb_copy"].tolist() == [50.0]


def test_chance_lies_within_the_interval() -> None:
    assert at_chance(0.27, 0.0219, 0.25)
    assert not at_chance(0.30, 0.0219, 0.25)
    assert at_chance(0.0, None, 0.0)
    assert at_chance(0.0, math.nan, 0.0)


def test_verdicts_are_paired_by_seed_and_none_is_given_where_both_guess(tmp_path: Path) -> None:
    frame = write_runs(tmp_path, typical)
    table = benchmark_table.make(frame, "baseline", ["g1_headwise"], {"g1_headwise": "SDPA Headwise"})
    assert table is not None
    won = table.entry("g1_headwise", "gb_cloze_law").comparison
    assert won is not None
    assert (won.verdict, won.n) == ("better", 3)
    assert won.mean == pytest.approx(6.0, abs=0.1)
    guessed = table.entry("g1_headwise", "gb_copy")
    assert guessed.at_chance and guessed.comparison is not None
    assert (guessed.comparison.verdict, guessed.comparison.reason) == (None, GUESSED)
    assert table.entry("baseline", "gb_cloze_law").comparison is None
    document = benchmark_table.document(table)
    text = document.to_markdown()
    assert "| SDPA Headwise | 36.23 ± 0.52 ✓ | 24.60 ± 0.25 ° | 33.00 ± 0.00 |" in text
    assert "| gb_copy | 400 | 25.00 | v1 0-shot seed 1234 lm_eval 0.4.13 c0ffee00 |" in text
    json.loads(document.to_json())


def test_one_seed_gives_no_verdict(tmp_path: Path) -> None:
    table = benchmark_table.make(write_runs(tmp_path, typical, n_seeds=1), "baseline", ["g1_headwise"])
    assert table is not None
    assert not any(entry.comparison and entry.comparison.verdict for entry in table.entries)
    assert "| g1_headwise | 36.00 | 24.50 ° |" in benchmark_table.document(table).to_markdown()


def test_a_blocked_variant_has_no_verdict(tmp_path: Path) -> None:
    frame = write_runs(tmp_path, typical)
    frame.loc[frame["variant"] == "g1_headwise", "final_train_loss"] = 8.3  # untrained: ln(4096) is 8.32
    table = benchmark_table.make(frame, "baseline", ["g1_headwise"])
    assert table is not None
    found = table.entry("g1_headwise", "gb_cloze_law").comparison
    assert found is not None
    assert found.verdict is None
    assert "untrained" in str(found.reason)


def test_runs_that_were_asked_differently_are_not_compared(tmp_path: Path) -> None:
    def differing(variant: str, seed: int) -> list[dict[str, Any]]:
        score = VARIANTS[variant] + 0.001 * seed
        return [record("gb_cloze_law", score, task_version="1" if variant == "baseline" else "2")]

    table = benchmark_table.make(write_runs(tmp_path, differing), "baseline", ["g1_headwise"])
    assert table is not None
    found = table.entry("g1_headwise", "gb_cloze_law").comparison
    assert found is not None
    assert (found.verdict, found.reason) == (None, ASKED_DIFFERENTLY)


def test_without_results_there_is_no_table(tmp_path: Path) -> None:
    assert benchmark_table.make(write_runs(tmp_path, lambda variant, seed: []), "baseline", ["g1_headwise"]) is None


def test_the_papers_table_has_ours_beside_its_own_and_marks_chance(tmp_path: Path) -> None:
    frame = write_runs(tmp_path, typical)
    table = tables.make(1, frame, "baseline", ["g1_headwise"])
    assert table.row("g1_headwise").ours["bench/hellaswag"].mean == pytest.approx(33.0)
    assert table.row("baseline").ours["bench/hellaswag"].at_chance  # 27 % of 400 items
    made = paper_table.document(table)
    assert "27.00 ± 0.00 °" in made.to_markdown()
    assert r"27.00 $\pm$ 0.00 $^{\circ}$" in made.to_latex()
    assert "° at chance" in made.to_markdown()
    assert "Not measured here: MMLU, GSM8k and C-eval." in made.to_markdown()
    assert made.frame.set_index("variant")["bench/hellaswag_at_chance"].to_dict()["g1_headwise"] is False


def test_a_table_without_results_has_no_word_of_chance(tmp_path: Path) -> None:
    table = tables.make(1, write_runs(tmp_path, lambda variant, seed: []), "baseline", ["g1_headwise"])
    made = paper_table.document(table)
    for text in (made.to_markdown(), made.to_latex(), made.to_html(), made.to_json()):
        assert "at chance" not in text and "at_chance" not in text
    assert not [name for name in made.frame if "chance" in name]


def test_the_committed_frame_gives_the_same_bytes(tmp_path: Path) -> None:
    frame = write_runs(tmp_path / "runs", typical).assign(setting="")
    compact.write(frame, tmp_path / "study")
    committed = compact.read_runs(tmp_path / "study")
    assert committed is not None
    forms = []
    for number, runs in enumerate((committed.assign(run_dir=frame["run_dir"]), committed)):
        table = benchmark_table.make(runs, "baseline", ["g1_headwise"])
        assert table is not None
        forms.append([path.read_bytes() for path in benchmark_table.document(table).write(tmp_path / str(number))])
    assert forms[0] == forms[1]
    again = compact.write(committed, tmp_path / "study")
    assert again[0].read_bytes() == (tmp_path / "study" / "runs.csv").read_bytes()
    pd.testing.assert_frame_equal(compact.read_runs(tmp_path / "study"), committed)
