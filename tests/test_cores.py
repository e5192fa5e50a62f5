"""How many cores there are to use: what the scheduler allows, and the quota of a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gatebench import cores
from gatebench.cores import available_cores


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),  # docker run --cpus=1
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "9900000 100000\n"}, 8),
        ("0::/pod/box\n", {"pod/cpu.max": "300000 100000\n", "pod/box/cpu.max": "max 100000\n"}, 3),
        ("4:memory:/m\n3:cpu,cpuacct:/docker/1f\n", {"cpu,cpuacct/cpu.cfs_quota_us": "200000\n"}, 2),
        ("3:cpu:/docker/1f\n", {"cpu/docker/1f/cpu.cfs_quota_us": "400000\n"}, 4),
        ("3:cpu:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1\n"}, 8),
        ("3:cpuset:/\n", {"cpuset/cpu.cfs_quota_us": "100000\n"}, 8),
        ("0::/\n", {}, 8),
        (None, {}, 8),
    ],
)
def test_a_quota_of_cpu_time_is_as_good_as_fewer_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "_GROUP", tmp_path / "group")
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "groups")
    if group is not None:
        (tmp_path / "group").write_text(group, encoding="utf-8")
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        if path.name == "cpu.cfs_quota_us":
            path.with_name("cpu.cfs_period_us").write_text("100000\n", encoding="utf-8")
    assert available_cores() == expected
