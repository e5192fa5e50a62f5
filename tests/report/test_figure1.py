"""Figure 1: the moving average of the paper's plot, spikes, and bars that hold the runs' numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gatebench.report.figures import figure1
from gatebench.report.figures.style import drawing
from gatebench.report.read import results
from tests.report.synthetic_runs import summary


def test_the_moving_average_is_the_papers() -> None:
    # s_1 = 4; 0.9 * 4 + 0.1 * 2 = 3.8; 0.9 * 3.8 + 0.1 * 3 = 3.72.
    assert figure1.moving_average(np.array([4.0, 2.0, 3.0])) == pytest.approx([4.0, 3.8, 3.72])
    ended = figure1.moving_average(np.array([4.0, math.nan, 3.0]))
    assert ended[0] == 4.0 and np.isnan(ended[1:]).all()


def test_planted_spikes_are_found_and_no_others() -> None:
    rng = np.random.default_rng(0)
    values = 3 + 0.01 * rng.standard_normal(200)
    values[[60, 150]] = 3.5
    assert figure1.spikes(values) == [60, 150]
    assert figure1.spikes(np.linspace(5, 3, 200)) == []


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    names = ("baseline", "g1_elementwise", "g2_elementwise", "g5_elementwise")
    rows = [summary(name, seed, 150.0 + 2 * seed - 5 * names.index(name)) for name in names for seed in (0, 1, 2)]
    return results.as_frame(rows)


def curves() -> pd.DataFrame:
    parts = []
    for name in ("baseline", "g1_elementwise"):
        for seed in (0, 1):
            loss = 3 + np.exp(-np.arange(100) / 20)
            columns = {"step": range(1, 101), "tokens": np.arange(1, 101) * 1000, "loss": loss, "loss_max": loss + 0.1}
            parts.append(pd.DataFrame(columns).assign(variant=name, seed=seed, run=f"{name}{seed}"))
    return pd.concat(parts)


def test_bars_are_the_means_beside_the_papers(frame: pd.DataFrame) -> None:
    with drawing():
        ours, theirs = figure1.positions(frame).axes
    heights = [bar.get_height() for bar in ours.patches]
    assert heights == pytest.approx([152.0, 147.0, 142.0, 137.0])
    assert [bar.get_height() for bar in theirs.patches] == [6.026, 5.761, 5.82, 6.016, 5.981, 6.017]
    assert [text.get_text().split("\n")[0] for text in ours.get_xticklabels()] == ["none", "G1", "G2", "G5"]


def test_both_panels_are_saved_and_the_same_twice(frame: pd.DataFrame, tmp_path: Path) -> None:
    first = figure1.write(frame, curves(), "baseline", tmp_path / "a")
    second = figure1.write(frame, curves(), "baseline", tmp_path / "b")
    stems = ("figure1_positions", "figure1_losses")
    assert [path.name for path in first] == [f"{stem}.{s}" for stem in stems for s in ("png", "pdf", "svg")]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_without_positions_nothing_is_drawn(frame: pd.DataFrame, tmp_path: Path) -> None:
    only = frame[frame["variant"].isin(["baseline", "g1_elementwise"])]
    assert figure1.write(only, curves().iloc[:0], "baseline", tmp_path) == []
