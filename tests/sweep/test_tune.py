"""`gatebench tune` as a user runs it, with workers that are killed, paused and come back. `fake_tune.py` trains."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from gatebench.data.reading import open_data
from gatebench.sweep.search import Tuning, open_tuning
from gatebench.sweep.storage import open_storage
from gatebench.sweep.study import load_study
from gatebench.sweep.trials import WORKER
from gatebench.training.attempt import current_attempt
from gatebench.training.rundir import RunDirectory
from tests.sweep import fake_tune, postgresql
from tests.sweep.fake_tune import ERROR, STEP_S, loss_at
from tests.training.tiny_run import CONTENT

pytestmark = pytest.mark.slow
RECIPE = {**CONTENT, "data": {"corpus": "bigram_backcopy", "seq_len": 32}}
RECIPE["model"] = {**CONTENT["model"], "vocab_size": 68}
RECIPE["train"] = {**CONTENT["train"], "steps": fake_tune.STEPS}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ablations", "experiments", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "experiments" / "tiny.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "runs"))
    return tmp_path


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    for process in STARTED:
        if process.poll() is None:
            for pid in (*children(process.pid), process.pid):
                os.kill(pid, signal.SIGKILL)
    STARTED.clear()


@pytest.fixture(params=["journal", "postgresql"])
def storage(request: pytest.FixtureRequest, root: Path) -> Iterator[str]:
    if request.param == "journal":
        yield str(root / "journal.log")
        return
    with postgresql.running() as url:
        yield url


def declare(root: Path, space: dict[str, Any], **tune: Any) -> None:
    content = {"recipe": "tiny", "variants": ["baseline"], "seeds": 1, "tune": {"space": space, **tune}}
    (root / "ablations" / "mine.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def start(*words: str, step_s: float = 0.02) -> subprocess.Popen[str]:
    command = [sys.executable, fake_tune.__file__, "tune", "mine", *words]
    env = dict(os.environ, **{STEP_S: str(step_s)})
    STARTED.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    return STARTED[-1]


def ended(process: subprocess.Popen[str]) -> str:
    """Return standard output, once the command has succeeded."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    deadline = time.monotonic() + 120
    while not (found := what()):
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"did not happen; exit {process.poll()}: {process.communicate(timeout=60)[1]}")
        time.sleep(0.02)
    return found


def tuning_of(storage: str) -> Tuning:
    return open_tuning(load_study("mine"), storage)


