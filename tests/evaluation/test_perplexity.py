"""Perplexity: one token-weighted mean a domain, whatever the batch, the padding and the windows."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatebench.data.tokens import IGNORED_TARGET, Corpus, heldout_windows
from gatebench.evaluation.perplexity import LOGITS_LENGTH, DomainScore, domain_scores, score, summarize, token_nll
from gatebench.model.transformer import Transformer
from tests.model.shapes import build

CPU = torch.device("cpu")
ONE_BYTE = np.ones(512, np.int64)


@pytest.fixture(scope="module")
def corpus(tiny_corpus: Path) -> Corpus:
    return Corpus.open(tiny_corpus)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return build("g1_elementwise", vocab_size=512).eval()


def uniform(vocab_size: int = 512) -> Transformer:
    """A model that gives every token the same probability."""
    model = build("baseline", vocab_size=vocab_size)
    torch.nn.init.zeros_(model.embed.weight)
    return model.eval()


def nll_of(model: Transformer, inputs: Any, targets: Any, batch_size: int) -> Any:
    return token_nll(model, inputs, targets, batch_size=batch_size, device=CPU)


def test_100_tokens_at_1_nat_and_10_at_3_have_perplexity_3_260() -> None:
    """Not 7.389, the mean of documents (exp of 2), and not 11.40, the mean of perplexities."""
    nll = np.zeros((2, 100))
    targets = np.full((2, 100), IGNORED_TARGET)
    nll[0], targets[0] = 1.0, 7
    nll[1, :10], targets[1, :10] = 3.0, 7
    result = score(nll, targets, ONE_BYTE)
    assert (result.tokens, result.nll) == (110, 130.0)
    assert result.perplexity == pytest.approx(3.260, abs=5e-4)


def test_bits_per_byte_of_a_hand_made_case() -> None:
    """Two tokens of 1 and 3 bytes, each at ln 4 = 2 bits: 4 bits over 4 bytes."""
    token_bytes = np.array([0, 1, 3])
    result = score(np.full((1, 2), math.log(4)), np.array([[1, 2]]), token_bytes)
    assert (result.n_bytes, result.tokens) == (4, 2)
    assert result.bits_per_byte == pytest.approx(1.0)
    assert result.perplexity == pytest.approx(4.0)


def test_what_is_not_scored_counts_nowhere() -> None:
    nll = np.array([[1.0, 99.0, 2.0]])
    result = score(nll, np.array([[3, IGNORED_TARGET, 4]]), np.full(512, 2))
    assert (result.nll, result.tokens, result.n_bytes) == (3.0, 2, 4)


def test_avg_ppl_is_the_arithmetic_mean_over_domains() -> None:
    """Perplexities 2 and 8 average to 5; their tokens together, 3 at ln 2 and 1 at ln 8, to 2^1.5."""
    scores = {"a": DomainScore(3 * math.log(2), 3, 6), "b": DomainScore(math.log(8), 1, 3)}
    flat = summarize(scores)
    assert flat == pytest.approx(
        {
            "ppl/a": 2.0,
            "bpb/a": 0.5,
            "nll/a": math.log(2),
            "eval_tokens/a": 3,
            "ppl/b": 8.0,
            "bpb/b": 1.0,
            "nll/b": math.log(8),
            "eval_tokens/b": 1,
            "avg_ppl": 5.0,
            "avg_bpb": 0.75,
            "micro_ppl": 2**1.5,
        }
    )


def test_a_uniform_model_has_the_vocabulary_as_its_perplexity(corpus: Corpus) -> None:
    scores = domain_scores(uniform(), corpus, seq_len=32, bos=True, max_tokens=None, batch_size=8, device=CPU)
    flat = summarize(scores)
    assert set(scores) == set(corpus.domains)
    for domain in corpus.domains:
        assert flat[f"ppl/{domain}"] == pytest.approx(512, rel=1e-5)
    assert flat["avg_ppl"] == pytest.approx(512, rel=1e-5) and flat["micro_ppl"] == pytest.approx(512, rel=1e-5)


@pytest.mark.parametrize("bos", [True, False])
def test_every_held_out_token_is_scored_once(corpus: Corpus, bos: bool) -> None:
    """All of each document but its EOS; without BOS its first token has nothing to be predicted from."""
    scores = domain_scores(uniform(), corpus, seq_len=32, bos=bos, max_tokens=None, batch_size=64, device=CPU)
    for domain in corpus.domains:
        offsets = corpus.documents("heldout", domain)
        expected = []
        for first, end in pairwise(offsets.tolist()):
            expected += corpus.tokens("heldout", domain, first + (not bos), end - 1).tolist()
        assert scores[domain].tokens == len(expected)
        assert scores[domain].n_bytes == int(corpus.token_bytes[expected].sum())


def test_bytes_are_those_of_the_text(corpus: Corpus) -> None:
    scores = domain_scores(uniform(), corpus, seq_len=32, bos=True, max_tokens=None, batch_size=64, device=CPU)
    for domain in corpus.domains:
        offsets = corpus.documents("heldout", domain)
        texts = [
            corpus.tokenizer().decode(corpus.tokens("heldout", domain, first, end - 1).tolist())
            for first, end in pairwise(offsets.tolist())
        ]
        assert scores[domain].n_bytes == sum(len(text.encode()) for text in texts)


def test_every_window_has_exactly_one_bos_and_it_comes_first(corpus: Corpus) -> None:
    for domain in corpus.domains:
        windows = heldout_windows(corpus, domain, 32, bos=True)
        assert (windows.inputs[:, 0] == corpus.bos_id).all()
        assert (windows.inputs[:, 1:] != corpus.bos_id).all() and (windows.targets != corpus.bos_id).all()
        bare = heldout_windows(corpus, domain, 32, bos=False)
        assert (bare.inputs != corpus.bos_id).all()


def test_padding_moves_nothing(model: Transformer) -> None:
    """One short and one long document, together in a padded batch and each alone without any padding."""
    rng = np.random.default_rng(0)
    short, long = rng.integers(2, 512, 6), rng.integers(2, 512, 31)
    inputs, targets = np.zeros((2, 31), np.int64), np.full((2, 31), IGNORED_TARGET)
    for row, tokens in enumerate((short, long)):
        inputs[row, 1 : len(tokens)], targets[row, : len(tokens)] = tokens[:-1], tokens
    together = nll_of(model, inputs, targets, 2)
    one_by_one = nll_of(model, inputs, targets, 1)
    unpadded = [nll_of(model, inputs[i : i + 1, :n], targets[i : i + 1, :n], 1) for i, n in ((0, 6), (1, 31))]
    assert (together[0, 6:] == 0).all()
    np.testing.assert_allclose(one_by_one, together, atol=1e-4, rtol=0)
    for row, alone in enumerate(unpadded):
        np.testing.assert_allclose(together[row, : alone.shape[1]], alone[0], atol=1e-4, rtol=0)
    sums = [score(nll, targets, ONE_BYTE) for nll in (together, one_by_one)]
    assert sums[0].tokens == sums[1].tokens == 37
    assert sums[0].perplexity == pytest.approx(sums[1].perplexity, rel=1e-6)
    doubled = np.concatenate((inputs, np.full((2, 20), 1)), 1), np.pad(targets, ((0, 0), (0, 20)), constant_values=-100)
    assert score(nll_of(model, *doubled, 2), doubled[1], ONE_BYTE).perplexity == pytest.approx(
        sums[0].perplexity, rel=1e-6
    )


def test_losses_of_long_windows_in_parts_are_those_of_all_logits() -> None:
    model = build("registers4", vocab_size=11).eval()
    windows = np.random.default_rng(0).integers(0, 11, (3, LOGITS_LENGTH + 41))
    nll = nll_of(model, windows[:, :-1], windows[:, 1:], 2)
    with torch.no_grad():
        log_p = model(torch.from_numpy(windows[:, :-1])).log_softmax(dim=-1)
    expected = -log_p.gather(-1, torch.from_numpy(windows[:, 1:, None]))[..., 0]
    assert nll.shape == (3, LOGITS_LENGTH + 40)
    assert np.allclose(nll, expected.numpy(), atol=1e-5)


def test_padding_moves_nothing_in_double_precision(model: Transformer) -> None:
    """The arithmetic itself: with fp64 logits the sums agree to 1e-9 in a padded batch, alone, and without padding."""
    double = build("g1_elementwise", vocab_size=512).double().eval()
    rng = np.random.default_rng(1)
    inputs, targets = rng.integers(2, 512, (2, 40)), rng.integers(2, 512, (2, 40))
    targets[0, 5:] = IGNORED_TARGET

    class Fp64(torch.nn.Module):
        lm_head = torch.nn.Identity()

        def hidden(self, ids: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = double(ids)
            return AsFloat64(logits)

    nlls = [nll_of(Fp64(), inputs, targets, batch).sum() for batch in (1, 2)]  # type: ignore[arg-type]
    short = nll_of(Fp64(), inputs[:1, :5], targets[:1, :5], 1).sum()  # type: ignore[arg-type]
    long = nll_of(Fp64(), inputs[1:], targets[1:], 1).sum()  # type: ignore[arg-type]
    assert nlls[0] == pytest.approx(nlls[1], rel=1e-9)
    assert short + long == pytest.approx(nlls[1], rel=1e-9)


class AsFloat64(torch.Tensor):
    """A tensor whose `.float()` keeps fp64, so that only the bookkeeping is under test."""

    def __new__(cls, data: torch.Tensor) -> AsFloat64:
        return data.as_subclass(cls)

    def float(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_the_batch_size_moves_no_token(corpus: Corpus, model: Transformer, batch_size: int) -> None:
    windows = heldout_windows(corpus, "english", 32, bos=True)
    expected = nll_of(model, windows.inputs, windows.targets, len(windows.inputs))
    found = nll_of(model, windows.inputs, windows.targets, batch_size)
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
    sums = [score(nll, windows.targets, corpus.token_bytes).nll for nll in (found, expected)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-6)


def test_nll_is_the_fp32_log_softmax_of_the_target(model: Transformer) -> None:
    ids = np.arange(2, 34).reshape(1, 32)
    targets = np.roll(ids, -1)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)).double()
    expected = -torch.log_softmax(logits, -1)[0, torch.arange(32), torch.from_numpy(targets[0])]
    np.testing.assert_allclose(nll_of(model, ids, targets, 1)[0], expected.numpy(), rtol=1e-5)


def test_logits_in_bf16_are_scored_in_fp32() -> None:
    """bf16 steps near 6 nats are 1/32 wide; a uniform model over 511 tokens has ln 511 = 6.2364 all the same."""
    model = uniform(511).bfloat16()
    ids = np.ones((1, 16), np.int64)
    np.testing.assert_allclose(nll_of(model, ids, ids, 1), math.log(511), rtol=1e-6)
