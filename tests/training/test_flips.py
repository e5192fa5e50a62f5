"""A byte flipped at a random place of each file of a run, and each command after it: the right result, or one line."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gatebench import hf
from gatebench.errors import UserError
from gatebench.evaluation.probes.run_probes import Request, open_run, run_probes
from gatebench.hf.card import run_card
from gatebench.report.read import probe_files, results
from gatebench.sweep.status import run_status
from gatebench.training.rundir import RunDirectory
from tests.training.test_damage import killed_run
from tests.training.tiny_run import RunTiny, assert_same_result

FLIPS, RESUMED_FLIPS = 200, 40


def files_of(run: Path) -> list[Path]:
    """Every file of a run, by what it is called there; what a link shows is counted once."""
    return sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink() and path.stat().st_size)


def flip_one(path: Path, chance: random.Random) -> Callable[[], None]:
    """Change one byte, in one bit or in all; return what puts it back, with the file's times, which caches go by."""
    content = path.read_bytes()
    changed = bytearray(content)
    changed[chance.randrange(len(changed))] ^= chance.choice((1, 2, 4, 16, 0xFF))
    path.write_bytes(changed)
    return lambda: (path.write_bytes(content), None)[1]


def plain(value: Any) -> Any:
    """What was read, as something that `==` compares, NaN equal to itself."""
    if isinstance(value, pd.DataFrame):
        return value.to_csv(float_format="%.17g")
    return repr(value)


def probed(run: Path) -> Any:
    """What `gatebench probe` left, as it is read for tables and figures."""
    found = probe_files.load(run)
    return found.summary, {name: array.tolist() for name, array in found.arrays.items()}


@pytest.mark.slow
def test_a_flipped_byte_of_a_finished_run_is_never_a_number(run_tiny: RunTiny, tmp_path: Path) -> None:
    """200 flips over all its files, a command each: never another number, never another exception."""
    run = tmp_path / "runs" / "tiny" / "run"
    run_tiny(run)

    def export() -> Any:
        to = tmp_path / "exported"
        shutil.rmtree(to, ignore_errors=True)
        model, tokenizer = hf.load(run)
        hf.export(model, tokenizer, to, card=run_card(run, "gatebench"))
        return {path.name: path.read_bytes() for path in sorted(to.iterdir())}

    commands: dict[str, Callable[[], Any]] = {
        "train": lambda: run_tiny(run),
        "status": lambda: run_status(run, 20),
        "results": lambda: results.load(tmp_path / "runs"),
        "curves": lambda: results.load_curves([run]),
        "read probes": lambda: probed(run),
        "probe": lambda: {k: v for k, v in run_probes(open_run(run), Request(tokens=64)).items() if k != "context"},
        "export": export,
    }
    commands["probe"]()
    right = {name: plain(command()) for name, command in commands.items()}
    chance, said = random.Random(20261201), 0
    before = {path: path.read_bytes() for path in files_of(run)}
    names = list(commands)
    for number in range(FLIPS):
        path = list(before)[number % len(before)]
        # a file meets another command each time that it is flipped
        name = names[(number // len(before) + number) % len(names)]
        restore = flip_one(path, chance)
        try:
            found = plain(commands[name]())
        except UserError as error:
            said += 1
            assert len(str(error).splitlines()) == 1, f"{path}: {error!r}"
            assert run.name in str(error) or "exported" in str(error), f"{path}: {error!r}"
        else:
            assert found == right[name], f"{name} with a byte of {path.relative_to(run)} flipped"
        restore()
        for other, content in before.items():  # `probe` writes its folder
            other.write_bytes(content)
    assert said > FLIPS / 16, "hardly a flip was met: nothing is checked"
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_a_flipped_byte_of_an_unfinished_run_changes_no_result(
    run_tiny: RunTiny, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 flips over what a kill after step 12 left: the run goes on to the undisturbed result, or says why not."""
    killed = tmp_path / "killed"
    killed_run(run_tiny, killed, monkeypatch)
    chance, resumed = random.Random(7), 0
    for number in range(RESUMED_FLIPS):
        run = tmp_path / "again" / "run"
        shutil.copytree(killed, run, symlinks=True)
        paths = files_of(run)
        path = paths[number % len(paths)]
        flip_one(path, chance)
        try:
            run_tiny(run)
        except UserError as error:
            assert len(str(error).splitlines()) == 1, f"{path}: {error!r}"
            assert run.name in str(error), f"{path}: {error!r}"
        else:
            resumed += 1
            assert_same_result(run, reference)
        shutil.rmtree(tmp_path / "again")
    assert resumed > RESUMED_FLIPS / 2
    assert RunDirectory(killed).result() is None
