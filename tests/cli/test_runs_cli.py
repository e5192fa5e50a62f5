"""`gatebench status`, `logs`, `clean`, `cancel` and `train --resume`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gatebench.recipes import make_run
from gatebench.sweep.plan import plan
from gatebench.sweep.study import load_study
from gatebench.sweep.submissions import new_submission
from gatebench.training.attempt import new_attempt
from gatebench.training.rundir import RunDirectory
from tests.cli.commands import Call
from tests.training.tiny_run import tiny_corpus, tiny_recipe

__all__ = ["tiny_corpus", "tiny_recipe"]


@pytest.fixture
def root(tmp_path: Path, tiny_recipe: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ablations").mkdir()
    text = f"recipe: {tiny_recipe}\nvariants: [g1_headwise]\nseeds: 2\n"
    (tmp_path / "ablations" / "mine.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("PATH", "")  # no scheduler here
    return tmp_path


@pytest.fixture
def runs(root: Path) -> list[RunDirectory]:
    """The four runs: one done, one failed by its own error, one that was ended from outside, one not there."""
    planned = plan(load_study("mine"))
    directories = [RunDirectory(run.directory) for run in planned if run.directory is not None]
    for directory, run, end in zip(directories, planned, ("done", "own", "outside"), strict=False):
        directory.claim(run.config)
        directory.log.write_text(f"step 20/20\n{end}\n", encoding="utf-8")
        with new_attempt(directory) as attempt:
            if end == "done":
                attempt.publish({"status": "done"})
            else:
                attempt.record_failure(end, f"ended: {end}")  # type: ignore[arg-type]
    return directories


def test_status_counts_all_and_shows_what_needs_a_look(call: Call, runs: list[RunDirectory]) -> None:
    status, out, _ = call("status", "mine")
    assert status == 0 and "4 runs: 1 done, 2 failed, 1 missing." in out
    assert "failed (own error)" in out and "ended: own" in out and "failed (from outside)" in out
    status, out, _ = call("status", "mine", "--json")
    content = json.loads(out)
    assert content["counts"] == {"done": 1, "diverged": 0, "running": 0, "stale": 0, "failed": 2, "missing": 1}
    assert [run["standing"] for run in content["runs"]] == ["done", "failed", "failed", "missing"]
    assert content["runs"][1]["reason"] == "own" and content["runs"][0]["directory"] == str(runs[0].path)


def test_logs_finds_a_run_by_a_part_of_its_name(call: Call, runs: list[RunDirectory]) -> None:
    assert call("logs", runs[0].name) == (0, "step 20/20\ndone\n", "")
    assert call("logs", str(runs[1].path), "-n", "1") == (0, "own\n", "")
    assert call("logs", "baseline-s0", "-f") == (0, "step 20/20\ndone\n", "")  # done: there is nothing to follow
    status, _, err = call("logs", "baseline")
    assert status == 2 and "2 runs have that in their name" in err and err.count("\n") == 1
    status, _, err = call("logs", "nothing")
    assert status == 2 and "run 'nothing': not found below" in err


def test_clean_asks_and_never_takes_a_finished_run_unless_told(
    call: Call, runs: list[RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    submission = new_submission("mine")
    submission.add([runs[2].path])
    monkeypatch.setattr("sys.stdin", open("/dev/null", encoding="utf-8"))  # noqa: SIM115
    status, _, err = call("clean", "mine")
    assert (
        status == 2
        and "remove these 2 folders, 0.0 MB? There is no terminal to ask at" in err
        and str(runs[1].path) in err
        and all(run.path.exists() for run in runs[:3])
    )
    status, _, err = call("clean", "mine", "--yes")
    assert status == 0 and "removed 2 folders" in err
    assert [run.path.exists() for run in runs] == [True, False, False, False]
    assert submission.path.exists()  # whether its jobs are queued cannot be asked here
    submission.cancelled.touch()
    assert call("clean", "--older", "1", "--yes") == (0, "", "nothing to remove\n")
    assert call("clean", "--older", "0", "--yes")[0] == 0 and not submission.path.exists()
    assert runs[0].path.exists()
    assert call("clean", "mine", "--done", "--yes")[0] == 0 and not runs[0].path.exists()


def test_clean_leaves_a_run_that_is_going_on(call: Call, runs: list[RunDirectory]) -> None:
    with new_attempt(runs[2]) as attempt:
        owner = json.loads(attempt.heartbeat.read_text(encoding="utf-8"))
        attempt.heartbeat.write_text(json.dumps(owner | {"host": "elsewhere"}), encoding="utf-8")
        assert call("clean", "mine", "--done", "--yes")[0] == 0
        assert [run.path.exists() for run in runs] == [False, False, True, False]
        assert "1 running" in call("status", "mine")[1]


@pytest.mark.parametrize(
    ("words", "message"), [((), "legal: the name of a study"), (("mine", "--older", "3"), "say what")]
)
def test_clean_wants_to_know_what(call: Call, words: tuple[str, ...], message: str) -> None:
    status, _, err = call("clean", *words)
    assert status == 2 and message in err


def test_cancel_without_anything_to_cancel_says_so(call: Call, runs: list[RunDirectory]) -> None:
    assert call("cancel", "mine") == (0, "", "mine: 0 jobs cancelled, no sweep here\n")


def test_a_run_goes_on_by_its_directory_whatever_the_recipe_says_now(
    call: Call, root: Path, tiny_recipe: str, tmp_path: Path
) -> None:
    changed = tmp_path / "tiny.yaml"
    changed.write_text(Path(tiny_recipe).read_text(encoding="utf-8"), encoding="utf-8")
    directory = RunDirectory(tmp_path / "run")
    directory.claim(
        make_run(str(changed), "g1_headwise", 0).model_copy(update={"corpus_fingerprint": _fingerprint(changed)})
    )
    changed.write_text("description: edited meanwhile\n", encoding="utf-8")
    status, out, _ = call("train", "--resume", str(directory.path), "--threads", "1", "--json")
    assert status == 0 and json.loads(out)["variant"] == "g1_headwise" and directory.is_done()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--resume", "nowhere"), "--resume nowhere: holds no config.yaml"),
        (("--resume", "x", "--variant", "baseline"), "says what to train and where"),
        ((), "--variant is missing"),
    ],
)
def test_what_train_cannot_make_sense_of_is_one_line(call: Call, words: tuple[str, ...], message: str) -> None:
    status, _, err = call("train", *words)
    assert status == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--profile", "cpu"), "--profile: goes with --on slurm"),
        (("--detach",), "--detach: goes with --on slurm"),
        (("--gpus-per-run", "0"), "--gpus-per-run=0: must be above 0"),
        (("--on", "slurm", "--profile", "nowhere"), "--profile nowhere: not found"),
        (("--on", "slurm"), "not found"),
    ],
)
def test_options_of_a_sweep_that_do_not_go_together(call: Call, words: tuple[str, ...], message: str) -> None:
    status, _, err = call("sweep", "mine", *words)
    assert status == 2 and message in err and err.count("\n") == 1


def _fingerprint(recipe: Path) -> str:
    from gatebench.data.reading import open_data
    from gatebench.recipes import load_recipe

    return open_data(load_recipe(str(recipe)).data).fingerprint
