"""What a run resolves `auto` to, and how it goes on without a compiler."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from gatebench.errors import UserError
from gatebench.training import hardware
from tests.training.tiny_run import RunTiny, start, tiny_config, train_command


@pytest.mark.parametrize(("flops", "devices"), [(1e12, ["cuda"]), (1e15, ["cuda", "cpu"])])
def test_auto_compiles_on_cuda_and_on_a_cpu_for_long_runs(flops: float, devices: list[str]) -> None:
    assert [device for device in ("cuda", "cpu", "mps") if hardware.wants_compile("auto", device, flops)] == devices
    assert hardware.wants_compile("on", "cpu", 1.0) and not hardware.wants_compile("off", "cuda", 1e20)


@pytest.mark.parametrize(("capable", "precision"), [(True, "bf16"), (False, "fp32")])
def test_auto_takes_bf16_where_the_cpu_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, capable: bool, precision: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: capable)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert hardware.resolve_precision("auto", "cpu") == precision
    assert hardware.resolve_precision("auto", "mps") == "fp32"
    assert hardware.resolve_precision("fp32", "cpu") == "fp32" and hardware.resolve_precision("bf16", "cpu") == "bf16"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_here_is_refused(tmp_path: Path, run_tiny: RunTiny) -> None:
    with pytest.raises(UserError, match=r"train.accelerator='gpu': .* legal here: auto, cpu"):
        run_tiny(tmp_path / "run", "train.accelerator=gpu")
    assert not (tmp_path / "run").exists()


def test_more_devices_than_there_are_are_refused(tiny_recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    two = tiny_config(tiny_recipe, "train.devices=2")
    hardware.check_devices(two, "cpu")
    with pytest.raises(UserError, match=r"train.devices=2: legal here: 1 to 1 \(CUDA devices\)"):
        hardware.check_devices(two, "cuda")


def test_a_logger_whose_package_is_missing_is_refused_before_anything_is_written(
    tmp_path: Path, run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"package wandb is missing; pip install 'gatebench\[wandb\]'"):
        run_tiny(tmp_path / "run", "train.loggers=[wandb]")
    assert not (tmp_path / "run").exists()


def test_bf16_trains_and_is_evaluated_in_fp32(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    summary = run_tiny(tmp_path / "run", "train.precision=bf16")
    in_fp32 = json.loads((reference / "summary.json").read_text(encoding="utf-8"))
    assert summary["precision"] == "bf16" and summary["data_hash"] == in_fp32["data_hash"]
    assert summary["curve_hash"] != in_fp32["curve_hash"]
    assert summary["final_train_loss"] == pytest.approx(in_fp32["final_train_loss"], abs=0.1)
    assert json.loads((tmp_path / "run" / "eval.json").read_text(encoding="utf-8"))["dtype"] == "float32"


@pytest.mark.slow
def test_a_compiled_run_measures_what_an_eager_one_does(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    """The probes read through hooks, which compiled blocks would pass by."""
    summary = run_tiny(tmp_path / "run", "train.compile=on")
    eager = json.loads((reference / "summary.json").read_text(encoding="utf-8"))
    assert summary["compiled"] is True and eager["compiled"] is False
    for name in ("avg_ppl", "first_token_share", "first_token_share_excl", "m_act", "gate_mean", "gate_abs_logit"):
        assert summary[name] == pytest.approx(eager[name], rel=1e-3), name


@pytest.mark.slow
def test_without_a_compiler_a_run_goes_on_uncompiled(tmp_path: Path, tiny_recipe: str) -> None:
    out = tmp_path / "run"
    nowhere = {"CXX": str(tmp_path / "no_such_compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    command = train_command(tiny_recipe, out, "--set", "train.compile=on", "--json")
    process = start(command, env=os.environ | nowhere)
    output, messages = process.communicate(timeout=300)
    assert process.returncode == 0, messages
    assert messages.count("torch.compile is off, the run goes on in eager mode") == 1
    summary = json.loads(output)
    assert summary["status"] == "done" and summary["compiled"] is False


def test_a_tree_is_dirty_by_its_code_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*args: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *args], check=True, capture_output=True)

    monkeypatch.setattr(hardware, "project_root", lambda: tmp_path)
    assert hardware.git_state() == (None, None)
    (tmp_path / "results").mkdir()
    for name in ("code.py", "results/table.md"):
        (tmp_path / name).write_text("1")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    (tmp_path / "results" / "table.md").write_text("2")
    assert hardware.git_state()[1] is False
    (tmp_path / "code.py").write_text("2")
    assert hardware.git_state()[1] is True
