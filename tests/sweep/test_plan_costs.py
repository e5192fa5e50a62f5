"""What a plan says that runs cost: FLOPs, device-hours, memory, and what finished runs tell about the missing ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gatebench.errors import UserError
from gatebench.sweep.devices import DEVICES, find_device
from gatebench.sweep.plan import cost, costs_of, measured, plan
from gatebench.sweep.study import Study


def small(**changes: object) -> Study:
    return Study.model_validate({"recipe": "quick", "variants": ["g1_headwise"], "seeds": [0, 1], **changes})


def test_costs_of_a_run_by_hand() -> None:
    baseline = plan(small())[0]
    found = cost(baseline)
    # quick: 500 steps of 8 x 256 tokens at 9,142,272 FLOPs each
    assert found.tokens == 500 * 8 * 256 == 1_024_000
    assert found.flops == found.executed_flops == 1_024_000 * 9_142_272
    assert found.n_params == found.n_params_active == 1_262_976
    assert found.memory.weights == 4 * 1_262_976


def test_recomputing_executes_a_third_more_and_counts_the_same() -> None:
    found = cost(plan(small().changed(settings=["train.recompute=true"]))[0])
    assert found.executed_flops == found.flops * 4 // 3


def test_experts_that_a_token_does_not_go_through_are_not_active() -> None:
    found = cost(plan(Study(recipe="moe_15a2b", variants=["baseline"], seeds=[0]))[0])
    assert (found.n_params, found.n_params_active) == (15_577_227_264, 1_987_682_304)
    assert found.tokens == 100_000 * 1024 * 4096


def test_precision_follows_the_device_unless_the_recipe_has_one() -> None:
    run = plan(small())[0]
    on_core, on_gpu = (cost(run, DEVICES[name]).memory for name in ("cpu_core", "h100"))
    assert on_core.copies == 0 < on_gpu.copies
    assert on_gpu.loss > 64 * 1_000_000 * 10 > on_core.loss  # 2^26 logits at once against 2^20
    bf16 = cost(plan(small().changed(settings=["train.precision=bf16"]))[0], DEVICES["cpu_core"]).memory
    assert bf16.activations < on_core.activations


def test_hours_are_flops_over_the_rate_reached() -> None:
    h100 = DEVICES["h100"]
    assert h100.hours(989.4e12 * 3600) == pytest.approx(1 / 0.4)
    assert h100.hours(989.4e12 * 3600, 0.5) == pytest.approx(2)
    assert DEVICES["cpu_core"].hours(1.3e11 * 7200) == pytest.approx(2)


def test_a_device_is_chosen_by_the_size_of_the_runs_or_by_name() -> None:
    assert find_device(None, 9e12).name == "cpu_core"
    assert find_device(None, 5e21).name == "h100"
    assert find_device("a100", 1.0).flops == 312e12
    with pytest.raises(UserError, match="--device h10: unknown; did you mean h100"):
        find_device("h10", 1.0)


def test_seeds_cost_the_same() -> None:
    runs = plan(small())
    costs = costs_of(runs)
    assert [c.flops for c in costs] == [cost(run).flops for run in runs]


def test_the_missing_runs_are_measured_by_the_finished_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path))
    study = Study(recipe="sink_lab", variants=["g1_headwise"], seeds=[0, 1])
    runs = plan(study)
    assert measured(runs, costs_of(runs)) is None
    for run, status in ((runs[0], "done"), (runs[1], "diverged")):
        assert run.directory is not None
        run.directory.mkdir(parents=True)
        summary = {"status": status, "train_wall_s": 80.0}
        (run.directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    runs = plan(study)
    costs = costs_of(runs)
    found = measured(runs, costs)
    assert found is not None and (found.n_runs, found.mean_seconds) == (1, 80.0)  # one that diverged ended early
    assert found.missing_seconds == pytest.approx(80.0 * (costs[2].flops + costs[3].flops) / costs[0].flops)
