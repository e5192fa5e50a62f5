"""lm-eval's HFLM around one of our models: prefix tokens, joins, windows, batches, and what does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from lm_eval.api.instance import Instance
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from torch.nn import functional as F

from gatebench.data.tokens import Corpus
from gatebench.errors import DoesNotFit
from gatebench.evaluation.benchmarks.harness_model import HarnessModel
from gatebench.evaluation.perplexity import domain_scores
from gatebench.hf.tokenizer import corpus_tokenizer

BOS, EOS = 0, 1
TEXT = "The president of the union has made a great report to people and states on trade"


def ask(*pairs: tuple[str, str]) -> list[Instance]:
    return [Instance("loglikelihood", {}, pair, 0) for pair in pairs]


def rolling(*texts: str) -> list[Instance]:
    return [Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts]


@contextmanager
def inputs_of(model: HarnessModel) -> Iterator[list[Tensor]]:
    """Collect the ids (B, T) of every forward pass."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.append(args[0].clone())

    handle = model.model.get_input_embeddings().register_forward_pre_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def log_likelihood(model: HarnessModel, context: list[int], continuation: list[int]) -> float:
    """By hand, from one forward pass without padding."""
    ids = torch.tensor([[*context, *continuation]])
    with torch.no_grad():
        log_p = F.log_softmax(model.model(ids).logits[0], dim=-1)
    start = len(context)
    return sum(float(log_p[start - 1 + place, token]) for place, token in enumerate(continuation))


@pytest.fixture
def without_bos(model: HarnessModel, corpus: Corpus) -> HarnessModel:
    return HarnessModel(model.model, corpus_tokenizer(corpus, bos=False, length=192))


def test_log_likelihoods_do_not_move_with_the_batch(model: HarnessModel) -> None:
    words = TEXT.split()
    pairs = [(" ".join(words[:n]), " " + " ".join(words[n : n + 1 + n % 5])) for n in range(1, 12)] * 3
    found = {}
    for size in (1, 4, 32):
        batched = HarnessModel(model.model, model.tokenizer, batch_size=size)
        found[size] = [score for score, _ in batched.loglikelihood(ask(*pairs), disable_tqdm=True)]
    assert found[4] == pytest.approx(found[1], abs=1e-4)
    assert found[32] == pytest.approx(found[1], abs=1e-4)
    context = model.tok_encode(pairs[0][0])
    rest = model.tok_encode(pairs[0][0] + pairs[0][1])[len(context) :]
    assert found[1][0] == pytest.approx(log_likelihood(model, context, rest), abs=1e-4)


def test_every_sequence_has_exactly_one_bos(model: HarnessModel) -> None:
    with inputs_of(model) as seen:
        pairs = ((TEXT, " and"), ("", TEXT), ("  ", TEXT), (f"<|bos|>{TEXT}", " and"))
        model.loglikelihood(ask(*pairs), disable_tqdm=True)
        model.loglikelihood_rolling(rolling(TEXT, TEXT * 20), disable_tqdm=True)
        model.continuations(["The", TEXT], max_new_tokens=2)
    prompts = [ids for ids in seen if ids.shape[1] > 1]  # single tokens are decoding steps
    assert len(prompts) >= 3
    for row in [row for ids in prompts for row in ids]:
        text = row[row != EOS]  # EOS is the padding of prompts on the left, 0 (which is BOS) that of the harness behind
        assert text[0] == BOS
        assert BOS not in text[1 : int(text.nonzero().max()) + 1]


def test_without_bos_only_an_empty_context_has_a_prefix(without_bos: HarnessModel) -> None:
    with inputs_of(without_bos) as seen:
        without_bos.loglikelihood(ask((TEXT, " and"), ("", TEXT)), disable_tqdm=True)
    rows = [row for ids in seen for row in ids]
    assert not any((row == BOS).any() for row in rows)
    assert sorted(int((row[:1] == EOS).sum()) for row in rows) == [0, 1]


def test_a_token_that_spans_the_join(model: HarnessModel) -> None:
    whole = model.tok_encode("people and states")
    context, rest = "people an", "d states"
    assert model.tok_encode(context) != whole[: len(model.tok_encode(context))]  # " and" is one token
    (score, _) = model.loglikelihood(ask((context, rest)), disable_tqdm=True)[0]
    alone = model.tok_encode(rest, add_special_tokens=False)
    assert score == pytest.approx(log_likelihood(model, model.tok_encode(context), alone), abs=1e-4)
    assert math.isfinite(score)


def test_an_empty_continuation_is_certain(model: HarnessModel) -> None:
    found = model.loglikelihood(ask((TEXT, ""), ("", ""), (TEXT, " and")), disable_tqdm=True)
    assert found[:2] == [(0.0, True), (0.0, True)]
    assert math.isfinite(found[2][0]) and found[2][0] < 0


