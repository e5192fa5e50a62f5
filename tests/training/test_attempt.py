"""Attempts: the newest counts, an older one that goes on harms nothing, and what a crash leaves is finished."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatebench.errors import UserError
from gatebench.evaluation.evaluate import evaluate
from gatebench.training import attempt as attempts
from gatebench.training.attempt import (
    Attempt,
    Superseded,
    current_attempt,
    new_attempt,
    settle,
    shared_attempt,
    wait_for_others,
)
from gatebench.training.callbacks import MetricsWriter
from gatebench.training.run import InterruptedRun, run
from gatebench.training.rundir import RunDirectory
from tests.training.tiny_run import RunTiny, assert_same_result, tiny_config


@pytest.fixture
def directory(tmp_path: Path, tiny_recipe: str) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.claim(tiny_config(tiny_recipe))
    return made


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not what() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert what()


def after_step(step: int, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Act once, in the middle of training, after the given step."""
    original = MetricsWriter.on_train_batch_end
    acted: list[int] = []

    def acting(self: MetricsWriter, trainer: Any, *args: Any, **options: Any) -> None:
        original(self, trainer, *args, **options)
        if trainer.global_step == step and not acted:
            acted.append(step)
            act()

    patch.setattr(MetricsWriter, "on_train_batch_end", acting)


def test_a_run_that_is_going_on_shows_its_files_where_a_finished_one_has_them(directory: RunDirectory) -> None:
    with new_attempt(directory) as attempt:
        attempt.metrics.write_text('{"step": 1}\n', encoding="utf-8")
        (attempt.checkpoints / "step_0000005.ckpt").touch()
        assert directory.last_row() == {"step": 1}
        assert directory.resume_points() == [(5, directory.checkpoints / "step_0000005.ckpt")]
        assert os.readlink(directory.path / "current") == "attempts/0001"
    assert not directory.is_done()


def test_a_published_run_is_plain_files(directory: RunDirectory) -> None:
    with new_attempt(directory) as attempt:
        attempt.metrics.write_text('{"step": 1}\n', encoding="utf-8")
        attempt.weights.touch()
        (attempt.checkpoints / "step_0000005.ckpt").touch()
        attempt.publish({"status": "done"})
    assert names(directory.path) == ["SHA256SUMS", "checkpoints", "config.yaml", "metrics.jsonl", "summary.json"]
    assert names(directory.checkpoints) == ["model.safetensors"]
    assert not any(path.is_symlink() for path in directory.path.iterdir())
    assert directory.read_summary() == {"status": "done"}


def test_a_new_attempt_has_what_was_saved_and_the_old_one_writes_nowhere(directory: RunDirectory) -> None:
    with new_attempt(directory) as old:
        old.metrics.write_text('{"step": 1}\n', encoding="utf-8")
        (old.checkpoints / "step_0000005.ckpt").write_text("five", encoding="utf-8")
        (old.checkpoints / "step_0000010.tmp").write_text("half", encoding="utf-8")
        with new_attempt(directory, takeover=True) as new:
            assert names(directory.path / "attempts") == ["0002"]
            assert names(new.checkpoints) == ["step_0000005.ckpt"]
            assert new.metrics.read_text(encoding="utf-8") == '{"step": 1}\n'
            assert (old.is_current(), new.is_current()) == (False, True)
            with pytest.raises(FileNotFoundError):
                old.metrics.write_text("late", encoding="utf-8")
            with pytest.raises((Superseded, FileNotFoundError)):
                old.publish({"status": "done"})
            assert not directory.is_done()
            new.publish({"status": "done"})
    assert directory.is_done()


def test_an_old_process_that_wakes_up_changes_nothing(
    tmp_path: Path, tiny_recipe: str, run_tiny: RunTiny, reference: Path
) -> None:
    """A whole second attempt passes between two steps of the first, as on a lost machine that comes back."""
    out, finished = tmp_path / "run", []

    def overtake() -> None:
        config = tiny_config(tiny_recipe, variant="g1_headwise")
        finished.append(run(config, evaluate, out=out, threads=1, takeover=True))

    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedRun, match="another process has taken"):
        patch.delenv(attempts.NUMBER, raising=False)
        after_step(12, overtake, patch)
        run_tiny(out)
    assert finished[0]["attempts"] == 2
    assert_same_result(out, reference)
    assert json.loads((out / "summary.json").read_text(encoding="utf-8")) == finished[0]
    assert not (out / "attempts").exists()


