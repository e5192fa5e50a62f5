"""A small trained run whose context of 192 tokens holds every bundled item, and its model as the harness calls it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gatebench.data.tokens import Corpus
from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
from gatebench.evaluation.benchmarks.harness_model import HarnessModel
from tests.training.tiny_run import RunTiny

SEQ_LEN = 192


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory, run_tiny: RunTiny) -> Path:
    """The run; its `benchmarks` folder belongs to whoever asks: use `fresh_run` to write to one."""
    out = tmp_path_factory.mktemp("benchmarked") / "run"
    run_tiny(out, f"data.seq_len={SEQ_LEN}", "train.steps=30")
    return out


@pytest.fixture(scope="session")
def corpus(tiny_corpus: Path) -> Corpus:
    return Corpus.open(tiny_corpus)


@pytest.fixture
def model(run_dir: Path) -> HarnessModel:
    """The run's model, asked 16 sequences at a time; it was trained with BOS."""
    return Checkpoint(str(run_dir)).model


@pytest.fixture
def fresh_run(run_dir: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the run without results."""
    copy = tmp_path / "quick" / "run"
    copy.mkdir(parents=True)
    for entry in run_dir.iterdir():
        if entry.name != "benchmarks":
            (copy / entry.name).symlink_to(entry)
    yield copy
