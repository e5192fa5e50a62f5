"""A run killed at any moment and started again is, bit for bit, the run that nothing killed."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gatebench.errors import UserError
from gatebench.evaluation.evaluate import evaluate
from gatebench.recipes import make_run
from gatebench.training import attempt as attempt_module
from gatebench.training import run as run_module
from gatebench.training.callbacks import MetricsWriter
from gatebench.training.run import run
from gatebench.training.rundir import RunDirectory, write_json
from tests.training.tiny_run import (
    RunTiny,
    assert_same_result,
    reproducible_rows,
    rows_of,
    set_options,
    start,
    tiny_config,
    train_command,
    wait_for_step,
)


class Killed(BaseException):
    """Stands for a kill inside this process."""


def kill_after(monkeypatch: pytest.MonkeyPatch, step: int) -> pytest.MonkeyPatch:
    """Make training die right after optimiser step `step`, before anything is written about it."""
    original = MetricsWriter.on_train_batch_end

    def dying(self: MetricsWriter, trainer: Any, *args: Any, **options: Any) -> None:
        if trainer.global_step == step:
            raise Killed
        original(self, trainer, *args, **options)

    monkeypatch.setattr(MetricsWriter, "on_train_batch_end", dying)
    return monkeypatch


def checkpoint_steps(out: Path) -> list[int]:
    return [step for step, _ in RunDirectory(out).resume_points()]


def attempts(out: Path) -> int:
    return len(json.loads((out / "environment.json").read_text(encoding="utf-8"))["attempts"])


@pytest.mark.parametrize("killed_at", [1, 5, 6, 10, 13, 20])
def test_a_run_killed_at_any_step_ends_as_if_it_had_not_been(
    tmp_path: Path, run_tiny: RunTiny, reference: Path, killed_at: int
) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, killed_at)
        run_tiny(out)
    assert not (out / "summary.json").exists()
    assert checkpoint_steps(out) == [step for step in (15, 10, 5) if step < killed_at][:2]
    run_tiny(out)
    assert_same_result(out, reference)
    assert attempts(out) == 2


def test_a_resumed_run_keeps_the_threads_and_the_precision_that_it_began_with(
    tmp_path: Path, run_tiny: RunTiny, tiny_recipe: str, reference: Path
) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 12)
        run_tiny(out)
    try:
        run(tiny_config(tiny_recipe, variant="g1_headwise"), evaluate, out=out, threads=2)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)
    environment = json.loads((out / "environment.json").read_text(encoding="utf-8"))
    assert [attempt["threads"] for attempt in environment["attempts"]] == [1, 1]
    assert "goes on with 1 thread(s), as it began" in (out / "log.txt").read_text(encoding="utf-8")
    assert_same_result(out, reference)


def test_a_run_killed_three_times_is_the_same_too(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    out = tmp_path / "run"
    for killed_at in (7, 12, 17):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            kill_after(patch, killed_at)
            run_tiny(out)
    assert run_tiny(out)["attempts"] == 4
    assert_same_result(out, reference)
    assert attempts(out) == 4


@pytest.mark.parametrize("micro", [1, 2])
def test_accumulation_goes_on_in_the_right_micro_batch(tmp_path: Path, run_tiny: RunTiny, micro: int) -> None:
    settings = f"train.micro_batch_size={micro}"
    run_tiny(tmp_path / "whole", settings)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 13)
        run_tiny(tmp_path / "killed", settings)
    run_tiny(tmp_path / "killed", settings)
    assert_same_result(tmp_path / "killed", tmp_path / "whole")


def test_a_kill_in_the_middle_of_an_accumulated_step_loses_only_that_step(tmp_path: Path, run_tiny: RunTiny) -> None:
    settings = ("train.micro_batch_size=1", "train.steps=8", "train.checkpoint_every=2")
    run_tiny(tmp_path / "whole", *settings)
    original = MetricsWriter.on_train_batch_end

    def dying(self: MetricsWriter, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 4 * 5 + 2:  # step 5 of 0 .. 7, its third micro-batch
            raise Killed
        original(self, trainer, pl_module, outputs, batch, batch_idx)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(MetricsWriter, "on_train_batch_end", dying)
        run_tiny(tmp_path / "killed", *settings)
    assert checkpoint_steps(tmp_path / "killed") == [4, 2]
    run_tiny(tmp_path / "killed", *settings)
    assert_same_result(tmp_path / "killed", tmp_path / "whole")


def test_a_run_killed_between_training_and_its_summary_only_evaluates(
    tmp_path: Path, tiny_recipe: str, run_tiny: RunTiny, reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(trained: Any) -> dict[str, Any]:
        evaluate(trained)
        raise Killed

    with pytest.raises(Killed):
        run(make_run(tiny_recipe, "g1_headwise", 0), dying, out=tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "model.safetensors").is_file()
    monkeypatch.setattr(run_module, "_fit", lambda *args: pytest.fail("trained again"))
    assert run_tiny(tmp_path / "run")["attempts"] == 1
    assert_same_result(tmp_path / "run", reference)


def test_damaged_weights_are_trained_again_from_the_newest_checkpoint(
    tmp_path: Path,
    tiny_recipe: str,
    run_tiny: RunTiny,
    reference: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def dying(trained: Any) -> dict[str, Any]:
        raise Killed

    with pytest.raises(Killed):
        run(make_run(tiny_recipe, "g1_headwise", 0), dying, out=tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "model.safetensors").write_bytes(b"")
    run_tiny(tmp_path / "run")
    messages = capsys.readouterr().err
    assert "model.safetensors: cannot be read" in messages and "resumed after step 15" in messages
    assert_same_result(tmp_path / "run", reference)


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, run_tiny: RunTiny, reference: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 13)
        run_tiny(out)
    newest = out / "checkpoints" / "step_0000010.ckpt"
    content = newest.read_bytes()
    newest.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "text": b"not a checkpoint"}[damage])
    run_tiny(out)
    messages = capsys.readouterr().err
    assert "step_0000010.ckpt: cannot be read" in messages and "resumed after step 5" in messages
    assert_same_result(out, reference)


def test_with_every_checkpoint_damaged_a_run_begins_again(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 13)
        run_tiny(out)
    for _, path in RunDirectory(out).resume_points():
        path.write_bytes(b"")
    run_tiny(out)
    assert_same_result(out, reference)


def test_a_last_line_cut_short_is_written_again(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 13)
        run_tiny(out)
    with open(out / "metrics.jsonl", "a", encoding="utf-8") as metrics:
        metrics.write('{"step": 11, "tokens": 14')
    run_tiny(out)
    assert_same_result(out, reference)


def test_rows_beyond_the_checkpoint_are_made_again(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    """Metrics may be ahead of the checkpoint; the rows of steps 6 to 10 must not stand twice."""
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 13)
        run_tiny(out)
    (out / "checkpoints" / "step_0000010.ckpt").unlink()
    assert [row["step"] for row in rows_of(out)] == list(range(1, 11))
    run_tiny(out)
    assert_same_result(out, reference)


@pytest.mark.parametrize("left", [(), ("config.yaml.tmp",), (".lock", "log.txt")])
def test_a_run_killed_while_it_claims_its_directory_starts(
    tmp_path: Path, run_tiny: RunTiny, left: tuple[str, ...]
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    for name in left:
        (out / name).write_text("recipe: ti", encoding="utf-8")
    assert run_tiny(out, "train.steps=6")["status"] == "done"


def test_temporary_files_of_a_killed_save_are_no_checkpoints(
    tmp_path: Path, run_tiny: RunTiny, reference: Path
) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 7)
        run_tiny(out)
    for name in ("step_0000010.tmp", "model.tmp"):
        (out / "checkpoints" / name).write_bytes(b"half")
    run_tiny(out)
    assert_same_result(out, reference)


def test_loggers_have_each_step_once_after_a_kill(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    out, settings = tmp_path / "run", "train.loggers=[csv, tensorboard]"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 13)
        run_tiny(out, settings, "train.log_every=1")
    assert [row["step"] for row in rows_of(out)] == list(range(1, 13))  # beyond the checkpoint of step 10
    run_tiny(out, settings, "train.log_every=1")
    assert reproducible_rows(out) == reproducible_rows(reference)
    with open(out / "metrics.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, 21))
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in rows_of(out)]
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == list(range(1, 21))
    assert [event.value for event in losses] == pytest.approx([row["loss"] for row in rows_of(out)])


def test_a_second_process_is_told_to_wait(tmp_path: Path, run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 7)
        run_tiny(out)
    attempt = attempt_module.current_attempt(RunDirectory(out))
    assert attempt is not None
    attempt.failure.unlink(missing_ok=True)
    write_json(attempt.heartbeat, attempt.owner() | {"pid": os.getppid()})  # as if another process were at work
    rows = attempt.metrics.read_bytes()
    monkeypatch.setattr(attempt_module, "PATIENCE_S", 0.0)
    with pytest.raises(UserError, match="another process is working on this run"):
        run_tiny(out)
    assert attempt.metrics.read_bytes() == rows and [path.name for path in (out / "attempts").iterdir()] == ["0001"]


def test_a_rebuilt_corpus_is_refused(tmp_path: Path, tiny_recipe: str, tiny_corpus: Path) -> None:
    config = tiny_config(tiny_recipe).model_copy(update={"corpus_fingerprint": "0" * 64})
    with pytest.raises(UserError, match="was rebuilt since this run began"):
        run(config, evaluate, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


SLOW = {
    "whole": ("train.batch_size=256",),
    "micro": ("train.batch_size=64", "train.micro_batch_size=1", "train.log_every=1"),
}
"""Batches large enough to stop a process between two steps."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, run_tiny: RunTiny) -> Callable[[str], Path]:
    """uninterrupted(name): the directory of the run with `SLOW[name]` that nothing stopped. Not to be written to."""
    folder = tmp_path_factory.mktemp("uninterrupted")

    def made(name: str) -> Path:
        run_tiny(folder / name, *SLOW[name])
        return folder / name

    return made


