"""What is submitted to SLURM, and what is made of its answers. The scheduler is pretended; tests/cluster has one."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from gatebench.errors import UserError
from gatebench.sweep import slurm, squeue
from gatebench.sweep.job import Job
from gatebench.sweep.profiles import ClusterProfile, load_profile, profile_names
from gatebench.sweep.slurm import RunInJob
from gatebench.sweep.snapshot import package_files, take
from gatebench.sweep.study import Study
from gatebench.sweep.submissions import new_submission, submissions
from gatebench.training.attempt import new_attempt
from gatebench.training.rundir import RunDirectory
from tests.sweep.fake_slurm import FakeSlurm
from tests.training.tiny_run import tiny_config


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(slurm, "POLL_S", 0.01)
    return FakeSlurm(tmp_path / "fake", monkeypatch)


def study(recipe: str, n_seeds: int, *settings: str) -> Study:
    made = Study(recipe=recipe, variants=["g1_headwise", "g1_elementwise"], seeds=list(range(n_seeds)))
    made._name = "mine"
    return made.changed(settings=list(settings))


def submitted(
    recipe: str, n_seeds: int, *settings: str, profile: ClusterProfile | None = None, **options: object
) -> None:
    console = Console(file=io.StringIO())
    slurm.train_on_cluster(
        study(recipe, n_seeds, *settings), console, profile or ClusterProfile(), detach=True, **options
    )  # type: ignore[arg-type]


def queue_lines(states: Sequence[str]) -> list[str]:
    """What squeue would say of the elements of the newest submission, in order."""
    array = submissions("mine")[-1].arrays()[-1]
    return [f"7_{index}|{state}|n1|{array.name}" for index, state in enumerate(states)]


def test_105_runs_at_a_limit_of_100_are_two_arrays_with_each_run_once(fake: FakeSlurm, tiny_recipe: str) -> None:
    submitted(tiny_recipe, 35)
    assert fake.arrays == ["0-99%100", "0-4%5"]
    (submission,) = submissions("mine")
    directories = [path for array in submission.arrays() for path in array.directories]
    assert [len(array.directories) for array in submission.arrays()] == [100, 5] and len(set(directories)) == 105
    assert all((path / "config.yaml").is_file() for path in directories)


def test_no_more_than_max_parallel_go_at_once_over_all_arrays(fake: FakeSlurm, tiny_recipe: str) -> None:
    submitted(tiny_recipe, 35, max_parallel=8)
    assert fake.arrays == ["0-99%8", "0-4%5"]
    assert "--dependency" not in fake.scripts[0] and "#SBATCH --dependency=afterany:1\n" in fake.scripts[1]


def test_what_is_queued_is_not_submitted_again_and_what_is_done_never(fake: FakeSlurm, tiny_recipe: str) -> None:
    submitted(tiny_recipe, 1)
    fake.say(queue_lines(["RUNNING", "PENDING", "COMPLETED"]))
    submitted(tiny_recipe, 1)
    assert fake.arrays == ["0-2%3"] and len(fake.scripts) == 2 and "--array" not in fake.scripts[1]
    for array in submissions("mine")[0].arrays():
        for directory in array.directories:
            (directory / "summary.json").write_text('{"status": "done"}', encoding="utf-8")
    fake.say([])
    submitted(tiny_recipe, 1)
    assert len(fake.scripts) == 2


def test_the_script_says_what_the_profile_says(fake: FakeSlurm, tiny_recipe: str) -> None:
    profile = ClusterProfile(
        partition="gpu",
        account="lab",
        qos="low",
        constraint="h100",
        time_minutes=90,
        cpus_per_task=3,
        mem_gb=1.5,
        setup=["module load cuda"],
        extra={"reservation": "night"},
    )
    settings = ("train.devices=2", "train.num_nodes=2", "train.batch_size=8", "train.strategy=ddp")
    submitted(tiny_recipe, 1, *settings, profile=profile)
    (script,) = fake.scripts
    for option in (
        *("partition=gpu", "account=lab", "qos=low", "constraint=h100", "time=90", "cpus-per-task=3", "mem=1536M"),
        *("nodes=2", "ntasks-per-node=2", "gpus-per-node=2", "reservation=night", "requeue", "signal=USR2@90"),
    ):
        assert f"#SBATCH --{option}\n" in script, option
    assert "module load cuda\n" in script and "--kill-on-bad-exit=1" in script and "wckey" not in script
    code = submissions("mine")[0].path / "code"
    assert f"export PYTHONPATH={code}" in script and "export PYTHONSAFEPATH=1" in script
    assert (code / "gatebench" / "sweep" / "slurm.py").is_file()


@pytest.mark.parametrize(("gpus", "legal"), [(0.5, "legal: 1 or more"), (1.5, "legal: 1 or more")])
def test_slurm_gives_whole_gpus(fake: FakeSlurm, tiny_recipe: str, gpus: float, legal: str) -> None:
    with pytest.raises(UserError, match=f"SLURM gives whole GPUs; {legal}"):
        submitted(tiny_recipe, 1, gpus_per_run=gpus)
    assert fake.scripts == []


def test_a_run_that_left_the_queue_without_a_result_waits_for_the_next_sweep(fake: FakeSlurm, tiny_recipe: str) -> None:
    """The queue knows of no job: every one was lost. SLURM requeues, or the user; nothing here submits by itself."""
    text = io.StringIO()
    for n_sweeps in (1, 2):
        _, left = slurm.train_on_cluster(study(tiny_recipe, 1), Console(file=text, width=200), ClusterProfile())
        assert fake.arrays == ["0-2%3"] * n_sweeps and len(submissions("mine")) == n_sweeps
        assert [job.name for job in left] == ["baseline seed 0", "g1_headwise seed 0", "g1_elementwise seed 0"]
        assert [job.state for job in left] == ["failed"] * 3
    assert text.getvalue().count("failed: no message") == 6


def test_what_sbatch_refuses_is_one_line_with_its_reason(
    fake: FakeSlurm, tiny_recipe: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sbatch = fake.folder / "bin" / "sbatch"
    reason = "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
    sbatch.write_text(f'#!/bin/sh\necho "{reason}" >&2\nexit 1\n', encoding="utf-8")
    with pytest.raises(UserError, match=f"sbatch refused: {reason}; legal: what this site allows") as refused:
        submitted(tiny_recipe, 1)
    assert "\n" not in str(refused.value) and capsys.readouterr().err == ""
    sbatch.write_text("#!/bin/sh\necho queued\n", encoding="utf-8")
    with pytest.raises(UserError, match="sbatch refused: Could not make sense of sbatch output"):
        submitted(tiny_recipe, 1)


def test_an_error_of_the_run_is_not_submitted_again_unless_asked(fake: FakeSlurm, tiny_recipe: str) -> None:
    submitted(tiny_recipe, 1)
    for array in submissions("mine")[0].arrays():
        for directory in array.directories:
            with new_attempt(RunDirectory(directory)) as attempt:
                attempt.record_failure("own", "ZeroDivisionError: no tokens")
    _, left = slurm.train_on_cluster(study(tiny_recipe, 1), Console(file=io.StringIO()), ClusterProfile())
    assert len(fake.scripts) == 1 and [job.state for job in left] == ["failed"] * 3
    submitted(tiny_recipe, 1, retry_failed=True)
    assert len(fake.scripts) == 2


def test_a_cancelled_job_is_not_submitted_again(fake: FakeSlurm, tiny_recipe: str) -> None:
    submitted(tiny_recipe, 1)
    jobs = [
        Job(tiny_config(tiny_recipe, variant=path.name.partition("-s0")[0]), path, starts=1)
        for path in submissions("mine")[0].arrays()[0].directories
    ]
    fake.say(queue_lines(["CANCELLED", "CANCELLED", "CANCELLED"]))
    (array,) = submissions("mine")[0].arrays()
    table = slurm.StatusTable(jobs, Console(file=io.StringIO()))
    slurm.wait({(array.name, index): job for index, job in enumerate(jobs)}, table)
    assert [job.state for job in jobs] == ["failed"] * 3 and len(fake.scripts) == 1


def test_the_queue_is_read_by_name_and_index(fake: FakeSlurm) -> None:
    fake.say(["7_0|RUNNING|n[1-2]|a", "7_12|COMPLETING|n1|a", "9|TIMEOUT||b"])
    assert squeue.queue() == {
        ("a", 0): ("RUNNING", "n[1-2]"),
        ("a", 12): ("COMPLETING", "n1"),
        ("b", 0): ("TIMEOUT", ""),
    }
    assert [queued.active for queued in (squeue.queue() or {}).values()] == [True, True, False]
    assert squeue.max_array_size() == 100
    squeue.cancel(["a", "b"])
    asked = (fake.folder / "scancel").read_text(encoding="utf-8").splitlines()
    assert [line.partition(" -n ")[2] for line in asked] == ["a", "b"]


def test_where_there_is_no_slurm_one_line_says_so(tiny_recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        UserError, match="--on slurm: no sbatch here; legal: a login node of the cluster, or --on local"
    ):
        submitted(tiny_recipe, 1)


def test_a_job_asks_for_no_requeue_once_cancelled_or_after_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = RunInJob.of(tmp_path, 1, 3, tmp_path / "cancelled")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert job.checkpoint() is not None
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    assert job.checkpoint() is None
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    (tmp_path / "cancelled").touch()
    assert job.checkpoint() is None


def test_a_job_takes_its_run_over_and_says_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = RunInJob.of(tmp_path, 2, 3, tmp_path / "cancelled")
    assert job.command[1:] == ["-m", "gatebench", "train", "--resume", str(tmp_path), "--threads", "2", "--takeover"]
    job.command = ["sh", "-c", "echo no tokens; exit 1"]
    with pytest.raises(RuntimeError, match="ended with exit status 1: no tokens"):
        job()
    job.command = ["sh", "-c", f"echo '{{}}' > {tmp_path}/summary.json; exit 1"]
    assert job() == "done"


def test_a_snapshot_has_every_file_of_the_package_and_its_commit(tmp_path: Path) -> None:
    code = take(tmp_path)
    copied = {str(path.relative_to(code / "gatebench")) for path in (code / "gatebench").rglob("*") if path.is_file()}
    assert {"__main__.py", "sweep/snapshot.py", "training/attempt.py"} <= copied and len(copied) == len(package_files())
    assert set(json.loads((code / "snapshot.json").read_text(encoding="utf-8"))) == {"git_commit", "git_dirty"}


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_reads(name: str) -> None:
    assert len(load_profile(name).description) > 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partitoin: gpu\n", "key 'partitoin' is unknown; did you mean partition"),
        ("time_minutes: 0\n", "time_minutes=0"),
        ("[gpu]\n", "must be a mapping of description, partition"),
    ],
)
def test_a_mistake_in_a_profile_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as refused:
        load_profile(str(path))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_submissions_of_one_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path))
    assert len({new_submission("mine").path for _ in range(5)}) == 5
