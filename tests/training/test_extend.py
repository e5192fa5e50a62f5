"""`gatebench extend`: what follows from a longer window, where the run begins, and what of it is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from gatebench import paths
from gatebench.cli import app
from gatebench.config import RunConfig
from gatebench.errors import UserError
from gatebench.evaluation.evaluate import evaluate
from gatebench.files import publish
from gatebench.recipes import make_run
from gatebench.sweep.plan import plan
from gatebench.sweep.study import Study, load_study
from gatebench.training.extension import Extension, extended, initial_model, read_parent
from gatebench.training.run import prepare, run
from gatebench.training.rundir import RunDirectory
from tests.cli.commands import Command
from tests.training.tiny_run import RunTiny, assert_same_result, rows_of, tiny_config

LONGER = {"tokens": 1000, "seq_len": "2x", "rope_theta": 1e6, "lr": 3e-3}


def extension(**changes: object) -> Extension:
    return Extension.model_validate({**LONGER, **changes})


def test_a_step_keeps_its_tokens_and_warm_up_is_short() -> None:
    parent = make_run("quick", "g1_headwise", seed=3)  # 8 sequences of 256, 50 steps of warm-up
    child = extended(parent, extension(seq_len="4x", tokens=100_000))
    assert child.data.seq_len == 1024
    assert child.train.batch_size == 2
    assert child.train.steps == 49  # 100,000 / 2,048, rounded up
    assert child.optim.warmup_steps == 4
    assert child.model.rope_theta == 1e6
    assert child.optim.lr == 3e-3
    assert (child.variant, child.seed, child.recipe) == ("g1_headwise", 3, "quick")


def test_settings_come_last() -> None:
    parent = make_run("quick", "baseline")
    child = extended(parent, extension(seq_len=512, set=["train.batch_size=1", "optim.schedule=linear"]))
    assert child.train.batch_size == 1
    assert child.train.steps == 2  # 1,000 tokens in steps of 512
    assert child.optim.schedule == "linear"
    assert "train.batch_size=1" in child.overrides


def test_the_parent_is_part_of_what_a_run_is() -> None:
    parent = make_run("quick", "baseline")
    child = extended(parent, extension())
    alone = child.model_copy(update={"init": None})
    other = extended(make_run("quick", "baseline", 0, ["optim.lr=1e-3"]), extension())
    assert child.init is not None and child.init.run == parent.run_name
    assert len({child.fingerprint, alone.fingerprint, other.fingerprint}) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seq_len": "fourx"}, "seq_len=fourx: legal: tokens"),
        ({"seq_len": "0x"}, "seq_len=0x: legal"),
        ({"seq_len": "infx"}, "seq_len=infx: legal: tokens"),
        ({"tokens": 0}, "tokens"),
        ({"rope_theta": 1.0}, "rope_theta"),
    ],
)
def test_an_extension_that_is_none(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        extension(**changes)


def test_tokens_that_are_no_number_are_one_line(tmp_path: Path) -> None:
    said = Command("extend").refusal(tmp_path, "--tokens", "inf")
    assert said == "extend: tokens=inf: input should be a finite number"


def test_other_shapes_are_refused() -> None:
    with pytest.raises(UserError, match=r"model\.n_layers=3: the run to go on from has 4; legal to change: "):
        extended(make_run("quick", "baseline"), extension(set=["model.n_layers=3"]))


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory, reference: Path) -> Path:
    """An extension of the tiny reference run, made by the command line."""
    out = tmp_path_factory.mktemp("extended") / "child"
    words = ["--tokens", "1280", "--seq-len", "2x", "--rope-theta", "1e6", "--threads", "1", "--out", str(out)]
    result = CliRunner().invoke(app, ["extend", str(reference), *words, "--json"])
    assert result.exit_code == 0, result.output
    return out


def config_of(path: Path) -> RunConfig:
    return read_parent(path)


def test_it_begins_with_the_parents_weights(child: Path, reference: Path) -> None:
    config = config_of(child)
    weights = load_file(reference / "checkpoints" / "model.safetensors")
    for name, parameter in initial_model(config).named_parameters():
        if name in weights:  # all but a tied output layer
            assert torch.equal(parameter, weights[name]), name
    assert config.train.steps == 10  # 1,280 tokens in steps of 2 x 64
    first, last_of_parent = rows_of(child)[0], rows_of(reference)[-1]
    fresh = rows_of(reference)[0]
    assert abs(first["loss"] - last_of_parent["loss"]) < abs(first["loss"] - fresh["loss"])


def test_its_directory_names_the_parent(child: Path, reference: Path) -> None:
    summary = RunDirectory(child).read_summary()
    parent = RunDirectory(reference)
    config = config_of(child)
    assert config.init is not None
    assert summary["parent"] == config.init.run == config_of(reference).run_name
    assert config.init.path == str(reference.resolve())
    assert config.init.weights_sha256 is not None
    assert "parent" not in parent.read_summary()
    assert summary["seq_len"] == summary["eval_seq_len"] == 64


def test_resumed_it_is_the_same_to_the_bit(child: Path, tmp_path: Path) -> None:
    config = config_of(child)
    steps = json.loads((child / "summary.json").read_text())["steps"]
    assert steps == config.train.steps
    again = RunDirectory(tmp_path / "again")

    class Stopped(Exception):
        pass

    def stop(trained: object) -> dict[str, object]:
        raise Stopped

    with pytest.raises(Stopped):
        run(config, stop, out=again.path, threads=1)  # trained, not measured
    (again.path / "current" / "checkpoints" / "model.safetensors").unlink()
    assert again.resume_points()
    run(config, evaluate, out=again.path, threads=1)
    assert_same_result(again.path, child)


def test_a_parent_that_changed_or_is_gone_is_said(run_tiny: RunTiny, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    run_tiny(parent, variant="baseline")
    config = prepare(extended(read_parent(parent), extension(), parent))[0]
    weights = parent / "checkpoints" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"model\.safetensors: damaged"):
        prepare(config)
    weights.rename(tmp_path / "others")
    publish(tmp_path / "others", weights)
    with pytest.raises(UserError, match="was trained again since this run began"):
        prepare(config)
    weights.unlink()
    with pytest.raises(UserError, match="its weights were removed; legal: a finished run"):
        prepare(config)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no config\.yaml"):
        read_parent(tmp_path)


# --- as a stage of a study


def study(recipe: str, **extend: object) -> Study:
    return Study(recipe=recipe, variants=["g1_headwise"], seeds=[0], extend=extension(**extend))


def test_a_study_plans_the_extended_runs(tiny_recipe: str) -> None:
    found = study(tiny_recipe)
    parents, children = plan(found.first_stage()), plan(found)
    assert [run.config.variant for run in children] == ["baseline", "g1_headwise"]
    for parent, child in zip(parents, children, strict=True):
        assert child.config.init is not None
        assert child.config.init.run == parent.config.run_name == parent.name
        assert child.config.data.seq_len == 64
        assert child.status == "missing"
        assert child.name == child.config.run_name != parent.name


def test_what_diverged_is_not_extended(
    tiny_recipe: str, run_tiny: RunTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path))
    found = study(tiny_recipe)
    parent = plan(found.first_stage())[0]
    assert parent.directory is not None
    run_tiny(parent.directory, variant="baseline")
    assert [run.status for run in plan(found)] == ["missing", "missing"]
    path = parent.directory / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": "diverged"}))
    RunDirectory(parent.directory).write_checksums()
    first = plan(found)[0]
    assert (first.status, first.directory) == ("diverged", parent.directory)


def test_an_extension_that_the_recipe_cannot_have_is_refused(tiny_recipe: str) -> None:
    with pytest.raises(UserError, match=r"model\.head_dim"):
        study(tiny_recipe, set=["model.head_dim=16"]).runs()


def test_config_of_a_run_without_parent_has_none(tiny_recipe: str) -> None:
    assert tiny_config(tiny_recipe).init is None


@pytest.mark.slow
def test_one_sweep_trains_both_stages_and_long_measures_the_second(
    tiny_recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ablations").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "paper").symlink_to(paths.project_root() / "results" / "paper")
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "runs"))
    content = {
        "recipe": tiny_recipe, "variants": ["g1_headwise"], "seeds": 1, "extend": LONGER, "tables": [5],
    }  # fmt: skip
    (tmp_path / "ablations" / "mine.yaml").write_text(json.dumps(content), encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "gatebench", "sweep", "mine"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    children = plan(load_study("mine"))
    assert [run.status for run in children] == ["done", "done"]
    measured = Command("long").json(
        *("--study", "mine", "--lengths", "1x,2x", "--yarn", "2", "--tasks", "none", "--depths", "0", "--tokens", "512")
    )
    assert len(measured["conditions"]) == 4
    assert Command("tables")("mine").exit_code == 0
    text = (tmp_path / "results" / "mine" / "tables" / "long_loss.md").read_text(encoding="utf-8")
    assert "| 1x | 2x |" in text and "| YaRN |" in text
    assert "long_lengths" in {path.stem for path in (tmp_path / "results" / "mine" / "figures").iterdir()}