@pytest.mark.parametrize("moved", [(), ("metrics.jsonl",), ("metrics.jsonl", "checkpoints")])
def test_a_crash_while_a_run_is_published_is_finished_by_the_next_start(
    directory: RunDirectory, moved: tuple[str, ...]
) -> None:
    with new_attempt(directory) as attempt:
        attempt.metrics.write_text('{"step": 1}\n', encoding="utf-8")
        attempt.weights.write_text("weights", encoding="utf-8")
        attempts.write_json(attempt.summary, {"status": "done"})
        for name in moved:
            (directory.path / name).unlink()
            (attempt.path / name).rename(directory.path / name)
    assert not directory.is_done()
    settle(directory)
    assert directory.is_done()
    assert names(directory.path) == ["checkpoints", "config.yaml", "metrics.jsonl", "summary.json"]
    assert directory.weights.read_text(encoding="utf-8") == "weights"


def test_a_crash_while_an_attempt_begins_leaves_the_one_before(directory: RunDirectory) -> None:
    with new_attempt(directory) as attempt:
        (attempt.checkpoints / "step_0000005.ckpt").touch()
    (directory.path / "attempts" / "0002").mkdir()  # made, and not yet the current one
    with new_attempt(directory) as third:
        assert third.number == 3 and names(third.checkpoints) == ["step_0000005.ckpt"]
        assert names(directory.path / "attempts") == ["0003"]


def test_a_run_that_began_before_there_were_attempts_goes_on(directory: RunDirectory) -> None:
    directory.checkpoints.mkdir()
    (directory.checkpoints / "step_0000005.ckpt").write_text("five", encoding="utf-8")
    directory.metrics.write_text('{"step": 5}\n', encoding="utf-8")
    with new_attempt(directory) as attempt:
        assert (attempt.checkpoints / "step_0000005.ckpt").read_text(encoding="utf-8") == "five"
        assert directory.checkpoints.is_symlink() and directory.last_row() == {"step": 5}


def test_another_machine_that_gives_signs_of_life_is_not_disturbed(directory: RunDirectory) -> None:
    with new_attempt(directory) as attempt:
        pass
    owner = json.loads(attempt.heartbeat.read_text(encoding="utf-8"))
    attempt.heartbeat.write_text(json.dumps(owner | {"host": "elsewhere"}), encoding="utf-8")
    with (
        pytest.raises(UserError, match=r"working on this run \(elsewhere, last sign of life 0 s ago\)"),
        new_attempt(directory),
    ):
        pass
    an_hour_ago = time.time() - 3600
    os.utime(attempt.heartbeat, (an_hour_ago, an_hour_ago))
    with new_attempt(directory) as second:
        assert second.number == 2


