"""A study on this machine, as a user runs it: the runner killed twice, a run killed, a run that fails by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gatebench import paths
from gatebench.errors import UserError
from gatebench.sweep.plan import plan
from gatebench.sweep.pool import Slots, local_slots, stop_pools_here
from gatebench.sweep.study import load_study
from gatebench.training.attempt import current_attempt
from gatebench.training.rundir import RunDirectory, read_json
from tests.training.tiny_run import assert_same_result, pid_alive

STUDY = """
recipe: {recipe}
variants: [g1_headwise]
seeds: 2
overrides: {{set: [train.steps=150, train.checkpoint_every=10, train.log_every=5]}}
"""


def wait_for(what: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not what():
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"did not happen; exit {process.poll()}: {process.communicate(timeout=60)[0]}")
        time.sleep(0.02)


@pytest.fixture
def root(tmp_path: Path, tiny_recipe: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ablations", "experiments", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "results" / "paper").symlink_to(paths.project_root() / "results" / "paper")
    (tmp_path / "ablations" / "mine.yaml").write_text(STUDY.format(recipe=tiny_recipe), encoding="utf-8")
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "runs"))
    return tmp_path


def sweep(*words: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gatebench", "sweep", "mine", "--max-parallel", "2", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.mark.slow
def test_the_runner_killed_twice_loses_nothing_and_trains_nothing_twice(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [RunDirectory(run.directory) for run in plan(load_study("mine")) if run.directory is not None]
    for step in (30, 90):
        process = sweep()
        reached = lambda: any((run.last_row() or {"step": 0})["step"] >= step and not run.is_done() for run in runs)  # noqa: B023, E731
        wait_for(reached, process)
        pids = [int((read_json(a.heartbeat) or {"pid": 0})["pid"]) for a in map(current_attempt, runs) if a is not None]
        process.kill()
        process.communicate()
        deadline = time.monotonic() + 60  # what ran ends with its runner
        while any(pid_alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not any(pid_alive(pid) for pid in pids)

    process = sweep()
    killed = runs[-1]
    wait_for(lambda: (killed.last_row() or {"step": 0})["step"] >= 20, process)
    attempt = current_attempt(killed)
    assert attempt is not None
    os.kill(int((read_json(attempt.heartbeat) or {})["pid"]), signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "ended from outside (exit -9); starting it again" in output, output
    done_once = json.loads((runs[0].path / "summary.json").read_text(encoding="utf-8"))

    again = sweep()
    assert "written:" in again.communicate(timeout=120)[0] and again.returncode == 0
    assert json.loads((runs[0].path / "summary.json").read_text(encoding="utf-8")) == done_once
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "whole"))
    undisturbed = sweep(env=dict(os.environ))
    undisturbed.communicate(timeout=300)
    assert undisturbed.returncode == 0
    for run in runs:
        assert_same_result(run.path, tmp_path / "whole" / "tiny" / run.path.name)
        assert not (run.path / "attempts").exists()


@pytest.mark.slow
def test_cancel_stops_the_sweep_of_this_machine_and_an_error_of_a_run_is_its_own(root: Path) -> None:
    runs = [RunDirectory(run.directory) for run in plan(load_study("mine")) if run.directory is not None]
    process = sweep("--seeds", "1")
    wait_for(lambda: all((run.last_row() or {"step": 0})["step"] >= 10 for run in runs[:2]), process)
    subprocess.run([sys.executable, "-m", "gatebench", "cancel", "mine"], check=True, capture_output=True)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert stop_pools_here("mine") == [] and not any(run.is_done() for run in runs)

    status = [sys.executable, "-m", "gatebench", "status", "mine", "--json"]
    counts = json.loads(subprocess.run(status, capture_output=True, text=True, check=True).stdout)["counts"]
    assert counts == {"done": 0, "diverged": 0, "running": 0, "stale": 0, "failed": 2, "missing": 2}

    (runs[0].path / "current" / "environment.json").write_text("no JSON", encoding="utf-8")
    process = sweep("--seeds", "1")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2 and runs[1].is_done() and "starting it again" not in output, output
    assert "environment.json: not JSON" in output
    process = sweep("--seeds", "1")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "--retry-failed tries them again" in output
    (runs[0].path / "current" / "environment.json").unlink()
    process = sweep("--seeds", "1", "--retry-failed")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and runs[0].is_done(), output


@pytest.mark.slow
def test_two_sweeps_at_once_share_the_runs_and_train_each_once(root: Path) -> None:
    runs = [RunDirectory(run.directory) for run in plan(load_study("mine")) if run.directory is not None]
    both = [sweep(), sweep()]
    outputs = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert [len(run.places()) for run in runs] == [1] * 4 and all(run.is_done() for run in runs)
    trained = [[f"{name}: done" in output for output in outputs] for name in ("baseline seed 0", "g1_headwise seed 1")]
    assert all(map(any, trained)) and all("written:" in output for output in outputs)


@pytest.mark.parametrize(
    ("n_gpus", "devices", "share", "slots"),
    [
        (2, 1, 0.5, Slots(4, 4, ((0,), (1,), (0,), (1,)))),
        (1, 1, 0.3, Slots(3, 5, ((0,), (0,), (0,)))),
        (4, 1, 2.0, Slots(2, 8, ((0, 1), (2, 3)))),
        (4, 2, None, Slots(2, 8, ((0, 1), (2, 3)))),
    ],
)
def test_runs_share_a_gpu_or_have_several(
    monkeypatch: pytest.MonkeyPatch, n_gpus: int, devices: int, share: float | None, slots: Slots
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    assert local_slots(9, n_gpus=n_gpus, devices=devices, gpus_per_run=share) == slots


@pytest.mark.parametrize(
    ("n_gpus", "devices", "share", "message"),
    [
        (0, 1, 0.5, "--gpus-per-run=0.5: these runs train on the CPU here; legal: without it"),
        (4, 2, 0.5, "--gpus-per-run=0.5: the runs have train.devices=2; legal here: 2 to 4, whole"),
        (4, 1, 1.5, "--gpus-per-run=1.5: the runs have train.devices=1; legal here: 1 to 4, whole; or below 1"),
        (2, 1, 3.0, "--gpus-per-run=3: the runs have train.devices=1; legal here: 1 to 2, whole"),
    ],
)
def test_what_the_gpus_do_not_allow_is_refused(n_gpus: int, devices: int, share: float, message: str) -> None:
    with pytest.raises(UserError) as refused:
        local_slots(9, n_gpus=n_gpus, devices=devices, gpus_per_run=share)
    assert str(refused.value).startswith(message)


def test_a_cpu_run_of_two_processes_takes_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert local_slots(9, n_gpus=0, devices=2) == Slots(4, 1)
    assert local_slots(2, n_gpus=0, devices=2) == Slots(2, 2)
