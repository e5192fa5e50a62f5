"""A copy of the code for runs that wait in a queue, so that edits made meanwhile do not reach them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import gatebench
from gatebench.training.hardware import SNAPSHOT, git_state
from gatebench.training.rundir import write_json

_PACKAGE = Path(gatebench.__file__).resolve().parent


def take(folder: Path) -> Path:
    """Copy the package as it stands, edits and new files included, to `folder/code`; return that.

    `snapshot.json` beside it has the commit, which the runs record as theirs.
    """
    code = folder / "code"
    for path in package_files():
        target = code / "gatebench" / path.relative_to(_PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    commit, dirty = git_state()
    write_json(code / SNAPSHOT, {"git_commit": commit, "git_dirty": dirty})
    return code


def package_files() -> list[Path]:
    """Return the package's files: those that git tracks or does not ignore; all but caches outside a checkout."""
    command = ["git", "-C", str(_PACKAGE), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "."]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        listed = ""
    paths = [_PACKAGE / name for name in listed.split("\0") if name]
    paths = paths or [path for path in _PACKAGE.rglob("*") if "__pycache__" not in path.parts]
    return sorted(path for path in paths if path.is_file())
