"""How many CPU cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Return the cores that this process may run on, or fewer where its container has a quota of their time.

    A quota of 2.5 cores is two: of three busy threads one would always wait. Never less than one.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cores, *map(int, _quotas())]))


def _quotas() -> list[float]:
    """Return the limits, in cores, of the control groups that this process is in (Linux; versions 1 and 2)."""
    try:
        lines = _GROUP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = Path(path.lstrip("/"))
        # the groups above count too, and a container sees its own group as the top one, whatever its path says
        for folder in (group, *group.parents):
            if (quota := _quota(_GROUPS / controllers / folder)) is not None:
                quotas.append(quota)
    return quotas


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            limit, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        else:
            limit = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8")
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8")
        return int(limit) / int(period) if int(limit) > 0 else None  # version 1 writes -1 for no limit
    except (OSError, ValueError):  # no such file, or the word "max"
        return None
