"""How runs stand, from the disk alone: every standing, and ten thousand of them in seconds."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from gatebench.sweep.plan import plan
from gatebench.sweep.status import RunStatus, run_status, study_status
from gatebench.sweep.study import Study
from gatebench.training.attempt import Attempt, current_attempt, new_attempt
from gatebench.training.rundir import RunDirectory
from tests.training.tiny_run import tiny_config


@pytest.fixture
def begun(tmp_path: Path, tiny_recipe: str) -> Attempt:
    """The attempt of a run that stopped at step 5 of 20, on a machine called elsewhere."""
    directory = RunDirectory(tmp_path / "run")
    directory.claim(tiny_config(tiny_recipe))
    with new_attempt(directory) as attempt:
        row = {"step": 5, "tokens": 640, "loss": 2.5, "tokens_per_s": 64.0}
        attempt.metrics.write_text(json.dumps(row) + "\n", encoding="utf-8")
        owner = json.loads(attempt.heartbeat.read_text(encoding="utf-8"))
        attempt.heartbeat.write_text(json.dumps(owner | {"host": "elsewhere"}), encoding="utf-8")
    return attempt


def test_no_directory_is_a_missing_run(tmp_path: Path) -> None:
    assert run_status(None, 20) == run_status(tmp_path / "run", 20) == RunStatus("missing")


def test_a_running_run_says_where_it_is_and_what_is_left(begun: Attempt) -> None:
    status = run_status(begun.run.path, 20)
    assert (status.standing, status.host, status.attempt) == ("running", "elsewhere", 1)
    assert (status.step, status.loss, status.left_s) == (5, 2.5, 15 * 128 / 64.0)
    assert status.heartbeat_age_s is not None and status.heartbeat_age_s < 60


def test_without_a_sign_of_life_it_is_stale(begun: Attempt) -> None:
    two_minutes_ago = time.time() - 120
    os.utime(begun.heartbeat, (two_minutes_ago, two_minutes_ago))
    status = run_status(begun.run.path, 20)
    assert status.standing == "stale" and status.heartbeat_age_s == pytest.approx(120, abs=30)


def test_a_process_of_this_machine_that_is_gone_is_stale_at_once(tmp_path: Path, begun: Attempt) -> None:
    owner = json.loads(begun.heartbeat.read_text(encoding="utf-8"))
    largest = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="utf-8"))
    begun.heartbeat.write_text(json.dumps(owner | {"host": os.uname().nodename, "pid": largest + 1}), encoding="utf-8")
    assert run_status(begun.run.path, 20).standing == "stale"


@pytest.mark.parametrize("reason", ["outside", "own"])
def test_a_failed_run_says_why(begun: Attempt, reason: str) -> None:
    begun.record_failure(reason, "ZeroDivisionError: no tokens")  # type: ignore[arg-type]
    status = run_status(begun.run.path, 20)
    assert (status.standing, status.reason, status.message) == ("failed", reason, "ZeroDivisionError: no tokens")


@pytest.mark.parametrize("result", ["done", "diverged"])
def test_a_finished_run_is_what_its_summary_says(begun: Attempt, result: str) -> None:
    begun.publish({"status": result})
    assert current_attempt(begun.run) is None
    assert run_status(begun.run.path, 20) == RunStatus(result)  # type: ignore[arg-type]


def test_ten_thousand_runs_are_planned_and_looked_at_in_seconds(
    tmp_path: Path, tiny_recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path))
    study = Study(
        recipe=tiny_recipe, variants=["g1_headwise", "g1_elementwise", "g2_headwise"], seeds=list(range(2500))
    )
    started = time.process_time()
    planned = plan(study)
    for run in planned[:1000]:
        assert run.directory is not None
        run.directory.mkdir(parents=True)
        (run.directory / "summary.json").write_text('{"status": "done"}', encoding="utf-8")
    found = study_status(planned)
    assert [status.standing for status in found[:1001]] == ["done"] * 1000 + ["missing"] and len(found) == 10_000
    assert time.process_time() - started < 20
