"""A study over learning rates and batch sizes, from run directories to its tables and figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from gatebench.cli import app
from gatebench.report.analysis.spikes import CURVES
from gatebench.report.study_report import learning_rates
from gatebench.sweep.plan import PlannedRun
from gatebench.sweep.study import load_study
from tests.report.study_root import make_root, write_study_runs

pytestmark = pytest.mark.slow

STUDIES = {
    "lr": """
recipe: sink_lab
variants: [g1_headwise, sandwich_norm]
seeds: 3
overrides:
  settings:
    batch_4: [train.batch_size=4, train.steps=200]
    batch_8: [train.batch_size=8, train.steps=120]
  grid: {optim.lr: [1e-3, 1e-2, 1e-1, 1.0]}
""",
}
BEST = {"baseline": -2.0, "g1_headwise": -1.4, "sandwich_norm": -2.0}
"""log10 of the best learning rate."""
SPIKE = 150
"""The step of the spike in every run of the baseline at 1e-1 and batch 4."""
TABLES = ("lr_sensitivity", "fair_tuning", "stability")
FIGURES = ("lr_loss", "lr_optimum", "lr_spikes", "lr_batch")


def loss(run: PlannedRun) -> float:
    config = run.config
    distance = math.log10(config.optim.lr) - BEST[config.variant]
    return min(4.0, 2.0 + 0.3 * distance**2 + 0.01 * config.seed + 0.001 * config.seed * distance)


def changes(run: PlannedRun) -> dict[str, Any]:
    config = run.config
    found = {
        "micro_ppl": math.exp(loss(run)),
        "steps": config.train.steps,
        "tokens": config.train.steps * config.train.batch_size * config.data.seq_len,
        "overrides": config.overrides,
        "attn_logit_max": 10.0 * config.optim.lr,
    }
    if config.variant == "baseline" and config.optim.lr == 1.0 and config.seed == 1:
        found |= {"status": "diverged", "diverged_step": 77, "micro_ppl": None, "avg_ppl": None}
    return found


def add_spikes(root: Path) -> None:
    for path in (root / "results" / "runs" / "sink_lab").glob("baseline-*/metrics.jsonl"):
        summary = json.loads((path.parent / "summary.json").read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if summary["steps"] == 200 and "optim.lr=0.1" in summary["overrides"]:
            rows[SPIKE - 1]["loss"] += 100.0
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def tables() -> None:
    done = CliRunner().invoke(app, ["tables", "lr"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        found = make_root(tmp_path_factory.mktemp("root"), patch, STUDIES)
        write_study_runs("lr", lambda run: math.exp(loss(run)), changes, n_steps=200, probes="none")
        add_spikes(found)
        tables()
        yield found


def frame(root: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(root / "results" / "lr" / "tables" / f"{name}.csv")


def test_every_table_and_figure_is_there_in_every_form(root: Path) -> None:
    folder = root / "results" / "lr"
    for name in TABLES:
        assert {path.suffix for path in (folder / "tables").glob(f"{name}.*")} == {
            ".md",
            ".csv",
            ".json",
            ".tex",
            ".html",
        }
        assert json.loads((folder / "tables" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    for name in FIGURES:
        assert {path.suffix for path in (folder / "figures").glob(f"{name}.*")} == {".png", ".pdf", ".svg"}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "loss over the learning rate" in page and "how much of a difference is the learning rate" in page


def test_the_numbers_are_those_of_the_runs(root: Path) -> None:
    found = frame(root, "lr_sensitivity").set_index(["batch_size", "variant"])
    assert set(found["n_rates"]) == {4} and set(found["best_lr"]) <= {0.01, 0.1}
    losses = [2.3, 2.0, 2.3, 3.2]
    assert found.at[(4, "sandwich_norm"), "sensitivity_seed_0"] == pytest.approx(sum(losses) / 4 - 2.0, abs=1e-6)
    shift = found.at[(4, "g1_headwise"), "optimum_difference_mean"] / math.log(10)
    assert shift == pytest.approx(0.6, abs=0.02)
    assert list(found["n_diverged"]) == [1, 0, 0] * 2
    fair = frame(root, "fair_tuning").set_index(["selection", "batch_size", "variant", "kind"])
    both = fair.at[("other seeds", 4, "g1_headwise", "baselines_best"), "difference"]
    assert both == pytest.approx(0.3 * 0.6**2, abs=0.01)


def test_spikes_and_divergence_are_those_of_the_runs(root: Path) -> None:
    found = frame(root, "stability")
    with_spike = found[found["spikes_6s_128_loss"] > 0]
    assert [(row.variant, row.lr) for row in with_spike.itertuples()] == [("baseline", 0.1)]
    assert with_spike["spikes_6s_128_loss"].iloc[0] == pytest.approx(3 / 600)  # a spike in each of three runs of 200
    assert found[found["setting"].str.startswith("batch_8")]["spikes_6s_128"].isna().all()  # 120 steps: no window
    failed = found[found["n_diverged"] > 0]
    assert set(failed["variant"]) == {"baseline"} and set(failed["diverged_steps"].astype(float)) == {77.0}
    assert found["attn_logit_max"].max() == 10.0
    runs = pd.read_csv(root / "results" / "lr" / "runs.csv", dtype=str)
    steps = runs[f"spikes_6s_128/{CURVES[0]}"].dropna()
    assert list(steps) == [str(SPIKE)] * 3


def test_committed_frames_give_the_same_bytes(root: Path) -> None:
    def written() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (root / "results" / "lr").rglob("*") if path.is_file()}

    first = written()
    (root / "results" / "runs").rename(root / "away")
    try:
        tables()
        assert written() == first
    finally:
        (root / "away").rename(root / "results" / "runs")


def test_which_studies_are_over_learning_rates() -> None:
    shipped = ("table1", "sink_drivers", "table2", "lr_sensitivity")  # of the second, two of many settings name a rate
    found = [learning_rates(load_study(str(Path("ablations") / f"{name}.yaml"))) for name in shipped]
    assert [len(rates) for rates in found] == [0, 0, 4, 7]