def starts(root: Path) -> dict[str, int]:
    """How often each run was started, by its name."""
    return {path.parent.name: len(path.read_text().splitlines()) for path in (root / "runs").glob("tiny/*/starts")}


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def test_one_command_killed_and_one_paused_of_four_lose_no_trial_and_count_none_twice(root: Path, storage: str) -> None:
    """Four commands on one storage, as on four machines with one disk."""
    declare(root, {"optim.lr": {"low": 1e-4, "high": 0.1, "log": True}}, sampler="random", trials=8)
    words = ("--workers", "1", "--storage", storage, "--stale-after", "5", "--json")
    commands = [start(*words, step_s=0.5) for _ in range(4)]

    def at_work() -> dict[int, RunDirectory]:
        """The runs that are at their beginning, by command, once there are two."""
        runs = [RunDirectory(path.parent) for path in (root / "runs").glob("tiny/*/metrics.jsonl")]
        attempts = [(run, attempt) for run in runs if (attempt := current_attempt(run)) is not None]
        found = {attempt.owner()["launcher"]: run for run, attempt in attempts if attempt.is_alive()}
        early = {pid: run for pid, run in found.items() if (run.last_row() or {"step": 20})["step"] < 10}
        return early if len(early) >= 2 else {}

    runs = wait_for(at_work, commands[0])
    killed, paused = [command for command in commands if command.pid in runs][:2]
    others = [command for command in commands if command not in (killed, paused)]
    stopped = [paused.pid, *children(paused.pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    killed.kill()
    killed.wait()
    taken_over = [runs[command.pid].path.name for command in (killed, paused)]

    def followed(name: str) -> bool:
        folder = root / "runs" / "tiny" / name
        return (folder / "summary.json").is_file() or not (folder / "attempts" / "0001").exists()

    wait_for(lambda: all(n >= 2 for name, n in starts(root).items() if name in taken_over), others[0])
    wait_for(lambda: all(map(followed, taken_over)), others[0])
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    results = [json.loads(ended(command))["searches"] for command in (paused, *others)]
    (search,) = results[0]
    assert results == [results[0]] * 3

    assert [trial["trial"] for trial in search["trials"]] == list(range(8)) and search["complete"] == 8
    assert len({trial["params"]["optim.lr"] for trial in search["trials"]}) == 8
    for trial in search["trials"]:
        assert trial["value"] == pytest.approx(math.exp(loss_at(trial["params"]["optim.lr"])))
    (trials,) = tuning_of(storage).trials()
    assert Counter(trial.state for trial in trials) == {optuna.trial.TrialState.COMPLETE: 8}
    assert {name for name, n in starts(root).items() if n > 1} == set(taken_over)


def test_a_killed_run_is_started_again_and_its_trial_goes_on(root: Path) -> None:
    declare(root, {"optim.lr": [1e-2]}, sampler="grid")
    command = start("--json", step_s=0.2)
    (metrics,) = wait_for(lambda: list((root / "runs").glob("tiny/*/metrics.jsonl")), command)
    (run,) = children(command.pid)
    os.kill(run, signal.SIGKILL)
    output, errors = command.communicate(timeout=120)
    assert command.returncode == 0 and "trial 0: ended from outside (exit -9); starting it again" in errors
    (search,) = json.loads(output)["searches"]
    assert (search["complete"], search["trials"][0]["errors"], starts(root)[metrics.parent.name]) == (1, 0, 2)


def test_a_run_that_another_command_trains_is_left_to_it_and_counts(root: Path) -> None:
    declare(root, {"optim.lr": [1e-2]}, sampler="grid")
    storage = str(root / "journal.log")
    config = tuning_of(storage).searches[0].config({"optim.lr": 1e-2}, 0)
    config = config.model_copy(update={"corpus_fingerprint": open_data(config.data).fingerprint})
    run = RunDirectory(root / "runs" / config.run_name)
    run.claim(config)
    env = dict(os.environ, **{STEP_S: "0.5"})
    other = subprocess.Popen([sys.executable, fake_tune.__file__, "fake-train", "--resume", str(run.path)], env=env)
    STARTED.append(other)  # type: ignore[arg-type]
    wait_for(lambda: run.last_row() is not None, other)  # type: ignore[arg-type]
    other.send_signal(signal.SIGSTOP)  # not for so long that it would be taken for dead
    command = start("--storage", storage, "--json")
    wait_for(lambda: any(t.user_attrs.get(WORKER) == {} for t in tuning_of(storage).trials()[0]), command)
    other.send_signal(signal.SIGCONT)
    output, errors = command.communicate(timeout=120)
    assert command.returncode == 0 and errors.count("trial 0: left to another process, which trains its run") == 1
    (search,) = json.loads(output)["searches"]
    assert search["complete"] == 1 and starts(root) == {run.path.name: 1} and other.wait(timeout=60) == 0


def test_a_grid_whose_command_and_run_are_killed_has_nine_points_each_once(root: Path) -> None:
    declare(root, {"optim.lr": [1e-3, 1e-2, 1.0], "optim.weight_decay": [0.0, 0.1, 0.2]}, sampler="grid")
    command = start("--workers", "2", step_s=0.05)
    runs = lambda: [RunDirectory(path.parent) for path in (root / "runs").glob("tiny/*/metrics.jsonl")]  # noqa: E731
    wait_for(lambda: 3 <= sum(run.is_done() for run in runs()) < len(runs()), command)
    (run, *_) = children(command.pid)
    os.kill(run, signal.SIGKILL)
    command.kill()
    command.communicate(timeout=60)
    done = [run.path.name for run in runs() if run.is_done()]

    (search,) = json.loads(ended(start("--workers", "2", "--json")))["searches"]
    points = {(t["params"]["optim.lr"], t["params"]["optim.weight_decay"]) for t in search["trials"]}
    assert len(points) == len(search["trials"]) == 9
    assert (search["complete"], search["diverged"]) == (6, 3)
    assert {t["status"] for t in search["trials"] if t["params"]["optim.lr"] == 1.0} == {"diverged"}
    assert all(starts(root)[name] == 1 for name in done)

    before = starts(root)
    table = ended(start("--workers", "2"))
    assert starts(root) == before and search["best_value"] == pytest.approx(math.exp(1.0))
    (line,) = [line for line in table.splitlines() if "diverged" in line and "weight_decay=0.1" in line]
    words = line.split()
    assert words[words.index("diverged") + 1] == "-"
    assert len((root / "results" / "mine" / "tune" / "trials.csv").read_text().splitlines()) == 10


def test_an_error_is_tried_again_as_often_as_asked_and_a_diverged_run_never(root: Path) -> None:
    declare(root, {"optim.lr": [ERROR, 1.0, 0.1]}, sampler="grid")
    (search,) = json.loads(ended(start("--workers", "1", "--max-retries", "2", "--json")))["searches"]
    by_lr = {trial["params"]["optim.lr"]: trial for trial in search["trials"]}
    assert {lr: trial["status"] for lr, trial in by_lr.items()} == {ERROR: "failed", 1.0: "diverged", 0.1: "complete"}
    assert by_lr[ERROR]["reason"] == "ValueError: made up" and by_lr[ERROR]["errors"] == 3
    assert {lr: starts(root)[Path(trial["runs"][0]).name] for lr, trial in by_lr.items()} == {ERROR: 3, 1.0: 1, 0.1: 1}
    assert search["best_trial"] == by_lr[0.1]["trial"]


def test_a_trial_that_lags_behind_is_stopped_and_has_no_value(root: Path) -> None:
    space = {"optim.lr": {"low": 1e-6, "high": 2.0, "log": True}}
    declare(root, space, sampler="tpe", pruner="median", trials=12, seeds=2)
    (search,) = json.loads(ended(start("--workers", "2", "--json", step_s=0.05)))["searches"]
    pruned = [trial for trial in search["trials"] if trial["status"] == "pruned"]
    assert pruned and sum(search[status] for status in ("complete", "diverged", "pruned")) == 12
    assert all(trial["value"] is None for trial in pruned)
    assert not any(RunDirectory(root / "runs" / trial["runs"][-1]).is_done() for trial in pruned)
    assert all(len(trial["values"]) == 2 for trial in search["trials"] if trial["status"] == "complete")


@pytest.mark.usefixtures("sigint_as_at_a_terminal")
def test_ctrl_c_ends_everything_and_the_same_line_goes_on(root: Path) -> None:
    declare(root, {"optim.lr": [1e-3, 1e-2, 1e-1]}, sampler="grid")
    command = start("--workers", "1", step_s=0.2)
    wait_for(lambda: list((root / "runs").glob("tiny/*/metrics.jsonl")), command)
    (run,) = children(command.pid)
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=60)
    assert command.returncode == 1 and "run the same line again to go on" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(run, 0)
    (search,) = json.loads(ended(start("--workers", "1", "--json")))["searches"]
    assert search["complete"] == 3


def test_another_definition_of_the_search_is_refused(root: Path) -> None:
    declare(root, {"optim.lr": [1e-3]}, sampler="grid")
    storage = str(root / "journal.log")
    tuning_of(storage).plan()
    declare(root, {"optim.lr": [1e-2]}, sampler="grid")
    refused = subprocess.run(
        [sys.executable, "-m", "gatebench", "tune", "mine", "--storage", storage], capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert "the search for baseline was begun with another space" in refused.stderr.splitlines()[-1]


def test_eight_processes_with_25_trials_each_leave_200_rows_in_a_journal(root: Path) -> None:
    """What happens to SQLite (optuna#815, #6036) does not happen here."""
    storage = str(root / "journal.log")
    code = (
        "import sys, optuna; from gatebench.sweep.storage import open_storage\n"
        "study = optuna.load_study(study_name='s', storage=open_storage(sys.argv[1]))\n"
        "study.sampler = optuna.samplers.RandomSampler()\n"
        "study.optimize(lambda trial: trial.suggest_float('x', 0, 1), n_trials=25)\n"
    )
    optuna.create_study(study_name="s", storage=open_storage(storage))
    writers = [subprocess.Popen([sys.executable, "-c", code, storage]) for _ in range(8)]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 8
    trials = optuna.load_study(study_name="s", storage=open_storage(storage)).trials
    assert [trial.number for trial in trials] == list(range(200)) and all(trial.values for trial in trials)


def test_trials_are_the_runs_that_gatebench_train_makes(root: Path) -> None:
    """With training itself: one run diverges, one is done before the search begins."""
    declare(root, {"optim.lr": [1e-2, 1e20]}, sampler="grid", objective="excess_loss")
    gatebench = [sys.executable, "-m", "gatebench"]
    train = [*gatebench, "train", "--recipe", "tiny", "--variant", "baseline", "--set", "optim.lr=0.01", "--json"]
    done = json.loads(subprocess.run(train, check=True, capture_output=True, text=True).stdout)
    (search,) = json.loads(
        subprocess.run([*gatebench, "tune", "mine", "--json"], check=True, capture_output=True, text=True).stdout
    )["searches"]
    by_lr = {trial["params"]["optim.lr"]: trial for trial in search["trials"]}
    assert (by_lr[1e20]["status"], by_lr[1e20]["value"]) == ("diverged", None)
    assert by_lr[1e-2]["runs"] == [done["run"]] and search["best_value"] == done["excess_loss"]
    finished = (root / "runs" / done["run"] / "summary.json").read_text(encoding="utf-8")
    assert json.loads(finished) == done
