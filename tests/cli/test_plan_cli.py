"""`gatebench plan`: the cost of a study, at its own recipe or another, on a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Command


@pytest.fixture(autouse=True)
def no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "runs"))


call = Command("plan")
json_of, refusal = call.json, call.refusal


def test_a_small_study_is_estimated_for_a_core() -> None:
    out = call("table1").stdout
    assert "42 runs: 42 missing." in out and "hours of cpu_core." in out
    assert "left out: experts_plus4 (variant 'experts_plus4': model.moe is null; legal: a recipe with experts)" in out
    assert " active" not in out  # every parameter is
    assert "a run's start and its evaluation are left out, so that for tiny models they are a lower bound" in out
    assert json_of("table1")["hours_leave_out"] == ["start", "evaluation"]


def test_another_recipe_has_what_the_first_one_lacks() -> None:
    found = json_of("table1", "--recipe", "moe_tiny", "--seeds", "1")
    assert found["recipe"] == "moe_tiny" and found["skipped"] == {} and found["missing"]["runs"] == 15
    assert all(run["n_params_active"] < run["n_params"] for run in found["runs"])


def test_the_papers_28_layer_study_on_an_h200_at_half_its_peak() -> None:
    found = json_of("table2_28l", "--device", "h200", "--mfu", "0.5")
    assert (found["device"]["name"], found["device"]["utilisation"]) == ("h200", 0.5)
    small, large = (run for run in found["runs"] if run["variant"] == "baseline")
    # 13,141,278,720 FLOPs a token at 4096 tokens; 95,367 steps of 1024 x 4096
    assert small["flops"] == 13_141_278_720 * 95_367 * 1024 * 4096
    assert small["device_hours"] == pytest.approx(small["flops"] / (0.5 * 989.4e12) / 3600)
    assert large["tokens"] == pytest.approx(3.5e12, rel=1e-4)
    assert small["memory_bytes"]["total"] == sum(v for key, v in small["memory_bytes"].items() if key != "total")
    assert found["missing"]["device_hours"] == pytest.approx(sum(run["device_hours"] for run in found["runs"]))


def test_what_no_device_holds_is_said() -> None:
    out = call("table1", "--recipe", "moe_15a2b", "--device", "h100").stdout
    assert "! more than the 80 GB of h100: " in out
    assert "shares most of that between devices, of which it takes more: train.devices, train.num_nodes" in out
    out = call("table2_28l", "--device", "rtx4090").stdout
    assert out.rstrip().endswith("train.strategy=fsdp shares most of that between devices")
    out = call("table2_28l", "--device", "rtx4090", "--set", "train.micro_batch_size=8").stdout
    assert "! more than the 24 GB of rtx4090" in out
    out = call("table2_28l", "--device", "h100", "--set", "train.micro_batch_size=8").stdout
    assert "a smaller train.micro_batch_size, or train.recompute=true" in out


def test_a_kernel_that_costs_more_says_so() -> None:
    assert "softpick: " in call("rivals").stdout


def test_refusals() -> None:
    assert "--mfu 1.5: must be above 0 and at most 1" in refusal("table1", "--mfu", "1.5")
    assert "--device h300: unknown" in refusal("table1", "--device", "h300")
    assert "recipe 'nope': not found" in refusal("table1", "--recipe", "nope")
