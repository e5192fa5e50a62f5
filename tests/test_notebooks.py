"""The notebooks run from top to bottom on committed frames alone, and hold no output."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from gatebench.report.read import committed_frames as compact
from gatebench.report.read import study_runs
from gatebench.sweep.study import load_study
from tests.report.study_root import FLOOR, make_root, write_study_runs

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
STUDY = "recipe: sink_lab\nvariants: [g1_elementwise, g2_elementwise, g1_headwise]\nseeds: 3\n"


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["grid_overview", "sinks_and_gates"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_committed(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert cell.cell_type == "markdown" or (cell.outputs == [] and cell.execution_count is None)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("with_results", [True, False], ids=["planted", "no results"])
def test_it_runs(path: Path, with_results: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_root(tmp_path, monkeypatch, {"sinks": STUDY})
    if with_results:
        excess = {"baseline": 6.0, "g1_elementwise": 1.1, "g2_elementwise": 5.0, "g1_headwise": 1.2}
        write_study_runs(
            "sinks",
            lambda run: 10 + 0.1 * run.config.seed,
            lambda run: {
                "first_token_excess": excess[run.config.variant] + 0.01 * run.config.seed,
                "first_token_share": excess[run.config.variant] * FLOOR,
            },
        )
        runs = study_runs.collect(load_study("sinks"))
        compact.write(runs.frame, runs.folder)
        (root / "results" / "runs").rename(root / "away")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(root)}}).execute()
    printed = str([cell.get("outputs") for cell in notebook.cells])
    assert ("C8" in printed) and ("g1_elementwise" in printed) is with_results
