"""A run that trains on retrieval documents, and one that extends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gatebench.config import RetrievalConfig
from gatebench.data.retrieval_documents import RetrievalDocuments
from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from gatebench.evaluation.evaluate import evaluate
from gatebench.training.extension import Extension, extended, read_parent
from gatebench.training.run import run
from tests.training.tiny_run import RunTiny

RETRIEVAL = ("data.seq_len=128", "data.retrieval={share: 0.5, max_facts: 2}", "train.steps=6", "optim.warmup_steps=1")


def test_accuracy_is_measured_and_documents_grow_with_the_window(run_tiny: RunTiny, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    summary = run_tiny(parent, *RETRIEVAL, variant="baseline")
    assert summary["retrieval_accuracy"] == json.loads((parent / "eval.json").read_text())["retrieval_accuracy"]
    assert 0 <= summary["retrieval_accuracy"] < 0.2
    config = extended(read_parent(parent), Extension(tokens=2048, seq_len="2x"), parent)
    assert config.data.retrieval is not None and config.data.seq_len == 256
    longer = run(config, evaluate, out=tmp_path / "child", threads=1)
    assert longer["seq_len"] == 256 and longer["steps"] == 4 and "retrieval_accuracy" in longer


@pytest.mark.parametrize("seed", range(4))
def test_a_window_without_room_for_a_fact_is_refused_at_once(tiny_corpus: Path, seed: int) -> None:
    config = RetrievalConfig(shortest=8)  # a window can hold less than one document
    with pytest.raises(UserError, match=r"data\.seq_len=16: a retrieval document needs \d+ or more"):
        RetrievalDocuments(Corpus.open(tiny_corpus), config, 16, "train", seed)


def test_an_evaluation_without_room_for_a_fact_is_refused_before_training(run_tiny: RunTiny, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"eval\.seq_len=16: a retrieval document needs \d+ or more"):
        run_tiny(tmp_path / "run", *RETRIEVAL, "eval.seq_len=16", variant="baseline")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
