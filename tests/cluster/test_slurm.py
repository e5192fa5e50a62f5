"""Studies on a real SLURM of two nodes with pretended GPUs. Run with `make test-cluster`; never in CI.

What goes wrong on a cluster goes wrong here once, and the results are those of the local runner, bit for bit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gatebench.sweep import slurm, snapshot
from gatebench.sweep.plan import plan
from gatebench.sweep.profiles import load_profile
from gatebench.sweep.squeue import queue
from gatebench.sweep.study import Study, load_study
from gatebench.sweep.submissions import submissions
from gatebench.training.attempt import current_attempt
from gatebench.training.rundir import RunDirectory, read_json
from tests.cluster.slurm_cluster import SlurmCluster
from tests.training.tiny_run import assert_same_result, reproducible_rows

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(7200)]

STARTED: list[subprocess.Popen[str]] = []
LONG = ("train.steps=300", "train.checkpoint_every=20", "train.log_every=5")
STUDY = """
recipe: {recipe}
variants: [g1_headwise]
seeds: 3
overrides:
  set: [{long}]
  settings:
    recipe: []
    hot: [model.init_std=1e30]
"""


def wait_for(what: Callable[[], Any], message: str, seconds: float = 1200) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := what()):
        if time.monotonic() > deadline:
            pytest.fail(f"did not happen within {seconds:.0f} s: {message}")
        time.sleep(0.1)
    return value


def sweep(*words: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gatebench", "sweep", *words]
    STARTED.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options))
    return STARTED[-1]


@pytest.fixture(autouse=True)
def no_sweep_is_left() -> Iterator[None]:
    yield
    for process in STARTED:
        if process.poll() is None:
            process.kill()


def ended(process: subprocess.Popen[str], seconds: float = 3000) -> str:
    output, _ = process.communicate(timeout=seconds)
    return output


def owner(run: RunDirectory) -> dict[str, Any]:
    attempt = current_attempt(run)
    return (attempt is not None and read_json(attempt.heartbeat)) or {}


def at_step(run: RunDirectory, step: int) -> bool:
    row = run.last_row()
    return row is not None and row["step"] >= step and bool(owner(run))


def places_of(run: RunDirectory) -> list[dict[str, Any]]:
    return RunDirectory(run.path).places()


@pytest.fixture
def study(root: Path, tiny_recipe: str) -> str:
    text = STUDY.format(recipe=tiny_recipe, long=", ".join(LONG))
    (root / "ablations" / "grid.yaml").write_text(text, encoding="utf-8")
    return "grid"


def test_twelve_runs_through_everything_that_goes_wrong(cluster: SlurmCluster, root: Path, study: str) -> None:
    planned = plan(load_study(study))
    assert len(planned) == 12
    runs = {(p.config.variant, p.config.seed, p.combination.label): RunDirectory(p.directory) for p in planned}  # type: ignore[arg-type]
    killed, preempted, lost = (runs["baseline", seed, "recipe"] for seed in range(3))
    raising = runs["g1_headwise", 0, "recipe"]
    raising.claim(next(p.config for p in planned if p.directory == raising.path))
    raising.environment.write_text("no JSON", encoding="utf-8")
    started = time.monotonic()
    first = sweep(study, "--on", "slurm")

    wait_for(lambda: at_step(killed, 40), "the first run trains")
    os.kill(int(owner(killed)["pid"]), signal.SIGKILL)

    wait_for(lambda: at_step(preempted, 40), "the second run trains")
    node = owner(preempted)["node"]
    urgent = ["sbatch", "-p", "main", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2"]
    subprocess.run(urgent, check=True, capture_output=True)

    wait_for(lambda: at_step(lost, 40), "the third run trains")
    before = owner(lost)
    os.kill(int(before["pid"]), signal.SIGSTOP)
    cluster.lose_node(before["node"])
    wait_for(lambda: owner(lost).get("attempt") == 2, "it begins again on the other node")
    assert owner(lost)["node"] != before["node"]
    os.kill(int(before["pid"]), signal.SIGCONT)  # the old process is still there, and writes
    wait_for(lambda: "another process has taken this run over" in lost.log.read_text(), "the old process is shut out")
    cluster.start_node(before["node"])

    output = ended(first)
    print(output, f"first sweep: {time.monotonic() - started:.0f} s", sep="\n")
    assert first.returncode == 1
    assert "g1_headwise seed 0 recipe failed" in output and not raising.is_done()
    assert (read_json(current_attempt(raising).failure) or {})["reason"] == "own"  # type: ignore[union-attr]
    assert all(run.is_done() for key, run in runs.items() if run is not raising), output

    status = subprocess.run(
        [sys.executable, "-m", "gatebench", "status", study, "--json"], capture_output=True, text=True
    )
    counts = json.loads(status.stdout)["counts"]
    assert counts == {"done": 5, "diverged": 6, "running": 0, "stale": 0, "failed": 1, "missing": 0}

    untouched = ended(second := sweep(study, "--on", "slurm"))  # an error of its own is not tried again unasked
    assert second.returncode == 1 and "--retry-failed" in untouched and len(submissions(study)) == 1
    (raising.path / "current" / "environment.json").unlink()
    output = ended(third := sweep(study, "--on", "slurm", "--retry-failed"))
    assert third.returncode == 0 and raising.is_done(), output
    print(f"with what failed: {time.monotonic() - started:.0f} s")

    summaries = {key: run.read_summary() for key, run in runs.items()}
    assert {s["status"] for key, s in summaries.items() if key[2] == "hot"} == {"diverged"}
    for run in (killed, preempted, lost):
        assert run.read_summary()["attempts"] == len(places_of(run)) == 2, run.name
    quiet = [run for run in runs.values() if run not in (killed, preempted, lost, raising)]
    assert sum(len(places_of(run)) == 1 for run in quiet) >= len(quiet) - 1  # one may share the preempted node
    for run in runs.values():
        assert not (run.path / "attempts").exists() and not (run.path / "current").is_symlink()

    started = time.monotonic()
    local = ended(
        again := sweep(study, "--max-parallel", "2", env={**os.environ, "GATEBENCH_RUNS": str(root / "local")})
    )
    assert again.returncode == 0, local
    print(f"the same on this machine: {time.monotonic() - started:.0f} s")
    for key, run in runs.items():
        other = root / "local" / run.path.parent.name / run.path.name
        if key[2] == "recipe":
            assert_same_result(run.path, other)
        else:
            assert reproducible_rows(run.path) == reproducible_rows(other)
            assert summaries[key]["diverged_step"] == RunDirectory(other).read_summary()["diverged_step"]


STUB = """
import pathlib, sys
run = pathlib.Path(sys.argv[sys.argv.index("--resume") + 1])
with open(run / "started", "a") as file:
    file.write("x")
