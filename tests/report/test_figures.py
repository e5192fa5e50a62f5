"""Figures: there, not blank, the same bytes twice, one fixed style a variant."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from gatebench.errors import UserError
from gatebench.report.figures import comparison_figures as figures
from gatebench.report.figures.style import variant_style
from gatebench.report.read import results
from tests.report.synthetic_runs import diverged, write_run, write_study


@pytest.fixture(scope="module")
def frame(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    study = {"baseline": {0: 168.3, 1: 183.3}, "g1_headwise": {0: 151.8, 1: 151.3}}
    root = write_study(tmp_path_factory.mktemp("runs"), study)
    write_run(root, diverged("g1_headwise", 2, 60), n_steps=60)
    return results.load(root)


@pytest.fixture(scope="module")
def drawn(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return figures.write(frame, "baseline", ["g1_headwise"], None, tmp_path_factory.mktemp("figures"))


def test_three_figures_in_three_formats(drawn: list[Path]) -> None:
    stems = ("loss_curves", "first_token_share", "gate_g1_headwise")
    assert [path.name for path in drawn] == [f"{stem}.{suffix}" for stem in stems for suffix in ("png", "pdf", "svg")]


def test_no_figure_is_blank(drawn: list[Path]) -> None:
    for path in drawn:
        if path.suffix == ".png":
            pixels = matplotlib.image.imread(path)[..., :3]
            assert np.mean(np.any(pixels < 0.9, axis=-1)) > 0.01, path.name


def test_drawing_twice_gives_the_same_bytes(frame: pd.DataFrame, drawn: list[Path], tmp_path: Path) -> None:
    again = figures.write(frame, "baseline", ["g1_headwise"], None, tmp_path)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in drawn]


def test_no_file_holds_a_date(drawn: list[Path]) -> None:
    for path in drawn:
        assert b"CreationDate" not in path.read_bytes() and b"<dc:date>" not in path.read_bytes()


def test_nothing_to_draw_is_one_line(frame: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished run of a, b"):
        figures.write(frame, "a", ["b"], None, tmp_path)


def test_smoothing_has_no_start_up_bias_and_ends_with_the_run() -> None:
    assert figures.smoothed(np.full(500, 3.25)) == pytest.approx(np.full(500, 3.25))
    ends = figures.smoothed(np.array([4.0, 4.0, np.nan, np.inf]))
    assert np.isnan(ends).tolist() == [False, False, True, True]


def test_a_variant_looks_the_same_everywhere_and_unlike_its_neighbours() -> None:
    names = ("baseline", "g1_headwise", "g1_elementwise", "g1_elementwise_shared", "g2_headwise", "g2_elementwise")
    assert len({variant_style(name) for name in names}) == len(names)
    assert variant_style("g1_elementwise").color == "#0072B2"
    assert variant_style("baseline").color == "#000000"
    assert variant_style("kv_heads_x2") == variant_style("kv_heads_x2")