def with_prefix(model: HarnessModel, corpus: Corpus, template: str) -> HarnessModel:
    """The model with a tokenizer that puts a prefix before every text, and names no BOS."""
    tokenizer = corpus_tokenizer(corpus, bos=False, length=192)
    special = [(tokenizer.convert_ids_to_tokens(i), i) for i in (BOS, EOS)]
    names = {"B": special[0][0], "E": special[1][0], "$": "$A"}
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=" ".join(names[letter] for letter in template), special_tokens=special
    )
    return HarnessModel(model.model, tokenizer)


def test_a_bos_that_the_config_does_not_name_is_a_bos(model: HarnessModel, corpus: Corpus) -> None:
    unnamed = with_prefix(model, corpus, "B$")
    assert unnamed.tokenizer.bos_token is None and unnamed.bos
    pairs = ((TEXT, " and"), ("", TEXT))
    expected = model.loglikelihood(ask(*pairs), disable_tqdm=True)
    assert unnamed.loglikelihood(ask(*pairs), disable_tqdm=True) == expected
    texts = rolling(TEXT * 20)
    assert unnamed.loglikelihood_rolling(texts, disable_tqdm=True) == model.loglikelihood_rolling(
        texts, disable_tqdm=True
    )


def test_a_prefix_of_two_tokens(model: HarnessModel, corpus: Corpus) -> None:
    double = with_prefix(model, corpus, "EB$")
    ids = double.tok_encode(TEXT, add_special_tokens=False)
    assert double.tok_encode(TEXT) == [EOS, BOS, *ids]
    double._max_length = 8
    total = double.loglikelihood_rolling(rolling(TEXT), disable_tqdm=True)[0]
    windows = [ids[start : start + 7] for start in range(0, len(ids), 7)]
    by_hand = sum(log_likelihood(double, [EOS, BOS], window) for window in windows)
    assert total == pytest.approx(by_hand, abs=1e-3)


@pytest.mark.parametrize("with_bos", [True, False])
def test_rolling_windows_score_each_token_once(
    model: HarnessModel, without_bos: HarnessModel, with_bos: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = model if with_bos else without_bos
    text = harness.tokenizer.decode(harness.tok_encode(TEXT * 3, add_special_tokens=False)[:20])
    ids = harness.tok_encode(text, add_special_tokens=False)
    assert len(ids) == 20
    harness._max_length = 8
    windows: list[tuple[list[int], list[int]]] = []
    scored = HarnessModel._loglikelihood_tokens

    def keep(self: HarnessModel, requests: list[tuple[None, list[int], list[int]]], *more: object, **named: object):  # type: ignore[no-untyped-def]
        windows.extend((context, continuation) for _, context, continuation in requests)
        return scored(self, requests, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(HarnessModel, "_loglikelihood_tokens", keep)
    total = harness.loglikelihood_rolling(rolling(text), disable_tqdm=True)[0]
    assert [token for _, continuation in windows for token in continuation] == ids
    assert [len(continuation) for _, continuation in windows] == [8, 8, 4]
    assert all(len(context) + len(continuation) <= 9 for context, continuation in windows)
    assert total == pytest.approx(sum(log_likelihood(harness, *window) for window in windows), abs=1e-3)


def test_rolling_perplexity_is_our_own(model: HarnessModel, corpus: Corpus) -> None:
    offsets = corpus.documents("heldout", "english")
    texts = [
        corpus.tokenizer().decode(corpus.tokens("heldout", "english", first, end - 1).tolist())
        for first, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]
    ours = domain_scores(
        model.model.transformer, corpus, seq_len=192, bos=True, max_tokens=None, batch_size=8, device=model.device
    )["english"]
    assert ours.tokens > 2 * 192  # more than one window
    total = -sum(model.loglikelihood_rolling(rolling(*texts), disable_tqdm=True))
    assert total == pytest.approx(ours.nll, rel=1e-5)


def test_a_batch_is_continued_as_each_prompt_alone(model: HarnessModel) -> None:
    prompts = ["The", TEXT, "def f(x):\n    return"]
    alone = [model.continuations([prompt], max_new_tokens=6)[0] for prompt in prompts]
    assert model.continuations(prompts, max_new_tokens=6) == alone


def test_what_does_not_fit_is_refused_and_not_cut(model: HarnessModel) -> None:
    long = TEXT * 20
    n_tokens = len(model.tok_encode(long + " and"))
    with pytest.raises(DoesNotFit, match=f"an item takes {n_tokens - 1:,} tokens, the model's context is 192"):
        model.loglikelihood(ask((long, " and")), disable_tqdm=True)
    with pytest.raises(DoesNotFit, match="context is 192"):
        model.continuations([TEXT], max_new_tokens=190)
