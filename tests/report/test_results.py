"""Reading run directories."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest

from gatebench.errors import UserError
from gatebench.report.read import results
from gatebench.report.read.probe_files import at_the_end
from tests.report.synthetic_runs import diverged, summary, write_run, write_study


def test_a_row_a_finished_run_at_any_depth_in_a_fixed_order(tmp_path: Path) -> None:
    write_study(tmp_path / "b", {"g1_headwise": {1: 151.3, 0: 151.8}})
    write_study(tmp_path / "a" / "deep", {"baseline": {0: 168.3}})
    unfinished = write_run(tmp_path, summary("baseline", 1, 183.3))
    (unfinished / "summary.json").unlink()
    frame = results.load(tmp_path)
    assert list(zip(frame["variant"], frame["seed"], frame["avg_ppl"], strict=True)) == [
        ("baseline", 0, 168.3),
        ("g1_headwise", 0, 151.8),
        ("g1_headwise", 1, 151.3),
    ]
    assert results.domains(frame) == ["code", "encyclopedia", "law", "literature", "math", "web"]
    assert Path(frame["run_dir"].iloc[0]) == tmp_path / "a" / "deep" / "baseline-s0"


def test_one_run_directory_and_a_list_of_them(tmp_path: Path) -> None:
    first = write_run(tmp_path, summary("baseline", 0, 168.3))
    second = write_run(tmp_path, summary("baseline", 1, 183.3))
    assert results.load(first)["seed"].tolist() == [0]
    assert results.load([second, first, str(first)])["seed"].tolist() == [0, 1]


def test_null_becomes_nan_and_overrides_become_one_string(tmp_path: Path) -> None:
    write_run(tmp_path, {**diverged("baseline", 0, 37), "overrides": ["optim.lr=3e-3", "bos=false"]})
    row = results.load(tmp_path).iloc[0]
    assert row["status"] == "diverged" and row["diverged_step"] == 37
    assert math.isnan(row["avg_ppl"]) and math.isnan(row["gate_mean"])
    assert row["overrides"] == "optim.lr=3e-3 bos=false"


def test_an_empty_folder_is_an_empty_frame_with_every_column(tmp_path: Path) -> None:
    frame = results.load(tmp_path)
    assert len(frame) == 0
    assert set(results.COLUMNS) <= set(frame.columns)


def test_a_field_that_older_runs_lack_is_a_column_where_one_run_has_it(tmp_path: Path) -> None:
    write_run(tmp_path, summary("baseline", 0, 168.3))
    assert "residual_sinks" not in results.load(tmp_path)
    write_run(tmp_path, summary("baseline", 1, 183.3, residual_sinks=2.5))
    write_run(tmp_path, {**diverged("baseline", 2, 37), "residual_sinks": None})
    column = results.load(tmp_path)["residual_sinks"]
    assert column.dtype == "float64" and column.tolist() == pytest.approx([math.nan, 2.5, math.nan], nan_ok=True)


def test_an_unknown_schema_is_refused_with_both_numbers(tmp_path: Path) -> None:
    write_run(tmp_path, summary("baseline", 0, 168.3, schema=7))
    with pytest.raises(UserError, match=r"summary\.json: schema 7 is unknown; .* reads schema 1$"):
        results.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 1, "run"', "not JSON"),
        ("[]", "no JSON object"),
        ('{"schema": 1, "run": "r"}', "'status' is missing"),
    ],
)
def test_a_broken_summary_is_one_line_that_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    directory = write_run(tmp_path, summary("baseline", 0, 168.3))
    (directory / "summary.json").write_text(text)
    with pytest.raises(UserError) as error:
        results.load(tmp_path)
    assert message in str(error.value) and "summary.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere is no directory"):
        results.load(tmp_path / "nowhere")


def test_curves_are_long_and_leave_out_a_line_cut_short(tmp_path: Path) -> None:
    directory = write_run(tmp_path, summary("g1_headwise", 3, 151.8), n_steps=20)
    path = directory / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 21, "loss"')
    curves = results.load_curves([directory])
    assert tuple(curves.columns) == results.CURVE_COLUMNS
    assert curves["step"].tolist() == list(range(1, 21))
    assert curves["tokens"].iloc[-1] == 4_915_200
    assert set(curves["seed"]) == {3} and set(curves["variant"]) == {"g1_headwise"}


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    directory = write_run(tmp_path, summary("baseline", 0, 168.3), n_steps=3)
    path = directory / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:9], lines[2]]))
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is not JSON"):
        results.load_curves([directory])


def test_a_loss_that_is_not_finite_is_read(tmp_path: Path) -> None:
    directory = write_run(tmp_path, diverged("baseline", 0, 2), n_steps=2)
    records = [{"step": 1, "tokens": 9, "loss": 8.3}, {"step": 2, "tokens": 18, "loss": None}]
    (directory / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    curves = results.load_curves([directory])
    assert curves["loss"].iloc[0] == 8.3 and math.isnan(curves["loss"].iloc[1])


def test_probes_keep_their_shapes(tmp_path: Path) -> None:
    probes = at_the_end(write_run(tmp_path, summary("g1_headwise", 0, 151.8)))
    assert (probes.variant, probes.seed) == ("g1_headwise", 0)
    assert probes.arrays["first_token_share"].shape == (4, 3)
    assert probes.sites == ["g1"]
    assert probes.arrays["gate_g1_hist"].shape == (4, 50) and probes.arrays["gate_g1_edges"].shape == (51,)
    assert at_the_end(write_run(tmp_path, summary("baseline", 0, 168.3))).sites == []


def test_a_diverged_run_has_no_probes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no probes here"):
        at_the_end(write_run(tmp_path, diverged("baseline", 0, 37)))


# --- the cache


def many(root: Path, n: int = results.MIN_CACHED) -> None:
    for seed in range(n):
        directory = root / f"run{seed}"
        directory.mkdir(parents=True)
        (directory / "summary.json").write_text(json.dumps(summary("baseline", seed, 150.0 + seed)), encoding="utf-8")


def test_a_folder_of_many_runs_is_read_from_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many(tmp_path)
    first = results.load(tmp_path)
    assert (tmp_path / results.CACHE).is_file()
    monkeypatch.setattr(results, "_read_summary", lambda path: pytest.fail(f"{path} was read again"))
    again = results.load(tmp_path)
    pd.testing.assert_frame_equal(again, first)
    assert again.attrs == {}


@pytest.mark.parametrize("change", ["rewritten", "touched", "removed", "added", "cache cut short", "another root"])
def test_the_cache_is_not_believed_after_any_change(tmp_path: Path, change: str) -> None:
    root = tmp_path / "runs"
    many(root)
    results.load(root)
    path, expected = root / "run7" / "summary.json", 157.0
    if change == "rewritten":
        path.write_text(json.dumps(summary("baseline", 7, 99.0)), encoding="utf-8")
        expected = 99.0
    elif change == "touched":  # of the same size: the time of change tells
        before = path.stat()
        path.write_text(
            path.read_text(encoding="utf-8").replace('"avg_ppl": 157.0', '"avg_ppl": 158.0'), encoding="utf-8"
        )
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        expected = 158.0
    elif change == "removed":
        (root / "run8" / "summary.json").unlink()
    elif change == "added":
        write_run(root, summary("g1_headwise", 0, 140.0), 5)
    elif change == "cache cut short":
        content = (root / results.CACHE).read_bytes()
        (root / results.CACHE).write_bytes(content[: len(content) // 2])
    else:
        root = root.rename(tmp_path / "moved")
    frame = results.load(root)
    n = results.MIN_CACHED + {"removed": -1, "added": 1}.get(change, 0)
    assert len(frame) == n
    assert frame.loc[(frame["seed"] == 7), "avg_ppl"].iloc[0] == expected
    assert frame["run_dir"].str.startswith(str(root)).all()


def test_few_runs_leave_no_cache(tmp_path: Path) -> None:
    many(tmp_path, 3)
    results.load(tmp_path)
    assert not (tmp_path / results.CACHE).exists()