HOLDER = """
import sys, time
from pathlib import Path
from gatebench.training.attempt import new_attempt
from gatebench.training.rundir import RunDirectory
with new_attempt(RunDirectory(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(directory: RunDirectory) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLDER, str(directory.path)], stdout=subprocess.PIPE, text=True)


def test_a_second_process_is_told_to_wait_until_the_first_is_gone(
    directory: RunDirectory, tmp_path: Path, tiny_recipe: str, run_tiny: RunTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "PATIENCE_S", 0.0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory.path)], stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another process is working on this run"):
            wait_for_others(directory)
        with pytest.raises(UserError, match="another process is working on this run"), new_attempt(directory):
            pass
        assert names(directory.path / "attempts") == ["0001"]
        first.kill()
        wait_until(lambda: not Attempt(directory, 1).is_alive())  # at once, though nobody has asked how it ended
    with new_attempt(directory) as second:
        assert second.number == 2


def test_a_process_that_is_paused_is_followed_once_its_heartbeat_is_old(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(attempts.STALE_AFTER, "1")
    monkeypatch.setattr(attempts, "PATIENCE_S", 30.0)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory.path)], stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        first.send_signal(signal.SIGSTOP)
        wait_for_others(directory)
        with new_attempt(directory) as second:
            assert second.number == 2 and names(directory.path / "attempts") == ["0002"]
        first.kill()


def test_of_two_that_begin_at_the_same_moment_the_lower_number_goes_on(directory: RunDirectory) -> None:
    (directory.path / "attempts" / "0001").mkdir(parents=True)
    other = Attempt(directory, 1)
    attempts.write_json(other.heartbeat, {"host": "elsewhere", "pid": 1})  # it has not turned the link yet
    with pytest.raises(UserError, match=r"another process is working on this run \(elsewhere"), new_attempt(directory):
        pass
    assert names(directory.path / "attempts") == ["0001"]


def test_a_run_that_another_process_has_just_finished_is_not_begun_again(directory: RunDirectory) -> None:
    attempts.write_json(directory.summary, {"status": "done"})
    with pytest.raises(Superseded), new_attempt(directory):
        pass
    assert names(directory.path) == ["config.yaml", "summary.json"]


@pytest.mark.parametrize("ours", [100.0, -1000.0])
def test_the_age_of_a_heartbeat_is_told_by_the_clock_of_the_disk(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, ours: float
) -> None:
    """A machine whose clock is fast would call a living run dead, and one whose clock is slow a dead run living."""
    with new_attempt(directory) as attempt:
        attempts.write_json(attempt.heartbeat, {"host": "elsewhere", "pid": 1})
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + ours)
        assert attempt.is_alive()
        os.utime(attempt.heartbeat, (real() - 600, real() - 600))
        assert not attempt.is_alive() and attempt.age() == pytest.approx(600, abs=30)


def test_a_disk_without_symbolic_links_does(
    tmp_path: Path, run_tiny: RunTiny, reference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "symlink", refuse)
    out = tmp_path / "run"

    def stop() -> None:
        raise RuntimeError("stopped")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="stopped"):
        after_step(12, stop, patch)
        run_tiny(out)
    stopped = RunDirectory(out)
    assert (out / "current").read_text(encoding="utf-8") == "attempts/0001" and current_attempt(stopped) is not None
    assert [step for step, _ in stopped.resume_points()] == [10, 5] and (stopped.last_row() or {})["step"] >= 10
    assert run_tiny(out)["attempts"] == 2
    assert_same_result(out, reference)
    assert not (out / "attempts").exists() and not (out / "current").exists()


def test_who_works_on_a_run_is_written_down_and_beats(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(attempts.STALE_AFTER, "0.45")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    with new_attempt(directory) as attempt:
        owner = json.loads(attempt.heartbeat.read_text(encoding="utf-8"))
        assert (owner["host"], owner["pid"], owner["launch"]) == (socket.gethostname(), os.getpid(), "17.2")
        os.utime(attempt.heartbeat, (0, 0))
        deadline = time.monotonic() + 10
        while (attempt.age() or 0) > 5 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (attempt.age() or 0) < 5
        monkeypatch.delenv(attempts.NUMBER)
        assert shared_attempt(directory).number == 1  # a process that the scheduler started beside it
        monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
        with pytest.raises(UserError, match="did not begin within 0 s"):
            shared_attempt(directory, patience_s=0.0)


def test_an_error_of_the_run_is_told_from_an_end_from_outside(
    tmp_path: Path, tiny_recipe: str, run_tiny: RunTiny
) -> None:
    def broken(trained: Any) -> dict[str, Any]:
        raise ZeroDivisionError("no tokens")

    with pytest.raises(ZeroDivisionError):
        run(tiny_config(tiny_recipe, variant="g1_headwise"), broken, out=tmp_path / "run")
    attempt = current_attempt(RunDirectory(tmp_path / "run"))
    assert attempt is not None
    failure = json.loads(attempt.failure.read_text(encoding="utf-8"))
    assert (failure["reason"], failure["message"]) == ("own", "ZeroDivisionError: no tokens")
    attempt.record_failure("outside", "killed by signal 9")
    attempt.record_failure("own", "what followed")
    assert json.loads(attempt.failure.read_text(encoding="utf-8"))["message"] == "killed by signal 9"
    assert run_tiny(tmp_path / "run")["status"] == "done"
