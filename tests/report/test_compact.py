"""The committed frame: types survive, size is bounded, and what is there already is not read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gatebench.errors import UserError
from gatebench.report.read import committed_frames as compact
from gatebench.report.read import results
from tests.report.synthetic_runs import diverged, summary, write_run


def frame(root: Path, n_steps: int = 500) -> pd.DataFrame:
    rows = [summary("baseline", 0, 168.3), summary("g1_headwise", 0, 151.8), diverged("g1_headwise", 1, 37)]
    for row in rows:
        write_run(root, {**row, "overrides": ["optim.lr=3e-3"]}, n_steps)
    return results.load(root).assign(setting="optim.lr=3e-3")


def test_what_is_read_back_is_what_was_written(tmp_path: Path) -> None:
    runs = frame(tmp_path / "runs")
    compact.write(runs, tmp_path / "study")
    read = compact.read_runs(tmp_path / "study")
    assert read is not None
    order = ["variant", "seed"]
    ours, theirs = runs.sort_values(order, ignore_index=True), read.sort_values(order, ignore_index=True)
    assert set(theirs.columns) == set(ours.columns)
    for name in ours.columns.drop("run_dir"):
        assert theirs[name].dtype == ours[name].dtype, name
        if ours[name].dtype == float:
            np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-9)
        else:
            assert theirs[name].tolist() == ours[name].tolist(), name
    assert (theirs["run_dir"] == "").all()


def test_writing_what_was_read_changes_no_byte(tmp_path: Path) -> None:
    paths = compact.write(frame(tmp_path / "runs"), tmp_path / "study")
    first = [path.read_bytes() for path in paths]
    read = compact.read_runs(tmp_path / "study")
    assert read is not None
    compact.write(read, tmp_path / "study")
    assert [path.read_bytes() for path in paths] == first


def test_curves_have_means_and_maxima_of_bins(tmp_path: Path) -> None:
    runs = frame(tmp_path / "runs", n_steps=2000)
    compact.write(runs, tmp_path / "study")
    curves = compact.read_curves(tmp_path / "study")
    whole = results.load_curves([runs["run_dir"].iloc[0]])
    one = curves[curves["run"] == runs["run"].iloc[0]]
    assert len(one) == compact.MAX_POINTS_A_RUN and one["step"].iloc[-1] == 2000
    blocks = whole["loss"].to_numpy().reshape(200, 10)
    np.testing.assert_allclose(one["loss"], blocks.mean(axis=1), rtol=1e-4)
    np.testing.assert_allclose(one["loss_max"], blocks.max(axis=1), rtol=1e-4)
    labelled = compact.with_labels(curves, runs)
    assert set(labelled["variant"]) == {"baseline", "g1_headwise"} and len(labelled) == len(curves)


def test_a_run_that_changed_is_read_again(tmp_path: Path) -> None:
    runs = frame(tmp_path / "runs")
    compact.write(runs, tmp_path / "study")
    before = compact.read_curves(tmp_path / "study")
    directory = Path(runs["run_dir"].iloc[0])
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    (directory / "metrics.jsonl").write_text("\n".join(lines[:400]) + "\n")
    compact.write(runs, tmp_path / "study")
    assert len(compact.read_curves(tmp_path / "study")) == len(before)  # its summary says that nothing changed
    compact.write(runs.assign(curve_hash="another"), tmp_path / "study")
    after = compact.read_curves(tmp_path / "study")
    assert after[after["run"] == runs["run"].iloc[0]]["step"].max() == 400


def test_a_large_study_stays_small(tmp_path: Path) -> None:
    rows = [summary(f"g1_headwise_temp{n}", seed, 150.0, run=f"r/{n}-{seed}") for n in range(100) for seed in range(8)]
    runs = results.as_frame([{**row, "run_dir": ""} for row in rows]).assign(setting="")
    kept = compact._with_curves(runs)
    assert len(kept) == compact.MAX_CURVES and set(kept["seed"]) == {0, 1, 2}  # whole seeds first
    points = np.clip(compact.MAX_POINTS // len(kept), compact.MIN_POINTS_A_RUN, compact.MAX_POINTS_A_RUN)
    assert points * len(kept) * 100 < 1.5e6  # at a hundred bytes a point


def test_a_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    paths = compact.write(frame(tmp_path / "runs"), tmp_path / "study")
    text = pd.read_csv(paths[0], dtype=str, keep_default_na=False).assign(schema="9")
    text.to_csv(paths[0], index=False)
    with pytest.raises(UserError, match="not of schema 1; restore it with git"):
        compact.read_runs(tmp_path / "study")
    assert compact.read_runs(tmp_path / "nowhere") is None
