"""Figures: there, not blank, the same bytes twice, one fixed style a variant."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from gatebench.errors import UserError
from gatebench.report.figures import comparison_figures as figures
from gatebench.report.figures import save
from gatebench.report.figures.loss_curves import smoothed
from gatebench.report.figures.panels import legend_above, new_figure
from gatebench.report.figures.style import PAGE_WIDTH, drawing, variant_style
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
    assert smoothed(np.full(500, 3.25)) == pytest.approx(np.full(500, 3.25))
    ends = smoothed(np.array([4.0, 4.0, np.nan, np.inf]))
    assert np.isnan(ends).tolist() == [False, False, True, True]


def test_a_variant_looks_the_same_everywhere_and_unlike_its_neighbours() -> None:
    names = ("baseline", "g1_headwise", "g1_elementwise", "g1_elementwise_shared", "g2_headwise", "g2_elementwise")
    assert len({variant_style(name) for name in names}) == len(names)
    assert variant_style("g1_elementwise").color == "#0072B2"
    assert variant_style("baseline").color == "#000000"
    assert variant_style("kv_heads_x2") == variant_style("kv_heads_x2")


def test_a_style_is_that_of_the_gate_whatever_stands_beside_it() -> None:
    both = variant_style("sandwich_norm+g1_headwise")
    assert both == variant_style("sandwich_norm+g1_headwise", "g2_headwise")
    assert both.linestyle == variant_style("g1_headwise").linestyle == "--"
    assert both.color not in (variant_style("g1_headwise").color, variant_style("sandwich_norm").color)
    assert variant_style("from/elsewhere") == variant_style("from/elsewhere")


KILLED = """
import os, signal, sys
from pathlib import Path
from gatebench import files
from gatebench.report.figures import save
from gatebench.report.figures.panels import new_figure

def killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

os.replace = killed
figure = new_figure(2, 2)
figure.subplots().plot([0, 1])
save.save(figure, Path(sys.argv[1]) / "line")
"""


def test_a_killed_process_leaves_the_old_figure_whole(tmp_path: Path) -> None:
    with drawing():
        figure = new_figure(2, 2)
        figure.subplots().plot([1, 0])
        before = {path: path.read_bytes() for path in save.save(figure, tmp_path / "line")}
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert done.returncode == -signal.SIGKILL
    assert {path: path.read_bytes() for path in before} == before
    assert [path.name for path in tmp_path.glob("line.png.*.tmp")], "it was killed between writing and renaming"


def test_a_figure_that_cannot_be_drawn_leaves_nothing(tmp_path: Path) -> None:
    figure = new_figure(2, 2)
    figure.subplots().set_title("$unbalanced {$")
    with pytest.raises(ValueError, match="unbalanced"):
        save.save(figure, tmp_path / "line")
    assert not list(tmp_path.iterdir())


def test_a_legend_never_is_wider_than_its_figure() -> None:
    with drawing():
        figure = new_figure(PAGE_WIDTH, 3.0)
        axes = figure.subplots()
        for n in range(9):
            axes.plot([0, n], label=f"SDPA Elementwise Gate (NS-sigmoid), x mean gate {n}")
        legend_above(figure, axes)
        figure.canvas.draw()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
        assert figure.get_figheight() > 3.0
