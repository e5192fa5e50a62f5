"""Where `gatebench ablation` writes: one folder a comparison. Runs are stood in for by directories from numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gatebench import paths
from gatebench.cli import main
from gatebench.report.folders import comparison_folder
from gatebench.sweep import pool
from tests.cli.test_sweep_cli import Trainer


@pytest.mark.parametrize(
    ("baseline", "variants", "overrides", "folder"),
    [
        ("baseline", ["g1_headwise"], [], "g1_headwise"),
        ("baseline", ["g1_headwise", "g2_headwise"], [], "g1_headwise,g2_headwise"),
        ("baseline", ["g1_headwise+g2_headwise"], [], "g1_headwise+g2_headwise"),
        ("baseline", ["g1_headwise", "g2_headwise", "g3_headwise"], [], "3_variants-cfb64d5b"),
        ("baseline", ["g1_headwise", "g2_headwise", "g4_headwise"], [], "3_variants-2d6a5622"),
        ("baseline", ["g1_headwise"], ["optim.lr=3e-3"], "g1_headwise-optim.lr=3e-3"),
        ("baseline", ["g1_headwise"], ["optim.lr=3e-3", "train.steps=9"], "g1_headwise-optim.lr=3e-3+train.steps=9"),
        ("g2_headwise", ["g1_headwise"], [], "g1_headwise-vs-g2_headwise"),
        ("g2_headwise", ["g1_headwise"], ["optim.lr=3e-3"], "g1_headwise-optim.lr=3e-3-vs-g2_headwise"),
    ],
)
def test_a_folder_names_its_comparison(baseline: str, variants: list[str], overrides: list[str], folder: str) -> None:
    assert comparison_folder(baseline, variants, overrides) == folder


def test_a_folder_fits_every_file_system_and_long_ones_stay_apart() -> None:
    longest = "g1_headwise+g2_elementwise+g3_headwise+g4_elementwise+g5_elementwise"
    names = [
        comparison_folder(longest, [longest, longest + "_tanh"], ["data.corpus=" + "x" * n, *more])
        for n, more in ((150, []), (151, []), (150, ["data.bos=false"]))
    ]
    assert len(set(names)) == 3
    assert all(len(name) < 255 and "/" not in name for name in names)


def test_comparisons_do_not_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "experiments").symlink_to(paths.project_root() / "experiments")
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(pool, "run_all", Trainer())
    # drawing is tested elsewhere
    monkeypatch.setattr(
        "gatebench.report.figures.comparison_figures.write", lambda *arguments: []
    )  # drawing is tested elsewhere
    command = ["gatebench", "ablation", "--recipe", "sink_lab", "--seeds", "2"]
    for words in (
        "--variant g1_headwise",
        "--variant g1_headwise --set train.steps=500",
        "--variant g1_headwise --baseline g2_headwise",
        "--variant g1_headwise --variant g2_headwise",
        "--variant g1_headwise+g2_headwise",
    ):
        monkeypatch.setattr(sys, "argv", [*command, *words.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0, capsys.readouterr().err
    out = tmp_path / "results" / "ablation" / "sink_lab"
    assert sorted(path.parent.name for path in out.glob("*/comparison.md")) == [
        "g1_headwise",
        "g1_headwise+g2_headwise",
        "g1_headwise,g2_headwise",
        "g1_headwise-train.steps=500",
        "g1_headwise-vs-g2_headwise",
    ]