@pytest.mark.slow
@pytest.mark.parametrize("batches", SLOW)
def test_ten_steps_kill_9_and_ten_steps_are_twenty(
    tmp_path: Path, tiny_recipe: str, uninterrupted: Callable[[str], Path], batches: str
) -> None:
    """A real SIGKILL, then the same command line again."""
    settings = SLOW[batches]
    out = tmp_path / "killed"
    command = train_command(tiny_recipe, out, *set_options(*settings))
    process = start(command)
    wait_for_step(process, out, 10)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (out / "summary.json").exists() and not (out / "checkpoints" / "model.safetensors").exists()
    again = start(command)
    _, messages = again.communicate(timeout=120)
    assert again.returncode == 0, messages
    assert attempts(out) == 2
    assert_same_result(out, uninterrupted(batches))


@pytest.mark.slow
def test_sigterm_is_no_success_and_resumes(
    tmp_path: Path, tiny_recipe: str, run_tiny: RunTiny, uninterrupted: Callable[[str], Path]
) -> None:
    out, settings = tmp_path / "killed", SLOW["micro"]
    command = train_command(tiny_recipe, out, *set_options(*settings))
    process = start(command)
    wait_for_step(process, out, 12)
    process.terminate()
    _, messages = process.communicate(timeout=60)
    assert process.returncode not in (0, 2), messages
    assert "killed: stopped at step" in messages and "run the same line again" in messages
    assert not (out / "summary.json").exists()
    run_tiny(out, *settings)
    assert_same_result(out, uninterrupted("micro"))
