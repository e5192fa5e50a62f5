"""The evaluation of a trained model: which windows, which files, which metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gatebench.data.tokens import Corpus, heldout_windows
from gatebench.errors import UserError
from gatebench.evaluation.evaluate import evaluate, full_windows
from gatebench.model.build import build_run_model
from gatebench.recipes import make_run
from gatebench.training.run import NonFiniteLoss, Trained, metric_names
from gatebench.training.rundir import RunDirectory


@pytest.fixture
def corpus(tiny_corpus: Path) -> Corpus:
    return Corpus.open(tiny_corpus)


def untrained(recipe: str, corpus: Corpus, out: Path, *overrides: str) -> Trained:
    config = make_run(recipe, "g1_headwise", 0, overrides)
    model = build_run_model(config).eval()
    return Trained(config, model, corpus, torch.device("cpu"), "fp32", RunDirectory(out))


def test_it_returns_exactly_the_metrics_that_a_diverged_run_has_null_for(
    tmp_path: Path, tiny_recipe: str, corpus: Corpus
) -> None:
    metrics = evaluate(untrained(tiny_recipe, corpus, tmp_path))
    assert metrics.keys() == set(metric_names(corpus))
    assert None not in metrics.values()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eval.json", "probes.json", "probes.npz"]


def test_its_length_is_the_training_length_unless_another_is_set(
    tmp_path: Path, tiny_recipe: str, corpus: Corpus
) -> None:
    for setting, length in (("eval.seq_len=null", 32), ("eval.seq_len=16", 16)):
        metrics = evaluate(untrained(tiny_recipe, corpus, tmp_path, setting))
        assert metrics["eval_seq_len"] == length
        assert json.loads((tmp_path / "eval.json").read_text(encoding="utf-8"))["seq_len"] == length
        assert metrics["probe_tokens"] == 512


def test_its_batch_size_moves_no_result(tmp_path: Path, tiny_recipe: str, corpus: Corpus) -> None:
    by_size = [evaluate(untrained(tiny_recipe, corpus, tmp_path, f"eval.batch_size={n}")) for n in (1, 4, 32)]
    for metrics in by_size[1:]:
        assert metrics == pytest.approx(by_size[0], rel=1e-5)


def test_probe_windows_are_full_and_take_domains_in_turn(corpus: Corpus) -> None:
    windows = full_windows(corpus, 32, bos=True, n_tokens=32 * 12)
    assert windows.shape == (12, 32)
    assert (windows[:, 0] == corpus.bos_id).all() and (windows[:, 1:] != corpus.bos_id).all()
    assert (windows != corpus.eos_id).all()  # no padding
    for row, domain in zip(windows, corpus.domains * 2, strict=True):
        text = corpus.tokens("heldout", domain, 0, corpus.n_tokens("heldout", domain))
        starts = np.flatnonzero(text == row[1])
        assert any(np.array_equal(text[start : start + 31], row[1:]) for start in starts)
    assert np.array_equal(windows, full_windows(corpus, 32, bos=True, n_tokens=32 * 12))


class OneLongDocument:
    """A held-out split of 6,000 documents of 40 tokens, and one of 399 among them, number 3,000."""

    name, domains, bos_id, eos_id = "long", ("english",), 0, 1
    lengths = np.insert(np.full(6000, 40), 3000, 399)

    def documents(self, split: str, domain: str) -> NDArray[np.int64]:
        return np.concatenate(([0], np.cumsum(self.lengths + 1)))  # each ended by EOS

    def tokens(self, split: str, domain: str, start: int, stop: int) -> NDArray[np.int64]:
        return np.arange(start, stop) + 2


def test_the_one_full_window_among_thousands_is_found() -> None:
    """The check before training passes such a corpus, so that the evaluation after it must, too."""
    corpus = cast(Corpus, OneLongDocument())
    sample = heldout_windows(corpus, "english", 256, max_tokens=8 * 16_384)
    assert not (sample.targets >= 0).all(axis=1).any()  # a sample of all windows misses it
    windows = full_windows(corpus, 256, bos=True, n_tokens=16_384)
    assert windows.tolist() == [[0, *range(123_002, 123_257)]]


def test_windows_longer_than_every_document_are_refused(corpus: Corpus) -> None:
    with pytest.raises(UserError, match=r"eval.seq_len=100000: corpus 'tiny' has no held-out document that long"):
        full_windows(corpus, 100_000, bos=True, n_tokens=1000)


def test_a_model_that_gives_no_number_is_said_to_and_leaves_no_file(
    tmp_path: Path, tiny_recipe: str, corpus: Corpus
) -> None:
    trained = untrained(tiny_recipe, corpus, tmp_path)
    trained.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(NonFiniteLoss, match=r"domain 'english': mean held-out loss nan nats"):
        evaluate(trained)
    assert not list(tmp_path.iterdir())
