"""A cluster for the session, and a project folder whose runs it trains."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gatebench import paths
from tests.cluster.slurm_cluster import SlurmCluster, why_not
from tests.training.tiny_run import tiny_corpus, tiny_recipe

__all__ = ["tiny_corpus", "tiny_recipe"]

PROFILE = """
partition: low
time_minutes: 15
cpus_per_task: 1
max_requeues: 5
setup: [export MASTER_ADDR=127.0.0.1]
"""


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    """Two nodes of two CPUs and two GPUs, and arrays of a hundred runs at most."""
    if reason := why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="gatebench-slurm-") as folder:
        started = SlurmCluster(Path(folder), max_array_size=100)
        try:
            started.start()
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SLURM_CONF", str(started.config))
                yield started
        finally:
            started.stop()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with a profile of the test's cluster; its runs lie below it."""
    for name in ("ablations", "results", "experiments/clusters"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "results" / "paper").symlink_to(paths.project_root() / "results" / "paper")
    (tmp_path / "experiments" / "clusters" / "default.yaml").write_text(PROFILE, encoding="utf-8")
    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path / "runs"))
    return tmp_path
