"""`gatebench benchmark` as a user types it: what is printed, what is refused, and that nothing needs a network."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

from gatebench.errors import UserError
from gatebench.evaluation.benchmarks import availability as hub
from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
from gatebench.evaluation.benchmarks.suites import CHOICE
from tests.cli.commands import Command
from tests.evaluation.benchmarks.conftest import fresh_run, run_dir  # noqa: F401
from tests.training.tiny_run import reference, run_tiny, tiny_corpus, tiny_recipe  # noqa: F401

benchmark = Command("benchmark")

BLOCKED = """
import socket
def refused(*args, **named):
    raise OSError("sockets are blocked")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused
"""


def without_sockets(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own that cannot connect anywhere, with an empty cache of the hub."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKED, encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    env |= {"PYTHONPATH": str(tmp_path), "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-m", "gatebench", "benchmark", *words, "--threads", "1"]
    return subprocess.run(command, env=env, capture_output=True, text=True)


def test_a_table_and_json(fresh_run: Path) -> None:  # noqa: F811
    words = (fresh_run, "--tasks", "gb_copy,gb_brackets", "--limit", "12")
    shown = benchmark(*words)
    assert shown.exit_code == 0, shown.output
    assert "gb_copy" in shown.stdout
    assert "33.33" in shown.stdout  # guessing one of three brackets
    records = benchmark.json(*words)["checkpoints"]["quick/run"]
    assert [record["asked"]["task"] for record in records] == ["gb_copy", "gb_brackets"]
    assert sorted(path.name for path in (fresh_run / "benchmarks").iterdir()) == [
        "gb_brackets-limit12.json",
        "gb_copy-limit12.json",
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "benchmark: nothing to score"),
        (("x", "--suite", "all"), "--suite all: unknown; legal: offline, paper"),
        (("x", "--study", "table1"), "--study table1: not with checkpoints"),
        (("x", "--suite", "paper", "--tasks", "gb_copy"), "--suite paper: has no task 'gb_copy'"),
        (("nowhere", "--tasks", "gb_copy"), "nowhere: no such directory"),
        (("x", "--suite", "paper"), "task 'hellaswag': data set Rowan/hellaswag cannot be read"),
    ],
)
def test_refusals(words: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    assert line in benchmark.refusal(*words)


def test_stored_results_need_no_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a checkpoint that is no run, too, whose results are below results/benchmarks."""

    def refuse(tasks: Iterable[str]) -> None:
        raise UserError(" ".join(tasks) or "nothing is missing")

    monkeypatch.setenv("GATEBENCH_ROOT", str(tmp_path))
    monkeypatch.setattr(hub, "refuse_missing", refuse)
    source = tmp_path / "checkpoint"
    source.mkdir()
    assert benchmark.refusal(source, "--tasks", "hellaswag") == "hellaswag"
    folder = Checkpoint(str(source)).folder
    folder.mkdir(parents=True)
    (folder / "hellaswag.json").write_text("{}", encoding="utf-8")
    assert benchmark.refusal(source, "--tasks", "hellaswag") == "nothing is missing"


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda name: None if name == "peft" else find_spec(name))
    assert benchmark.refusal("x").startswith("benchmarks need peft; the extra `benchmarks` has all")


def test_missing_data_is_one_line_within_five_seconds(fresh_run: Path, tmp_path: Path) -> None:  # noqa: F811
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = without_sockets(tmp_path, str(fresh_run), "--tasks", "hellaswag")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "task 'hellaswag': data set Rowan/hellaswag cannot be read" in done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3  # of its own, whatever else runs


@pytest.mark.slow
def test_the_bundled_suite_needs_no_socket(fresh_run: Path, tmp_path: Path) -> None:  # noqa: F811
    done = without_sockets(tmp_path, str(fresh_run), "--json", "--limit", "40")
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)["checkpoints"]["quick/run"]
    assert [record["asked"]["task"] for record in records] == list(CHOICE)
    assert all(0 <= record["score"] <= 1 and record["answer_bpb"] > 0 for record in records)
    again = without_sockets(tmp_path, str(fresh_run), "--json", "--limit", "40")  # asks no model
    assert json.loads(again.stdout)["checkpoints"]["quick/run"] == records
