"""The `tune:` section, the journal, and what is submitted to SLURM: nothing here trains."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState
from rich.console import Console

from gatebench.errors import UserError
from gatebench.recipes import make_run
from gatebench.sweep import trials
from gatebench.sweep.pool import Pool, Slots
from gatebench.sweep.profiles import ClusterProfile
from gatebench.sweep.search import Tuning, open_tuning, sampler, searches, with_trials, work_folder
from gatebench.sweep.slurm import CommandInJob
from gatebench.sweep.space import Range, as_declared, suggest
from gatebench.sweep.storage import STORAGE, open_storage
from gatebench.sweep.study import Study, load_study
from gatebench.sweep.submissions import submissions
from gatebench.sweep.trials import WORKER, Tuner
from gatebench.sweep.tune import Progress, prepare, tune_on_cluster
from gatebench.training.attempt import STALE_AFTER, new_attempt
from gatebench.training.rundir import RunDirectory, write_json
from tests.sweep.fake_slurm import FakeSlurm
from tests.sweep.test_tune import root

__all__ = ["root"]
LR = {"low": 1e-4, "high": 0.1, "log": True}


def study(root: Path, tune: Any, **more: Any) -> Study:
    content = {"recipe": "tiny", "variants": ["g1_headwise"], "seeds": 2, "tune": tune, **more}
    path = root / "ablations" / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in content.items() if v is not None}, sort_keys=False))
    return load_study("mine")


def opened(root: Path, tune: Any, **more: Any) -> Tuning:
    tuning = open_tuning(study(root, tune, **more), str(root / "journal.log"))
    tuning.plan()
    return tuning


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"space": {}}, "tune.space: must map config keys to {low, high} or to lists"),
        ({"space": {"optim.lr": 1e-3}}, "'optim.lr': must be {low, high} or a list of values, not 0.001"),
        ({"space": {"optim.lr": {"low": 1e-3}}}, "'optim.lr': key 'high' is missing"),
        (
            {"space": {"optim.lr": {"low": 1e-3, "high": 1, "hihg": 1}}},
            "'optim.lr': key 'hihg' is unknown; did you mean high",
        ),
        ({"space": {"optim.lr": {"low": 1, "high": 1e-3}}}, "low=1: must be below high=0.001"),
        ({"space": {"optim.lr": {"low": 0, "high": 1, "log": True}}}, "low=0: must be above 0 with log: true"),
        ({"space": {"optim.lr": [1e-3, 1e-3]}}, "'optim.lr': a value stands twice"),
        ({"space": {"optim.lr": [[1e-3]]}}, "'optim.lr': [0.001] cannot be chosen"),
        ({"space": {"optim.lr": LR}}, "tune.trials: is missing; legal with sampler: tpe: 1 or more"),
        ({"space": {"optim.lr": LR}, "sampler": "grid"}, "'optim.lr' has no step; legal with sampler: grid"),
        ({"space": {"optim.lr": [1e-3]}, "sampler": "grid", "trials": 2}, "tune.trials=2: the grid has 1 points"),
        ({"space": {"optim.lr": LR}, "trials": 1, "seeds": [0, 0]}, "tune.seeds: must be a number of 1 or more"),
        ({"space": {"optim.lr": LR}, "trials": 1, "pruner": "mean"}, "tune.pruner='mean'"),
    ],
)
def test_a_mistake_in_the_section_is_one_line(root: Path, tune: Any, message: str) -> None:
    with pytest.raises(UserError) as refused:
        study(root, tune)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"optim.rl": [1e-3]}, "tune.space: optim.rl=0.001: recipe 'tiny': key 'optim.rl' is unknown"),
        ({"optim.lr": [1e-3, -1.0]}, "tune.space: optim.lr=-1.0: recipe 'tiny': optim.lr=-1.0"),
        ({"optim.warmup_steps": {"low": 1, "high": 20, "step": 1}}, "optim.warmup_steps=20: must be below train.steps"),
        ({"optim.schedule": ["cosine", "cosinus"]}, "tune.space: optim.schedule=cosinus"),
    ],
)
def test_a_key_or_value_is_checked_as_set_checks_it(root: Path, space: Any, message: str) -> None:
    with pytest.raises(UserError, match="study 'mine': ") as refused:
        searches(study(root, {"space": space, "sampler": "grid"}))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_the_number_of_trials_and_the_objective_are_checked(root: Path) -> None:
    with pytest.raises(UserError, match="study 'mine': has no section tune"):
        with_trials(study(root, None), None)
    grid = study(root, {"space": {"optim.lr": [1e-3, 1e-2]}, "sampler": "grid"})
    with pytest.raises(UserError, match=r"--trials 3: tune\.trials=3: the grid has 2 points; legal: 1 to 2"):
        with_trials(grid, 3)
    wrong = study(root, {"space": {"optim.lr": LR}, "trials": 1, "objective": "avg_pppl"})
    with pytest.raises(UserError, match=r"tune\.objective=avg_pppl: did you mean avg_ppl"):
        prepare(searches(wrong), Console(file=io.StringIO()), elsewhere=False)
    two_nodes = {"settings": {"one": [], "two": ["train.num_nodes=2", "train.batch_size=4"]}}
    wide = study(root, {"space": {"optim.lr": LR}, "trials": 1}, overrides=two_nodes)
    with pytest.raises(UserError, match=r"train\.num_nodes=2: a worker has one node; legal: train\.num_nodes=1"):
        prepare(searches(wide), Console(file=io.StringIO()), elsewhere=True)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("sqlite:///a.db", "--storage sqlite:///a.db: legal: the path of a journal, or postgresql://user@host/base"),
        ("postgresql://me:secret@127.0.0.1:1/base", "--storage postgresql://me:***@127.0.0.1:1/base: connection"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line_without_its_password(storage: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        open_storage(storage)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_every_variant_is_first_tried_at_the_same_points_and_settings_have_a_search_each(root: Path) -> None:
    tune = {"space": {"optim.lr": LR, "train.batch_size": [2, 4], "optim.warmup_steps": {"low": 1, "high": 5}}}
    settings = {"settings": {"short": ["train.steps=10"], "long": []}}
    tuning = opened(root, {**tune, "trials": 2}, overrides=settings)
    names = [f"mine/{setting}/{variant}" for setting in ("short", "long") for variant in ("baseline", "g1_headwise")]
    assert [study.study_name for study in tuning.studies] == names
    chosen = []
    for search, found in zip(tuning.searches, tuning.studies, strict=True):
        assert [trial.number for trial in found.trials] == [0, 1]
        found.sampler = sampler(search.tune, 1)
        chosen.append(suggest(optuna.Trial(found, found.trials[1]._trial_id), search.tune.space))
    assert all(params == chosen[0] for params in chosen)
    assert 1e-4 <= float(str(chosen[0]["optim.lr"])) <= 0.1 and isinstance(chosen[0]["optim.warmup_steps"], int)
    config = tuning.searches[1].config(chosen[0], seed=1)
    assert (config.variant, config.seed, config.train.steps) == ("g1_headwise", 1, 10)
    assert config.optim.lr == chosen[0]["optim.lr"] and config.train.batch_size == chosen[0]["train.batch_size"]


def test_a_trial_ends_once_and_one_that_diverged_is_never_the_best(root: Path) -> None:
    tuning = opened(root, {"space": {"optim.lr": LR}, "trials": 2, "direction": "maximize"}, variants=["baseline"])
    first, second = (trial._trial_id for _, trial in tuning.open_trials())
    tuning.plan()
    assert len(tuning.open_trials()) == 2
    tuning.storage.set_trial_state_values(first, TrialState.COMPLETE, [-float("inf")])
    for late in (TrialState.COMPLETE, TrialState.FAIL):
        with pytest.raises(UpdateFinishedTrialError):
            tuning.storage.set_trial_state_values(first, late, [7.0] if late == TrialState.COMPLETE else None)
    (found,) = tuning.outcomes()
    assert found.best is None and [trial.status for trial in found.trials] == ["diverged", "waiting"]
    tuning.storage.set_trial_state_values(second, TrialState.COMPLETE, [3.0])
    (found,) = tuning.outcomes()
    assert found.best is not None and (found.best.number, found.best.value) == (1, 3.0)


@pytest.mark.parametrize("torn", [b'{"op_code":5,"worker', b"\0\0\0", b'{"op_code":5,"worker\n', b"\n"])
def test_what_a_killed_process_left_at_the_end_of_a_journal_harms_nothing(root: Path, torn: bytes) -> None:
    tune = {"space": {"optim.lr": [1e-3, 1e-2]}, "sampler": "grid"}
    before = opened(root, tune, variants=["baseline"]).trials()
    journal = root / "journal.log"
    whole = journal.read_bytes()
    journal.write_bytes(whole + torn)
    tuning = open_tuning(load_study("mine"), str(journal))
    assert [trial.number for trial in tuning.trials()[0]] == [trial.number for trial in before[0]] == [0, 1]
    tuning.storage.set_trial_state_values(tuning.trials()[0][0]._trial_id, TrialState.COMPLETE, [1.0])
    assert journal.read_bytes().startswith(whole + b"{")
    states = [trial.state for trial in open_tuning(load_study("mine"), str(journal)).trials()[0]]
    assert states == [TrialState.COMPLETE, TrialState.WAITING]


@pytest.mark.parametrize("damage", ["cut", "glued", "alien"])
def test_a_journal_that_cannot_be_read_is_one_line_with_the_way_out(root: Path, damage: str) -> None:
    opened(root, {"space": {"optim.lr": [1e-3, 1e-2]}, "sampler": "grid"})
    journal = root / "journal.log"
    lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[0] = {"cut": lines[0][:-20] + "\n", "glued": lines[0][:-20], "alien": "[]\n"}[damage]
    journal.write_text("".join(lines), encoding="utf-8")
    with pytest.raises(UserError, match=r"journal\.log: damaged, .*remove it, or name another --storage") as refused:
        open_tuning(load_study("mine"), str(journal)).trials()
    assert "\n" not in str(refused.value)


def test_a_folder_is_no_journal(root: Path) -> None:
    with pytest.raises(UserError, match=r"--storage .*: Is a directory; legal: the path of a journal"):
        open_storage(str(root)).get_all_studies()


def test_steps_are_counted_in_decimals() -> None:
    """0.1 + 2 * 0.1 is 0.30000000000000004 in binary: another weight decay, and another run, than that of `--set`."""
    points = Range(low=0.1, high=0.5, step=0.1).points()
    assert points == [0.1, 0.2, 0.3, 0.4, 0.5]
    runs = [make_run("quick", "baseline", 0, (f"optim.weight_decay={value}",)) for value in (0.3, points[2])]
    assert runs[0].fingerprint == runs[1].fingerprint
    assert Range(low=1e-4, high=1e-3, step=3e-4).points() == [0.0001, 0.0004, 0.0007, 0.001]
    assert Range(low=0, high=0.7, step=0.1).points()[-1] == 0.7
    assert Range(low=0, high=1, step=0.3).points() == [0, 0.3, 0.6, 0.9]
    whole = Range(low=25, high=100, step=25).points()
    assert whole == [25, 50, 75, 100] and all(isinstance(point, int) for point in whole)


@pytest.mark.parametrize("kind", ["grid", "random", "tpe"])
def test_every_sampler_gives_the_points_of_a_stepped_range(root: Path, kind: str) -> None:
    tune = {"space": {"optim.weight_decay": {"low": 0.1, "high": 0.5, "step": 0.1}}, "sampler": kind, "trials": 5}
    tuning = opened(root, tune, variants=["baseline"])
    chosen = []
    for trial in tuning.trials()[0]:
        tuning.studies[0].sampler = sampler(tuning.searches[0].tune, trial.number)
        live = optuna.Trial(tuning.studies[0], trial._trial_id)
        chosen.append(suggest(live, tuning.searches[0].tune.space)["optim.weight_decay"])
    assert set(chosen) <= {0.1, 0.2, 0.3, 0.4, 0.5}
    assert [trial.params["optim.weight_decay"] for trial in tuning.outcomes()[0].trials] == chosen
    assert as_declared([0.1], 0.30000000000000004) == 0.30000000000000004  # a list is taken as it is


def test_a_trial_is_anyones_once_its_worker_or_every_sign_of_life_is_gone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = opened(root, {"space": {"optim.lr": [1e-3]}, "sampler": "grid"}, variants=["baseline"])
    tuner = Tuner(tuning, Pool(Slots(1, 1)), 0, Progress(tuning, Console(file=io.StringIO())))
    (waiting,) = tuning.trials()[0]
    assert tuner._is_free(waiting)
    work = tuner._take()
    assert work is not None
    run = RunDirectory(trials.runs_dir() / "tiny" / "run")

    def is_free() -> bool:
        (trial,) = tuning.trials()[0]
        return tuner._is_free(trial)

    work.trial.set_user_attr(WORKER, {"host": "elsewhere", "pid": 1})
    assert not is_free()  # it has only begun
    work.trial.set_user_attr("runs", ["tiny/run"])
    run.path.mkdir(parents=True)
    assert not is_free()
    os.utime(run.path, (0, time.time() - 600))
    assert is_free()
    with new_attempt(run) as attempt:
        write_json(attempt.heartbeat, attempt.owner() | {"host": "elsewhere"})
        os.utime(run.path, (0, time.time() - 600))
        assert not is_free()
        os.utime(attempt.heartbeat, (0, time.time() - 600))
        monkeypatch.setenv(STALE_AFTER, "3600")
        os.utime(run.path)
        assert not is_free()
    monkeypatch.setenv(STALE_AFTER, "90")
    os.utime(run.path)
    work.trial.set_user_attr(WORKER, {"host": os.uname().nodename, "pid": 2**22 + 1})
    write_json(attempt.failure, {"reason": "outside"})
    assert is_free()  # its process is gone from this machine
    work.trial.set_user_attr(WORKER, {"host": os.uname().nodename, "pid": os.getppid()})
    assert not is_free()
    work.trial.set_user_attr(WORKER, {})
    assert is_free()  # it has left the trial


def test_on_slurm_the_workers_are_one_array_and_are_not_submitted_twice(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeSlurm(root / "fake", monkeypatch)
    monkeypatch.setenv(STORAGE, "")
    tuning = opened(root, {"space": {"optim.lr": LR}, "trials": 4})
    profile = ClusterProfile(partition="cpu", gpus_per_device=0, cpus_per_task=3)

    def run() -> None:
        tune_on_cluster(tuning, "mine", profile, 3, 2, Progress(tuning, Console(file=io.StringIO())), detach=True)

    run()
    assert fake.arrays == ["0-2%3"]
    for option in ("partition=cpu", "cpus-per-task=3", "ntasks-per-node=1", "nodes=1"):
        assert f"#SBATCH --{option}\n" in fake.scripts[0]
    (array,) = submissions("mine")[0].arrays()
    folder = work_folder(tuning.study, tuning.storage_name)
    assert array.directories == (folder,) * 3 and os.environ[STORAGE] == tuning.storage_name
    fake.say([f"7_{index}|PENDING|n1|{array.name}" for index in range(3)])
    run()
    assert len(fake.scripts) == 1
    fake.say([f"7_{index}|FAILED|n1|{array.name}" for index in range(3)])
    run()
    assert fake.arrays == ["0-2%3"] * 2


def test_a_job_of_a_worker_ends_with_it_and_is_queued_again_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    log, cancelled = tmp_path / "log", tmp_path / "cancelled"
    job = CommandInJob(["sh", "-c", "echo worked"], 1, log, 3, cancelled)
    assert job() == "done" and log.read_text() == "worked\n"
    again = job.checkpoint()
    assert again is not None and again.function == job  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="tune-worker ended with exit status 3"):
        CommandInJob(["sh", "-c", "exit 3", "tune-worker"], 1, log, 3, cancelled)()
