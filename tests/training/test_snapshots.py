"""Copies of the weights along the way: which steps, what is in them, and a run that was killed between them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gatebench.training.rundir import RunDirectory
from tests.training.test_resume import Killed, kill_after
from tests.training.tiny_run import RunTiny, reproducible_rows


def steps(out: Path) -> list[int]:
    return [step for step, _ in RunDirectory(out).snapshots()]


def test_none_is_kept_unless_asked_for(reference: Path) -> None:
    assert steps(reference) == []


def test_they_are_every_so_many_steps_and_the_run_is_the_same(
    tmp_path: Path, run_tiny: RunTiny, reference: Path
) -> None:
    """20 steps, every 6: 6, 12, 18; every 10: 10 alone, for step 20 is the trained model."""
    run_tiny(tmp_path / "six", "train.snapshot_every=6")
    assert steps(tmp_path / "six") == [6, 12, 18]
    assert reproducible_rows(tmp_path / "six") == reproducible_rows(reference)
    for name in ("probes.json", "eval.json", "checkpoints/model.safetensors"):
        assert (tmp_path / "six" / name).read_bytes() == (reference / name).read_bytes(), name
    run_tiny(tmp_path / "ten", "train.snapshot_every=10")
    assert steps(tmp_path / "ten") == [10]


def test_a_killed_run_ends_with_the_same_snapshots(tmp_path: Path, run_tiny: RunTiny) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_tiny(whole, "train.snapshot_every=3")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 13)
        run_tiny(killed, "train.snapshot_every=3")
    assert steps(killed) == [3, 6, 9, 12]
    run_tiny(killed, "train.snapshot_every=3")
    assert steps(killed) == steps(whole) == [3, 6, 9, 12, 15, 18]
    for (_, ours), (_, theirs) in zip(RunDirectory(killed).snapshots(), RunDirectory(whole).snapshots(), strict=True):
        a, b = load_file(ours), load_file(theirs)
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert not list(killed.rglob("*.tmp"))
