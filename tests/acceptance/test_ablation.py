"""The main job: `gatebench ablation` in a folder of its own, from nothing to the table and its files, and again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gatebench.cli import main
from gatebench.paths import project_root
from gatebench.sweep import pool

Ablation = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: str) -> Path:
    """A project folder with one recipe, the paper's tables, and nothing else."""
    root = tmp_path_factory.mktemp("project")
    (root / "experiments").mkdir()
    shutil.copy(tiny_recipe, root / "experiments" / "tiny.yaml")
    shutil.copytree(project_root() / "results" / "paper", root / "results" / "paper")
    return root


@pytest.fixture(scope="module")
def ablation(root: Path) -> Ablation:
    """ablation(*words): what `gatebench ablation --variant g1_headwise --recipe tiny words` says."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if name != "GATEBENCH_RUNS"}
        env |= {"GATEBENCH_ROOT": str(root), "GATEBENCH_CACHE": str(root / "cache"), "COLUMNS": "160"}
        command = [sys.executable, "-m", "gatebench", "ablation", "--variant", "g1_headwise", "--recipe", "tiny"]
        return subprocess.run([*command, *words], capture_output=True, text=True, env=env, timeout=600, check=False)

    return call


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes())
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.mark.slow
def test_the_main_job_and_its_repetition(root: Path, ablation: Ablation) -> None:
    first = ablation("--seeds", "2")
    assert first.returncode == 0, first.stderr
    for said in ("Avg PPL", "first-token share", "floor", "M-Act", "gate mean", "tokens/s", "seeds 0, 1"):
        assert said.lower() in first.stdout.lower(), said
    assert "4 runs, 0 done" in first.stderr

    runs = root / "results" / "runs" / "tiny"
    summaries = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(runs.glob("*/summary.json"))]
    assert sorted((row["variant"], row["seed"]) for row in summaries) == [
        ("baseline", 0),
        ("baseline", 1),
        ("g1_headwise", 0),
        ("g1_headwise", 1),
    ]
    by_seed = {(row["variant"], row["seed"]): row["data_hash"] for row in summaries}
    assert by_seed["baseline", 0] == by_seed["g1_headwise", 0] != by_seed["baseline", 1] == by_seed["g1_headwise", 1]

    out = root / "results" / "ablation" / "tiny" / "g1_headwise"
    written = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert {"comparison.csv", "comparison.json", "comparison.md"} <= set(written)
    assert [name for name in written if name.startswith("figures/")]
    for name in written:
        assert str(out / name) in first.stderr, name

    trained, before = snapshot(runs), snapshot(out)
    second = ablation("--seeds", "2")
    assert second.returncode == 0, second.stderr
    assert second.stdout == first.stdout
    assert snapshot(runs) == trained  # nothing trained, nothing touched
    assert {name: content for name, (_, content) in snapshot(out).items()} == {
        name: content for name, (_, content) in before.items()
    }

    as_json = ablation("--seeds", "2", "--json")
    assert as_json.returncode == 0 and json.loads(as_json.stdout) == json.loads((out / "comparison.json").read_bytes())


@pytest.mark.parametrize(("exit_code", "status"), [(2, 2), (1, 1), (-9, 1)])
def test_a_run_that_fails_is_named_with_its_reason(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    exit_code: int,
    status: int,
) -> None:
    def fail(jobs: list[pool.Job], *args: object) -> list[pool.Job]:
        jobs[0].exit_code = exit_code
        (jobs[0].directory / "log.txt").write_text("step 1\nno space left to write\n", encoding="utf-8")
        return jobs[:1]

    monkeypatch.setenv("GATEBENCH_ROOT", str(root))
    monkeypatch.setenv("GATEBENCH_RUNS", str(tmp_path))
    monkeypatch.setattr(pool, "run_all", fail)
    monkeypatch.setattr(sys, "argv", ["gatebench", "ablation", "--variant", "g1_headwise", "--recipe", "tiny"])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    assert ended.value.code == status and output.out == ""
    last = output.err.splitlines()[-1]
    assert last.startswith("gatebench: baseline seed 0 failed: no space left to write (") and "log.txt" in last
