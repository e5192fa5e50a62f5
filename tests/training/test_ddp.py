"""Two processes under DDP are one run: one directory, the loss curve of one process with the same batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gatebench.errors import UserError
from tests.training.tiny_run import (
    RunTiny,
    assert_same_result,
    rows_of,
    set_options,
    start,
    train_command,
    wait_for_step,
)

SETTINGS = ("train.batch_size=64", "train.micro_batch_size=1")
DDP = (*SETTINGS, "train.devices=2", "train.strategy=ddp")


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: str) -> Path:
    """The directory of a run by two processes; standard output must have been its JSON alone."""
    out = tmp_path_factory.mktemp("together") / "run"
    process = start(train_command(tiny_recipe, out, *set_options(*DDP), "--json"))
    output, messages = process.communicate(timeout=240)
    assert process.returncode == 0, messages
    assert json.loads(output) == json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return out


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path, run_tiny: RunTiny, together: Path) -> None:
    alone = run_tiny(tmp_path / "alone", *SETTINGS)
    summary = json.loads((together / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["n_devices"], summary["attempts"]) == ("done", 2, 1)
    assert [path.name for path in together.parent.iterdir()] == ["run"]

    ours, theirs = rows_of(together), rows_of(tmp_path / "alone")
    assert [row["step"] for row in ours] == list(range(1, 21))
    assert [row["batch"] for row in ours] == [row["batch"] for row in theirs]
    for column in ("loss", "grad_norm", "lr", "tokens"):
        assert [row[column] for row in ours] == pytest.approx([row[column] for row in theirs], rel=1e-4), column
    weights = [load_file(path / "checkpoints" / "model.safetensors") for path in (together, tmp_path / "alone")]
    for name, values in weights[0].items():
        torch.testing.assert_close(values, weights[1][name], rtol=1e-3, atol=1e-4, msg=name)
    assert summary["data_hash"] == alone["data_hash"]
    assert summary["avg_ppl"] == pytest.approx(alone["avg_ppl"], rel=1e-3)


@pytest.mark.slow
def test_sigterm_ends_both_processes_and_the_run_resumes(tmp_path: Path, tiny_recipe: str, together: Path) -> None:
    out = tmp_path / "run"
    command = train_command(tiny_recipe, out, *set_options(*DDP))
    process = start(command)
    wait_for_step(process, out, 10)
    process.terminate()
    _, messages = process.communicate(timeout=30)  # ends only once the second process, which shares the pipe, is gone
    assert process.returncode == 1, messages
    assert messages.count("stopped at step") == 1 and "run the same line again" in messages
    assert not (out / "summary.json").exists()
    again = start(command)
    _, messages = again.communicate(timeout=240)
    assert again.returncode == 0, messages
    assert_same_result(out, together)


def test_two_processes_with_a_batch_that_does_not_divide_are_refused(tmp_path: Path, run_tiny: RunTiny) -> None:
    with pytest.raises(UserError, match=r"train.batch_size=5: must be a multiple of micro_batch_size x devices"):
        run_tiny(tmp_path / "run", "train.devices=2", "train.batch_size=5")
    assert not (tmp_path / "run").exists()