(run / "summary.json").write_text('{"status": "done"}')
"""


def test_105_runs_at_a_limit_of_100_are_two_arrays_and_each_runs_once(
    cluster: SlurmCluster, root: Path, tiny_recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the code is given another main module, so that a run takes no time."""
    original = snapshot.take

    def with_stub(folder: Path) -> Path:
        code = original(folder)
        (code / "gatebench" / "__main__.py").write_text(STUB, encoding="utf-8")
        return code

    monkeypatch.setattr(snapshot, "take", with_stub)
    large = Study(recipe=tiny_recipe, variants=["g1_headwise", "g1_elementwise"], seeds=list(range(35)))
    large._name = "large"
    planned, left = slurm.train_on_cluster(large, Console(stderr=True), load_profile("default"))
    assert left == [] and len(planned) == 105 and all(run.finished for run in planned)
    (submission,) = submissions("large")
    assert [len(array.directories) for array in submission.arrays()] == [100, 5]
    started = [(run.directory / "started").read_text() for run in planned if run.directory is not None]
    assert started == ["x"] * 105
    assert slurm.train_on_cluster(large, Console(stderr=True), load_profile("default"))[1] == []
    assert len(submissions("large")) == 1


def test_three_variants_of_two_processes_leave_three_runs(cluster: SlurmCluster, root: Path, tiny_recipe: str) -> None:
    text = f"recipe: {tiny_recipe}\nvariants: [g1_headwise, g1_elementwise]\nseeds: 1\n"
    text += "overrides: {set: [train.devices=2, train.strategy=ddp, train.batch_size=8]}\n"
    (root / "ablations" / "pairs.yaml").write_text(text, encoding="utf-8")
    output = ended(process := sweep("pairs", "--on", "slurm"))
    assert process.returncode == 0, output
    folders = sorted(path.name.split("-s0")[0] for path in (root / "runs" / "tiny").iterdir())
    assert folders == ["baseline", "g1_elementwise", "g1_headwise"]
    for path in (root / "runs" / "tiny").iterdir():
        summary = RunDirectory(path).read_summary()
        assert (summary["status"], summary["n_devices"], summary["attempts"]) == ("done", 2, 1)
        assert [row[0] for row in reproducible_rows(path)] == list(range(1, 21))


def test_cancel_ends_the_jobs_and_the_same_line_goes_on(cluster: SlurmCluster, root: Path, study: str) -> None:
    words = ("--on", "slurm", "--seeds", "1", "--set", "train.steps=6000")
    process = sweep(study, *words, "--detach")
    assert "submitted" in ended(process) and process.returncode == 0
    first = RunDirectory(plan(load_study(study).changed(settings=words[-1:]))[0].directory)  # type: ignore[arg-type]
    again = sweep(study, *words, "--detach")
    assert " submitted;" not in ended(again)  # what is queued is not submitted twice
    wait_for(lambda: at_step(first, 20), "the first run trains")
    subprocess.run([sys.executable, "-m", "gatebench", "cancel", study], check=True, capture_output=True)
    wait_for(lambda: not any(queued.active for queued in (queue() or {}).values()), "the queue is empty")
    time.sleep(12)  # none comes back
    assert not any(queued.active for queued in (queue() or {}).values()) and not first.is_done()
    output = ended(process := sweep(study, *words))
    assert process.returncode == 0 and first.is_done(), output
