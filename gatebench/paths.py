"""Where things live on disk. Everything else asks here."""

from __future__ import annotations

import os
from pathlib import Path


def project_root() -> Path:
    """Return the folder that holds `experiments/`, `ablations/` and `results/`.

    `GATEBENCH_ROOT` when set, else the checkout that this package is installed from, else the working directory.
    """
    if root := os.environ.get("GATEBENCH_ROOT"):
        return Path(root).resolve()
    checkout = Path(__file__).resolve().parent.parent
    return checkout if (checkout / "experiments").is_dir() else Path.cwd()


def cache_dir() -> Path:
    """Return the folder for fetched wheels and built corpora: `GATEBENCH_CACHE`, else `~/.cache/gatebench`."""
    if cache := os.environ.get("GATEBENCH_CACHE"):
        return Path(cache).expanduser().resolve()
    return Path.home() / ".cache" / "gatebench"


def runs_dir() -> Path:
    """Return the folder of run directories: `GATEBENCH_RUNS`, else `results/runs` below the project root."""
    if runs := os.environ.get("GATEBENCH_RUNS"):
        return Path(runs).expanduser().resolve()
    return project_root() / "results" / "runs"
