"""Asking and telling SLURM: what is queued, how large an array may be, cancelling."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
from collections.abc import Iterable
from typing import NamedTuple

from gatebench.errors import UserError

Place = tuple[str, int]
"""Name of a job array, and the index in it."""
ENDED = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED TIMEOUT".split()
)
"""States from which a job does not start again by itself. They say nothing of a run's result."""
DEFAULT_ARRAY_SIZE = 1001
"""SLURM's own default of MaxArraySize."""


class QueuedRun(NamedTuple):
    """One element of a job array, or one job."""

    state: str
    node: str

    @property
    def active(self) -> bool:
        """Whether it waits, runs, or is on its way out."""
        return self.state not in ENDED


def queue() -> dict[Place, QueuedRun] | None:
    """Return this user's jobs by (job name, index in its array), in one call; None where SLURM does not answer."""
    lines = _ask("squeue", "-h", "-r", "-t", "all", "-u", getpass.getuser(), "-o", "%i|%T|%N|%j")
    if lines is None:
        return None
    jobs = {}
    for line in lines:
        job_id, state, node, name = line.split("|", 3)
        jobs[name, int(job_id.partition("_")[2] or 0)] = QueuedRun(state, node)
    return jobs


def job_state(job_id: str) -> str | None:
    """Return the state of one job; None where it is not known."""
    lines = _ask("squeue", "-h", "-j", job_id, "-o", "%T")
    return lines[0] if lines else None


def max_array_size() -> int:
    """Return how many elements the site allows in one job array."""
    limit = re.search(r"^MaxArraySize\s*=\s*(\d+)", "\n".join(_ask("scontrol", "show", "config") or ()), re.MULTILINE)
    return max(1, int(limit[1])) if limit else DEFAULT_ARRAY_SIZE


def cancel(names: Iterable[str]) -> None:
    """Cancel this user's jobs of the given names. Raises UserError where SLURM refuses."""
    for name in names:
        if _ask("scancel", "-u", getpass.getuser(), "-n", name) is None:
            raise UserError("scancel failed: is this a machine from which jobs are submitted?")


def check_available() -> None:
    """Raise UserError where there is no SLURM to submit to."""
    for command in ("sbatch", "squeue", "srun"):
        if shutil.which(command) is None:
            raise UserError(f"--on slurm: no {command} here; legal: a login node of the cluster, or --on local")


def _ask(*command: str) -> list[str] | None:
    """Return the lines of a command's output; None where it fails or does not answer in a minute."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.splitlines()
