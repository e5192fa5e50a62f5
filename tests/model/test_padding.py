"""A row of a left-padded batch is what it would be alone: for every variant, in one pass and with a KV cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gatebench.model.transformer import Transformer
from tests.model.shapes import EVERY_VARIANT, build, token_ids, use_eager

LENGTHS = (11, 4, 7)
every_variant = pytest.mark.parametrize("name", EVERY_VARIANT)


def padded_batch() -> tuple[Tensor, Tensor]:
    """Return ids (3, 11), random ones in the padding too, and which of them are real: rows of 11, 4 and 7 tokens."""
    real = torch.arange(max(LENGTHS)) >= max(LENGTHS) - torch.tensor(LENGTHS)[:, None]
    return token_ids(batch=3, length=max(LENGTHS)), real


def rows_alone(model: Transformer, ids: Tensor) -> list[Tensor]:
    return [model(row[None, -length:])[0] for row, length in zip(ids, LENGTHS, strict=True)]


def assert_rows_equal(logits: Tensor, alone: list[Tensor]) -> None:
    for row, expected in zip(logits, alone, strict=True):
        torch.testing.assert_close(row[-len(expected) :], expected, atol=1e-5, rtol=1e-5)


@every_variant
@torch.no_grad()
def test_a_padded_row_is_the_row_alone(name: str) -> None:
    model, (ids, real) = build(name), padded_batch()
    logits = model(ids, real=real)
    assert logits.isfinite().all()
    assert_rows_equal(logits, rows_alone(model, ids))
    assert_rows_equal(use_eager(model)(ids, real=real), rows_alone(build(name), ids))


@every_variant
@torch.no_grad()
def test_a_padded_row_is_the_row_alone_with_a_cache(name: str) -> None:
    model, (ids, real), prompt = build(name), padded_batch(), 8
    caches = model.new_caches()
    parts = [model(ids[:, :prompt], caches, real[:, :prompt])]
    parts += [model(ids[:, n : n + 1], caches, real[:, : n + 1]) for n in range(prompt, max(LENGTHS))]
    assert_rows_equal(torch.cat(parts, dim=1), rows_alone(model, ids))


@pytest.mark.parametrize("name", ["baseline", "forgetting+registers3", "g1_headwise_from_previous"])
@torch.no_grad()
def test_rows_of_a_cache_can_be_selected(name: str) -> None:
    model, ids = build(name), token_ids(batch=3, length=6)
    caches, rows = model.new_caches(), torch.tensor([2, 0, 2])
    model(ids[:, :5], caches)
    for cache in caches:
        cache.select(rows)
    torch.testing.assert_close(model(ids[rows, 5:], caches), model(ids)[rows, 5:], atol=1e-5, rtol=1e-5)
