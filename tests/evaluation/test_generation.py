"""Greedy decoding: the cache changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gatebench.evaluation.generation import completer, greedy
from gatebench.model.transformer import Transformer
from tests.model.shapes import build, token_ids

CPU = torch.device("cpu")


def greedy_without_cache(model: Transformer, ids: Tensor, n_new: int) -> list[list[int]]:
    start = ids.shape[1]
    with torch.no_grad():
        for _ in range(n_new):
            ids = torch.cat((ids, model(ids)[:, -1:].argmax(dim=-1)), dim=1)
    new: list[list[int]] = ids[:, start:].tolist()
    return new


@pytest.mark.parametrize(
    "name", ["baseline", "g1_elementwise", "g2_headwise_from_previous", "registers4", "forgetting"]
)
def test_cached_equals_uncached(name: str) -> None:
    model = build(name).eval()
    ids = token_ids(batch=3, length=11)
    new = greedy(model, ids, 12)
    assert new == greedy_without_cache(model, ids, 12)
    assert len({tuple(row) for row in new}) == 3


def test_a_row_ends_before_a_stop_token_and_the_others_go_on() -> None:
    model = build("baseline").eval()
    ids = token_ids(batch=3, length=11)
    rows = greedy(model, ids, 12)
    stop = rows[0][4]
    expected = [row[: row.index(stop)] if stop in row else row for row in rows]
    assert greedy(model, ids, 12, stop={stop}) == expected
    assert len(expected[0]) <= 4


def test_prompts_of_many_lengths_get_the_answers_they_get_alone() -> None:
    model = build("g1_headwise").eval()
    prompts = [token_ids(1, length, seed=length)[0].tolist() for length in (5, 9, 5, 7, 9, 9)]
    complete = completer(model, str, device=CPU, batch_size=2)
    assert complete(prompts, 6) == [str(greedy(model, torch.tensor([prompt]), 6)[0]) for prompt in prompts]
