"""Two processes under DDP are one run: one directory, the loss curve of one process with the same batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gatebench.errors import UserError
from tests.training.tiny_run import RunTiny, rows_of, set_options, start, train_command

DDP = ("train.devices=2", "train.strategy=ddp")


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path, tiny_recipe: str, reference: Path) -> None:
    out = tmp_path / "runs" / "run"
    process = start(train_command(tiny_recipe, out, *set_options(*DDP), "--json"))
    output, messages = process.communicate(timeout=240)
    assert process.returncode == 0, messages
    summary = json.loads(output)  # the second process prints nothing there
    assert (summary["status"], summary["n_devices"], summary["attempts"]) == ("done", 2, 1)
    assert [path.name for path in out.parent.iterdir()] == ["run"]

    ours, theirs = rows_of(out), rows_of(reference)
    assert [row["step"] for row in ours] == list(range(1, 21))
    assert [row["batch"] for row in ours] == [row["batch"] for row in theirs]
    for column in ("loss", "grad_norm", "lr", "tokens"):
        assert [row[column] for row in ours] == pytest.approx([row[column] for row in theirs], rel=1e-4), column
    weights = [load_file(path / "checkpoints" / "model.safetensors") for path in (out, reference)]
    for name, values in weights[0].items():
        torch.testing.assert_close(values, weights[1][name], rtol=1e-3, atol=1e-4, msg=name)
    alone = json.loads((reference / "summary.json").read_text(encoding="utf-8"))
    assert summary["data_hash"] == alone["data_hash"]
    assert summary["avg_ppl"] == pytest.approx(alone["avg_ppl"], rel=1e-3)


def test_two_processes_with_a_batch_that_does_not_divide_are_refused(tmp_path: Path, run_tiny: RunTiny) -> None:
    with pytest.raises(UserError, match=r"train.batch_size=5: must be a multiple of micro_batch_size x devices"):
        run_tiny(tmp_path / "run", "train.devices=2", "train.batch_size=5")
    assert not (tmp_path / "run").exists()
