"""The run directory: status from files alone, atomic writes, who may write."""

from __future__ import annotations

import errno
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from gatebench.errors import UserError
from gatebench.training.rundir import RunDirectory, RunLog, disk_full_is_a_user_error, write_json
from gatebench.training.summary import curve_hash
from tests.training.tiny_run import tiny_config


def test_resume_points_are_newest_first_and_nothing_else(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.checkpoints.mkdir()
    for name in (
        "step_0000005.ckpt",
        "step_0000020.ckpt",
        "step_0000100.ckpt",
        "step_0000200.tmp",
        "model.safetensors",
    ):
        (directory.checkpoints / name).touch()
    assert [step for step, _ in directory.resume_points()] == [100, 20, 5]


def test_metrics_stop_at_the_first_line_that_is_cut(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert directory.metrics_rows() == []
    directory.metrics.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st', encoding="utf-8")
    assert [row["step"] for row in directory.metrics_rows()] == [1, 2, 3]
    directory.keep_metrics(2)
    assert directory.metrics.read_text(encoding="utf-8") == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_that_others_cannot_read_is_not_written(tmp_path: Path, value: float) -> None:
    path = tmp_path / "summary.json"
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"avg_ppl": value})
    assert not list(tmp_path.iterdir())


def test_a_directory_is_claimed_once_and_again_by_the_same_config(tmp_path: Path, tiny_recipe: str) -> None:
    directory, config = RunDirectory(tmp_path / "a" / "b"), tiny_config(tiny_recipe)
    directory.claim(config)
    directory.claim(config)
    assert sorted(path.name for path in directory.path.iterdir()) == ["config.yaml"]
    directory.claim(tiny_config(tiny_recipe, "train.loggers=[csv]", "train.log_every=1"))  # decides no number
    with pytest.raises(
        UserError, match=r"holds another config, seed: 0 -> 1; legal: the same config, or another --out"
    ):
        directory.claim(tiny_config(tiny_recipe, seed=1))


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path, tiny_recipe: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be made \(Not a directory\)"):
        RunDirectory(tmp_path / "file" / "run").claim(tiny_config(tiny_recipe))


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (RuntimeError("[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file"), True),
        (RuntimeError("I/O error: No space left on device (os error 28)"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_only_a_full_disk_is_called_one(tmp_path: Path, error: Exception, full: bool) -> None:
    with pytest.raises(UserError if full else type(error)) as raised, disk_full_is_a_user_error(RunDirectory(tmp_path)):
        raise error
    assert ("no space left to write (no checkpoint was written yet)" in str(raised.value)) == full


def test_the_log_holds_each_line_once_even_where_it_is_standard_error(tmp_path: Path) -> None:
    """`gatebench ablation` sends a run's standard error to its log."""
    program = "import sys; from pathlib import Path; from gatebench.training.rundir import RunDirectory, RunLog\n"
    program += "log = RunLog(RunDirectory(Path(sys.argv[1]))); log('shown'); log('hidden', show=False)"
    with open(tmp_path / "log.txt", "ab") as log:
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], stderr=log, check=True, timeout=60)
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == "shown\nhidden\n"


def test_the_log_keeps_what_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = RunLog(RunDirectory(tmp_path))
    log("shown")
    log("hidden", show=False)
    assert capsys.readouterr().err == "shown\n"
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == "shown\nhidden\n"


def test_curve_hashes_are_equal_only_for_equal_losses() -> None:
    assert curve_hash([6.0, 5.5]) == curve_hash([6.0, 5.5])
    assert curve_hash([6.0, 5.5]) != curve_hash([6.0, math.nextafter(5.5, 6)])
    assert curve_hash([6.0, None]) != curve_hash([6.0])
    assert json.dumps(curve_hash([])) == '"e3b0c44298fc1c14"'
