"""A disk that fills up while a checkpoint is written: one line, exit 2, nothing lost."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from gatebench.errors import UserError
from gatebench.training.callbacks import ResumePoints
from gatebench.training.rundir import RunDirectory, write_atomic
from tests.training.tiny_run import RunTiny, assert_same_result, start, train_command


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text("old", encoding="utf-8")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomic(path, "x" * 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("failing", [10, 15])
def test_the_checkpoint_before_is_safe_and_named(
    tmp_path: Path, run_tiny: RunTiny, reference: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """A limit on the size of files stands for a full disk: the kernel refuses the write in the same place."""
    out = tmp_path / "run"
    save = ResumePoints.save
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_a_full_disk(self: ResumePoints, trainer: object, step: int) -> None:
        if step == failing:
            resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, hard))
        save(self, trainer, step)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ResumePoints, "save", on_a_full_disk)
        with pytest.raises(UserError) as refused:
            try:
                run_tiny(out)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = str(refused.value)
    assert f"no space left to write (the checkpoint of step {failing - 5} is safe)" in message
    assert "run the same line again" in message and "\n" not in message
    assert RunDirectory(out).resume_points()[0][0] == failing - 5
    assert not list((out / "checkpoints").glob("*.tmp"))
    run_tiny(out)
    assert_same_result(out, reference)


def test_a_full_disk_when_the_weights_are_saved(tmp_path: Path, run_tiny: RunTiny, reference: Path) -> None:
    out = tmp_path / "run"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:

        def save_model(*args: object) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, hard))
            original(*args)  # type: ignore[arg-type]

        from gatebench.training import sharding

        original = sharding.save_model
        patch.setattr(sharding, "save_model", save_model)
        with pytest.raises(UserError, match=r"no space left to write \(the checkpoint of step 15 is safe\)"):
            try:
                run_tiny(out)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in (out / "checkpoints").iterdir() if path.suffix not in (".ckpt", ".sha256")] == []
    run_tiny(out)
    assert_same_result(out, reference)


@pytest.mark.slow
def test_the_command_line_says_it_in_one_line_and_resumes(tmp_path: Path, tiny_recipe: str, reference: Path) -> None:
    out = tmp_path / "run"
    command = train_command(tiny_recipe, out)
    limit = 64 * 1024  # the metrics fit, a checkpoint (three times the weights) does not
    process = start(command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    _, messages = process.communicate(timeout=120)
    assert process.returncode == 2, messages
    (line,) = [line for line in messages.splitlines() if line.startswith("gatebench:")]
    assert "no space left to write (no checkpoint was written yet)" in line
    assert "Traceback" not in messages
    assert not (out / "summary.json").exists()
    again = start(command)
    _, messages = again.communicate(timeout=120)
    assert again.returncode == 0, messages
    assert_same_result(out, reference)
