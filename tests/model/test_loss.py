"""The chunked cross-entropy equals the direct one, in value and in gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from gatebench.config import ModelConfig
from gatebench.model import loss as losses
from gatebench.model.build import build_model
from gatebench.model.loss import linear_cross_entropy


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven rows of 50 logits a chunk, so that 33 tokens make four whole chunks and a part of one."""
    monkeypatch.setattr(losses, "CHUNK_LOGITS", 350)
    monkeypatch.setattr(losses, "MIN_ROWS", 1)


def _example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 11, 8, generator=generator, requires_grad=True)
    weight = torch.randn(50, 8, generator=generator, requires_grad=True)
    return hidden, weight, torch.randint(0, 50, (3, 11), generator=generator)


@pytest.mark.usefixtures("small_chunks")
def test_value_and_gradients_equal_the_direct_form() -> None:
    hidden, weight, targets = _example()
    direct = F.cross_entropy((hidden @ weight.T).flatten(0, 1), targets.flatten())
    expected = torch.autograd.grad(3 * direct, (hidden, weight))
    ours = linear_cross_entropy(hidden, weight, targets)
    found = torch.autograd.grad(3 * ours, (hidden, weight))
    torch.testing.assert_close(ours, direct, rtol=1e-6, atol=1e-6)
    for ours_grad, grad in zip(found, expected, strict=True):
        torch.testing.assert_close(ours_grad, grad, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("small_chunks")
def test_bf16_autocast_keeps_fp32_sums() -> None:
    hidden, weight, targets = _example()
    exact = linear_cross_entropy(hidden, weight, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = linear_cross_entropy(hidden, weight, targets)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, exact, rtol=1e-2, atol=0)


def test_extreme_logits_do_not_overflow() -> None:
    """Logits of 2,000 and 0: the loss of the wrong one is 2,000 nats, that of the right one 0."""
    hidden, weight = torch.tensor([[1.0], [1.0]]), torch.tensor([[2000.0], [0.0]])
    assert linear_cross_entropy(hidden[:1], weight, torch.tensor([1])).item() == 2000.0
    assert linear_cross_entropy(hidden[:1], weight, torch.tensor([0])).item() == 0.0


def test_uniform_logits_cost_ln_v() -> None:
    loss = linear_cross_entropy(torch.zeros(5, 4), torch.randn(50, 4), torch.arange(5))
    assert loss.item() == pytest.approx(math.log(50), abs=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_model_loss_equals_cross_entropy_of_its_logits(tied: bool) -> None:
    config = ModelConfig(
        n_layers=2, d_model=16, n_heads=4, n_kv_heads=2, head_dim=4, ffn_dim=24, vocab_size=64, tie_embeddings=tied
    )
    model = build_model(config, "g1_headwise", seed=1)
    ids = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    direct = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    expected = torch.autograd.grad(direct, list(model.parameters()))
    loss = model.loss(ids[:, :-1], ids[:, 1:])
    torch.testing.assert_close(loss, direct, rtol=1e-6, atol=1e-6)
    for ours, grad in zip(torch.autograd.grad(loss, list(model.parameters())), expected, strict=True):
        torch.testing.assert_close(ours, grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("vocab_size", "is_cuda", "rows"),
    [(4096, False, 256), (512, False, 2048), (49_152, False, 256), (151_936, True, 441)],
)
def test_a_chunk_has_rows_enough_to_pay_for_its_gradient_of_the_weight(
    vocab_size: int, is_cuda: bool, rows: int
) -> None:
    """21 rows at a vocabulary of 49,152 made the loss 3.6 times slower than 256 do."""
    assert losses.chunk_rows(vocab_size, is_cuda=is_cuda) == rows
