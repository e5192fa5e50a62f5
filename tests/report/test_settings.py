"""The table and figure over the settings of a study, from numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gatebench.errors import UserError
from gatebench.report.analysis.settings import Setting, SettingsTable, across_settings
from gatebench.report.figures import settings_figure
from gatebench.report.read import results
from gatebench.report.tables import settings_table
from tests.report.synthetic_runs import diverged, summary, write_run

LABELS = {"baseline": "Baseline", "g1_headwise": "Headwise"}


def frame(folder: Path, shares: dict[str, dict[int, float]], floor: float = 0.02, **changes: Any) -> pd.DataFrame:
    """Runs by variant and seed with this first-token share; None is a run that diverged."""
    for variant, by_seed in shares.items():
        for seed, share in by_seed.items():
            figures = {"first_token_share": share, "first_token_floor": floor, "first_token_excess": share / floor}
            write_run(folder, summary(variant, seed, 12.0, **figures, **changes), 20)
    return results.load(folder)


@pytest.fixture
def table(tmp_path: Path) -> SettingsTable:
    shares = {"baseline": {0: 0.2, 1: 0.4}, "g1_headwise": {0: 0.02, 1: 0.024}}
    recipe = frame(tmp_path / "a", shares, overrides=["train.steps=9"])
    shares = {"baseline": {0: 0.1, 1: 0.1}, "g1_headwise": {0: 0.04, 1: 0.05}}
    deep = frame(tmp_path / "b", shares, floor=0.04, n_params=9, overrides=["train.steps=9", "model.n_layers=2"])
    settings = [Setting("recipe", (), recipe), Setting("deep", ("model.n_layers=2",), deep)]
    return across_settings("mine", settings, "baseline", ["g1_headwise"], LABELS)


def test_a_row_a_setting_and_variant_with_means_and_seeds(table: SettingsTable) -> None:
    assert [(row.setting, row.variant) for row in table.rows] == [
        *(("recipe", "baseline"), ("recipe", "g1_headwise"), ("deep", "baseline"), ("deep", "g1_headwise")),
    ]
    first = table.rows[0]
    assert first.ratio.by_seed == {0: 10.0, 1: 20.0} and first.ratio.mean == 15.0
    assert first.estimates["first_token_share"].mean == pytest.approx(0.3) and first.floor == 0.02
    assert first.ratio.half_width == pytest.approx(12.7062 * 5.0, rel=1e-4)  # t(1) sd / sqrt 2, sd = 5 sqrt 2
    assert table.rows[3].ratio.mean == pytest.approx(1.125) and table.rows[3].floor == 0.04
    markdown = settings_table.document(table).to_markdown()
    assert "| setting | variant | share | floor | share / floor | by seed | M-Act | gate | Avg PPL |" in markdown
    assert "| recipe | Baseline | 0.3000 | 0.0200 | 15.00 | 10.00, 20.00 | 41.0 | - |" in markdown
    assert "- recipe quick with train.steps=9\n" in markdown and "- seeds 0, 1\n" in markdown
    assert "commit 012345678" in markdown and "4.92 M tokens" in markdown
    assert "- recipe: `nothing`" in markdown and "- deep: `model.n_layers=2`" in markdown


def test_the_header_hides_no_parameter_count(table: SettingsTable) -> None:
    assert table.facts["n_params"][0] == 9 and len(table.facts["n_params"]) == 2


def test_forms_for_programs(table: SettingsTable, tmp_path: Path) -> None:
    document = settings_table.document(table)
    written = document.write(tmp_path / "out")
    assert [path.name for path in written] == [f"settings.{form}" for form in ("md", "csv", "json", "tex", "html")]
    csv = pd.read_csv(tmp_path / "out" / "settings.csv")
    assert csv["first_token_excess_seed_1"].tolist() == pytest.approx([20.0, 1.2, 2.5, 1.25])
    data = json.loads((tmp_path / "out" / "settings.json").read_text(encoding="utf-8"))
    assert data["rows"][1]["gate_mean"]["mean"] == pytest.approx(0.31) and data["rows"][0]["gate_mean"]["mean"] is None
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in document.write(tmp_path / "out")] == before


def test_synthetic_data_has_its_own_measure_of_loss(tmp_path: Path) -> None:
    known = {"corpus": "bigram_backcopy", "excess_loss": 0.0123, "copy_accuracy": 0.987}
    runs = frame(tmp_path, {"baseline": {0: 0.2}}, **known)
    table = across_settings("mine", [Setting("x", (), runs)], "baseline", [])
    markdown = settings_table.document(table).to_markdown()
    assert "| excess loss (nats) | copy accuracy |" in markdown and "| 0.0123 | 98.7 % |" in markdown
    assert "Means over" not in markdown and "Avg PPL" not in markdown


def test_a_diverged_run_is_named_and_has_no_number(tmp_path: Path) -> None:
    runs = frame(tmp_path, {"baseline": {0: 0.2, 1: 0.2}, "g1_headwise": {0: 0.02}})
    write_run(tmp_path, diverged("g1_headwise", 1, 7), 20)
    runs = results.load(tmp_path)
    table = across_settings("mine", [Setting("hot", (), runs)], "baseline", ["g1_headwise"])
    assert table.rows[1].ratio.by_seed == {0: 1.0}
    assert table.notes == ("hot: g1_headwise diverged at step 7 (seed 1)",)
    assert settings_figure.draw(table) is not None


def test_a_variant_without_runs_is_refused(tmp_path: Path) -> None:
    runs = frame(tmp_path, {"baseline": {0: 0.2}})
    with pytest.raises(UserError, match="setting 'x': no finished run of g1_headwise"):
        across_settings("mine", [Setting("x", (), runs)], "baseline", ["g1_headwise"])


def test_the_figure_has_a_line_a_setting_and_marks_the_floor(table: SettingsTable, tmp_path: Path) -> None:
    (axes,) = settings_figure.draw(table).axes
    assert axes.get_xscale() == "log" and [tick.get_text() for tick in axes.get_yticklabels()] == ["recipe", "deep"]
    low, high = axes.get_xlim()
    assert low < 0.5 < 1.0 and high > 20.0
    floor = next(line for line in axes.get_lines() if line.get_linestyle() == ":")
    assert list(floor.get_xdata()) == [1.0, 1.0]
    points = [line for line in axes.get_lines() if line.get_markersize() == 5.5]
    assert [float(line.get_xdata()[0]) for line in points] == pytest.approx([15.0, 1.1, 2.5, 1.125])
    files = settings_figure.write(table, tmp_path / "figures")
    before = [path.read_bytes() for path in files]
    assert [path.name for path in files] == ["settings.png", "settings.pdf", "settings.svg"]
    assert [path.read_bytes() for path in settings_figure.write(table, tmp_path / "figures")] == before
