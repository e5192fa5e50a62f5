"""The `tune:` section, leases, and what is submitted to SLURM: nothing here trains."""

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
from gatebench.sweep.profiles import ClusterProfile
from gatebench.sweep.study import Study, load_study
from gatebench.sweep.submissions import submissions
from gatebench.sweep.tuning import cluster
from gatebench.sweep.tuning.lease import Lease, claim, newest
from gatebench.sweep.tuning.outcome import outcomes
from gatebench.sweep.tuning.prepare import prepare
from gatebench.sweep.tuning.progress import Progress
from gatebench.sweep.tuning.search import STORAGE, open_storage, sampler, searches, with_trials
from gatebench.sweep.tuning.space import suggest
from gatebench.sweep.tuning.worker import Options, Tuning, open_tuning
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
    tuning = open_tuning(study(root, tune, **more), Options(str(root / "journal.log"), 2, 90.0))
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
    (found,) = outcomes(tuning)
    assert found.best is None and [trial.status for trial in found.trials] == ["diverged", "waiting"]
    tuning.storage.set_trial_state_values(second, TrialState.COMPLETE, [3.0])
    (found,) = outcomes(tuning)
    assert found.best is not None and (found.best.number, found.best.value) == (1, 3.0)


def test_a_lease_has_one_holder_until_it_is_released_or_stale(tmp_path: Path) -> None:
    first = claim(tmp_path / "0", 60.0)
    assert first is not None and first.is_alive() and claim(tmp_path / "0", 60.0) is None
    with first.held():
        assert first.is_current()
    second = claim(tmp_path / "0", 60.0)
    assert second is not None and second.number == 2 and not first.is_current()
    os.utime(second.path, (0, time.time() - 61))
    third = claim(tmp_path / "0", 60.0)
    assert third is not None and third.number == 3 and not second.is_current() and third.is_current()
    third.path.write_text('{"host": "elsewhere", "pid": 0}')
    assert claim(tmp_path / "0", 60.0) is None
    assert isinstance(found := newest(tmp_path / "0", 60.0), Lease) and found.number == 3


def test_a_beat_keeps_a_lease(tmp_path: Path) -> None:
    lease = claim(tmp_path / "0", 0.9)
    assert lease is not None
    with lease.held():
        os.utime(lease.path, (0, 0))
        deadline = time.monotonic() + 30
        while not lease.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert lease.is_alive()


def test_on_slurm_the_workers_are_one_array_and_are_not_submitted_twice(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeSlurm(root / "fake", monkeypatch)
    monkeypatch.setenv(STORAGE, "")
    tuning = opened(root, {"space": {"optim.lr": LR}, "trials": 4})
    profile = ClusterProfile(partition="cpu", gpus_per_device=0, cpus_per_task=3)

    def run() -> None:
        cluster.run(tuning, "mine", profile, 3, Progress(tuning, Console(file=io.StringIO())), detach=True)

    run()
    assert fake.arrays == ["0-2%3"]
    for option in ("partition=cpu", "cpus-per-task=3", "ntasks-per-node=1", "nodes=1"):
        assert f"#SBATCH --{option}\n" in fake.scripts[0]
    (array,) = submissions("mine")[0].arrays()
    assert array.directories == (tuning.folder,) * 3 and os.environ[STORAGE] == tuning.options.storage
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
    job = cluster.WorkInJob(("sh", "-c", "echo worked"), 1, tmp_path / "log", 3, tmp_path / "cancelled")
    assert job() == "done" and (tmp_path / "log").read_text() == "worked\n"
    again = job.checkpoint()
    assert again is not None and again.function == job  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="the worker ended with exit status 3"):
        cluster.WorkInJob(("sh", "-c", "exit 3"), 1, tmp_path / "log", 3, tmp_path / "cancelled")()
