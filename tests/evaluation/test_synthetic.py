"""Excess loss and copy accuracy: what predictors score that are known by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gatebench.config import SyntheticConfig
from gatebench.data.backcopy import BigramBackcopy
from gatebench.data.reading import heldout_windows
from gatebench.evaluation.copy_scores import copy_scores
from gatebench.evaluation.perplexity import domain_scores

PROCESS = BigramBackcopy(SyntheticConfig(n_tokens=16, n_triggers=2, trigger_rate=0.2))
WINDOWS = heldout_windows(PROCESS, PROCESS.name, 64, max_tokens=64 * 100)
CPU = torch.device("cpu")


class Oracle(nn.Module):
    """The true process, with its logits shifted, which changes nothing."""

    def forward(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(PROCESS.next_token_probabilities(ids.numpy())).clamp_min(1e-30).log() + 5.0


class Uniform(nn.Module):
    def forward(self, ids: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, PROCESS.vocab_size)


class Bigram(nn.Module):
    """Knows the present token alone, so that after a trigger it knows nothing."""

    def forward(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(PROCESS.transitions).clamp_min(1e-30).log()[ids]


def scores(model: nn.Module, batch_size: int = 32) -> dict[str, Any]:
    return copy_scores(model, PROCESS, WINDOWS, batch_size=batch_size, device=CPU)


def test_the_true_process_has_no_excess_and_copies_everything() -> None:
    found = scores(Oracle())
    assert found["copy_accuracy"] == 1.0
    for name in ("excess_loss", "excess_loss_copy", "excess_loss_other"):
        assert found[name] == pytest.approx(0, abs=1e-6), name


def test_a_uniform_guess_loses_what_there_is_to_know() -> None:
    found, vocabulary, floor = scores(Uniform()), math.log(PROCESS.vocab_size), PROCESS.entropy_floor(64)
    assert found["excess_loss_copy"] == pytest.approx(vocabulary, rel=1e-6)
    assert found["excess_loss_other"] == pytest.approx(vocabulary - floor.other, abs=0.02)  # windows are a sample
    assert found["excess_loss"] == pytest.approx(vocabulary - floor.overall, abs=0.02)
    n_copy = found["copy_targets"]
    assert n_copy == int((WINDOWS.inputs > 16).sum()) and n_copy + found["other_targets"] == 6400
    assert n_copy / 6400 == pytest.approx(floor.copy_share, abs=0.01)
    assert found["copy_accuracy"] == 0  # its largest logit is the first, BOS


def test_a_bigram_model_is_wrong_on_copies_alone() -> None:
    found = scores(Bigram())
    assert found["excess_loss_other"] == pytest.approx(0, abs=1e-6)
    assert found["excess_loss_copy"] == pytest.approx(math.log(PROCESS.vocab_size), rel=1e-5)


def test_the_excess_is_the_loss_less_the_floor_up_to_the_sample() -> None:
    torch.manual_seed(0)
    noisy = nn.Sequential(nn.Embedding.from_pretrained(torch.randn(PROCESS.vocab_size, PROCESS.vocab_size)))
    noisy.hidden, noisy.lm_head = noisy.forward, nn.Identity()  # type: ignore[assignment]
    result = domain_scores(noisy, PROCESS, seq_len=64, bos=True, max_tokens=6400, batch_size=8, device=CPU)
    (score,) = result.values()
    assert list(result) == ["bigram_backcopy"] and score.tokens == score.n_bytes == 6400
    excess = scores(noisy)["excess_loss"]
    assert excess == pytest.approx(score.nll / score.tokens - PROCESS.entropy_floor(64).overall, abs=0.05)


@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_its_batch_size_moves_no_result(batch_size: int) -> None:
    assert scores(Bigram(), batch_size) == pytest.approx(scores(Bigram()), rel=1e-9)


def test_without_copies_there_is_no_copy_accuracy() -> None:
    process = BigramBackcopy(SyntheticConfig(n_tokens=17, n_triggers=1, trigger_rate=0))
    windows = heldout_windows(process, process.name, 64, max_tokens=640)
    found = copy_scores(Uniform(), process, windows, batch_size=32, device=CPU)
    assert found["copy_accuracy"] is None and found["excess_loss_copy"] is None
    assert found["excess_loss"] == found["excess_loss_other"]
    assert np.isfinite(found["excess_loss"])
