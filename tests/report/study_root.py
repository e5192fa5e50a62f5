"""A project root of its own with a study and synthetic finished runs of it, for tests of tables, reports and claims."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatebench.paths import project_root, runs_dir
from gatebench.sweep.plan import PlannedRun, plan
from gatebench.sweep.study import load_study
from tests.report.synthetic_runs import summary, uniform_floor, write_run

FLOOR = uniform_floor(256)
LAB: dict[str, Any] = {
    "corpus": "bigram_backcopy",
    "vocab_size": 68,
    "seq_len": 256,
    "eval_seq_len": 256,
    "first_token_floor": FLOOR,
    "entropy_floor": 2.39848,
    "excess_loss": 0.002,
    "excess_loss_copy": 0.002,
    "excess_loss_other": 0.001,
    "copy_accuracy": 0.999,
}
"""What a run of the sink lab has in its summary and a run on text has not."""


def make_root(root: Path, patch: pytest.MonkeyPatch, studies: dict[str, str]) -> Path:
    """Point GATEBENCH_ROOT and GATEBENCH_RUNS at a new folder with the shipped recipes and these studies."""
    shipped = project_root()
    shutil.copytree(shipped / "experiments", root / "experiments")
    (root / "ablations").mkdir()
    for name, text in studies.items():
        (root / "ablations" / f"{name}.yaml").write_text(text, encoding="utf-8")
    shutil.copytree(shipped / "results" / "paper", root / "results" / "paper")
    patch.setenv("GATEBENCH_ROOT", str(root))
    patch.setenv("GATEBENCH_RUNS", str(root / "results" / "runs"))
    return root


def write_study_runs(
    name: str,
    avg_ppl: Callable[[PlannedRun], float],
    changes: Callable[[PlannedRun], dict[str, Any]] = lambda run: {},
    n_steps: int = 60,
    probes: str = "all",
) -> None:
    """Write a finished run directory for every planned run of a study."""
    for run in plan(load_study(name)):
        assert run.directory is not None, "the corpus of the study must be known without building"
        if run.directory.exists():
            continue
        row = summary(run.config.variant, run.config.seed, avg_ppl(run), **LAB)
        row |= {"recipe": run.config.recipe, "overrides": run.config.overrides, "fingerprint": run.config.fingerprint}
        row |= {"curve_hash": run.config.run_name, "run": run.config.run_name, **changes(run)}
        write_run(runs_dir(), row, n_steps, probes)
