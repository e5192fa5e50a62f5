"""What several files of this folder call the command line with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gatebench.cli import main
from tests.cli.commands import Call


@pytest.fixture
def call(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """call(*words): exit status, standard output and standard error of `gatebench words` in the project `root`.

    Each file has a `root` of its own.
    """

    def called(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gatebench", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, output.out, output.err

    return called
