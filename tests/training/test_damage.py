"""State that is read back is what was written: a flipped byte is never trained on, reported or measured."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path

import pytest
import torch

from gatebench.errors import UserError
from gatebench.evaluation.probes.run_probes import open_run
from gatebench.files import (
    SUMS,
    is_intact,
    publish,
    read_checked,
    read_object,
    remove,
    sealed,
    sha256_of,
    write_sums,
)
from gatebench.training import run as run_module
from gatebench.training.rundir import RunDirectory, write_json
from tests.training.test_resume import Killed, checkpoint_steps, kill_after
from tests.training.tiny_run import RunTiny, assert_same_result

RESULTS = ("config.yaml", "environment.json", "metrics.jsonl", "summary.json")


def flip(path: Path, at: int | None = None, bits: int = 0xFF) -> None:
    """Flip the bits of one byte, that in the middle where no place is given."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= bits
    path.write_bytes(content)


def killed_run(run_tiny: RunTiny, out: Path, monkeypatch: pytest.MonkeyPatch, step: int = 12) -> None:
    """Leave a run that was killed after `step`, with checkpoints at 5 and 10."""
    with monkeypatch.context() as patch:
        kill_after(patch, step)
        with pytest.raises(Killed):
            run_tiny(out)
    assert checkpoint_steps(out) == [10, 5]


def test_sums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "big.new").write_text("weights")
    publish(tmp_path / "big.new", tmp_path / "big")
    write_sums(tmp_path, {"a.json": tmp_path / "a.json", "big": tmp_path / "big", "none": tmp_path / "none"})
    done = subprocess.run(["sha256sum", "-c", SUMS, "big.sha256"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["a.json: OK", "big: OK", "big: OK"]
    assert sha256_of(tmp_path / "a.json") == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    flip(tmp_path / "big")
    flip(tmp_path / "a.json")
    assert not is_intact(tmp_path / "big")
    with pytest.raises(UserError, match=r"a\.json: damaged, its sha256 is not that in SHA256SUMS"):
        read_checked(tmp_path / "a.json")
    remove(tmp_path / "big")
    assert sorted(os.listdir(tmp_path)) == [SUMS, "a.json"]


def test_no_byte_of_a_sealed_object_can_change_unseen(tmp_path: Path) -> None:
    """As benchmarks and long windows are stored, which are measured after a run has its sums."""
    content = {"score": 0.25, "n": 400, "by": {1: 1e-7, 2: None}, "text": "ä"}
    path = tmp_path / "a.json"
    write_json(path, sealed(content))
    whole = read_object(path)
    assert whole == json.loads(json.dumps(content))
    for place in range(path.stat().st_size):
        flip(path, place, 0x01)
        try:
            assert read_object(path).items() >= whole.items(), place  # a blank, or the name of the seal
        except UserError as error:
            assert len(str(error).splitlines()) == 1
        flip(path, place, 0x01)


def test_what_has_no_sum_is_read(tmp_path: Path) -> None:
    """As of a run that an older version made."""
    (tmp_path / "a.json").write_text("{}")
    assert is_intact(tmp_path / "a.json") and read_checked(tmp_path / "a.json") == b"{}"


def test_a_damaged_checkpoint_is_passed_over_by_name(
    run_tiny: RunTiny,
    reference: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """128 flipped bytes in the newest: training goes on from the one before, to the result that nothing disturbed."""
    out = tmp_path / "run"
    killed_run(run_tiny, out, monkeypatch)
    newest = RunDirectory(out).resume_points()[0][1]
    size = newest.stat().st_size
    for place in range(size // 2, size // 2 + 128):
        flip(newest, place)
    run_tiny(out)
    assert f"{newest.name}: cannot be read (damaged: its sha256 is another one); going back" in capsys.readouterr().err
    assert_same_result(out, reference)


@pytest.mark.parametrize("with_sum", [False, True])
def test_a_checkpoint_runs_no_code(
    run_tiny: RunTiny, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_sum: bool
) -> None:
    """A pickle that calls something, in place of the newest checkpoint of a folder that somebody else made."""
    out = tmp_path / "run"
    killed_run(run_tiny, out, monkeypatch)
    newest = RunDirectory(out).resume_points()[0][1]

    class Call:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "called"),)

    content = torch.load(newest, weights_only=True)
    torch.save({**content, "loops": Call()}, newest, pickle_module=pickle)
    if with_sum:
        newest.rename(tmp_path / "theirs")
        publish(tmp_path / "theirs", newest)
    else:
        newest.with_name(f"{newest.name}.sha256").unlink()
    run_tiny(out)
    assert not (tmp_path / "called").exists()
    assert_same_result(out, reference)


def test_damaged_weights_of_an_unfinished_run_are_made_again(
    run_tiny: RunTiny, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def dying(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "run_summary", dying)
        with pytest.raises(Killed):
            run_tiny(out)
    flip(RunDirectory(out).weights)
    run_tiny(out)
    assert_same_result(out, reference)


@pytest.mark.parametrize("name", RESULTS)
def test_a_damaged_result_is_refused(run_tiny: RunTiny, tmp_path: Path, name: str) -> None:
    run_tiny(tmp_path / "run")
    flip(tmp_path / "run" / name)
    directory = RunDirectory(tmp_path / "run")
    reads = {
        "config.yaml": directory.read_config,
        "environment.json": directory.places,
        "metrics.jsonl": directory.metrics_rows,
        "summary.json": directory.result,
    }
    with pytest.raises(UserError, match=rf"{name}: damaged, its sha256 is not that in SHA256SUMS; restore it"):
        reads[name]()


def test_damaged_weights_are_not_measured(run_tiny: RunTiny, tmp_path: Path) -> None:
    run_tiny(tmp_path / "run")
    flip(RunDirectory(tmp_path / "run").weights)
    with pytest.raises(UserError, match=r"model\.safetensors: damaged, its sha256 is not that in model\.safetensors\."):
        open_run(tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b'{"attempts": 3}'])
def test_what_cannot_be_read_is_one_line(tmp_path: Path, content: bytes) -> None:
    """Without sums, too."""
    directory = RunDirectory(tmp_path)
    directory.environment.write_bytes(content)
    directory.summary.write_bytes(content)
    with pytest.raises(UserError, match=r"environment\.json: .*; restore it, or delete it and run again"):
        directory.places()
    if content[:1] != b"{":
        with pytest.raises(UserError, match=r"summary\.json: .*; restore it, or delete it and run again"):
            directory.result()
