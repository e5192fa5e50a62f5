"""Commands named as SLURM's that write down what they are asked, and answer from a file: no job ever runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

_COMMANDS = {
    "sbatch": 'n=$(ls "$FAKE" | grep -c sbatch); cp "$1" "$FAKE/$n.sbatch"; echo "Submitted batch job $((n + 1))"',
    "squeue": 'cat "$FAKE/queue"',
    "scontrol": 'echo "MaxArraySize            = 100"',
    "scancel": 'echo "$@" >> "$FAKE/scancel"',
    "srun": "exit 1",
}


class FakeSlurm:
    """What was submitted, and what squeue says."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        for name, script in _COMMANDS.items():
            path = folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            path.chmod(0o755)
        patch.setenv("FAKE", str(folder))
        patch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        self.say([])

    def say(self, lines: list[str]) -> None:
        """Set what squeue prints."""
        (self.folder / "queue").write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    @property
    def scripts(self) -> list[str]:
        """The scripts that were submitted, in order."""
        paths = sorted(self.folder.glob("*.sbatch"), key=lambda path: int(path.stem))
        return [path.read_text(encoding="utf-8") for path in paths]

    @property
    def arrays(self) -> list[str]:
        """The --array of each script that has one."""
        return [word for script in self.scripts for word in re.findall(r"^#SBATCH --array=(\S+)", script, re.MULTILINE)]
