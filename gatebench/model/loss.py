"""Next-token cross-entropy straight from hidden states, without ever holding all logits.

Letters: N tokens, C d_model, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 1 << 20
"""Logits held at once: 4 MB in fp32, which stays in a core's cache; on a GPU chunks are 64 times larger."""
MIN_ROWS = 256
"""Tokens of a chunk at least: each pays for a gradient of the whole weight, V x C in fp32, whatever its logits cost."""


def chunk_rows(vocab_size: int, *, is_cuda: bool) -> int:
    """Return the tokens of a chunk."""
    return max(MIN_ROWS, CHUNK_LOGITS * (64 if is_cuda else 1) // vocab_size)


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes loss and gradients chunk by chunk in the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the mean loss (fp32): `hidden` (N, C), `weight` (V, C), `targets` (N,); products in `dtype`."""
        n = targets.numel()
        rows = chunk_rows(weight.shape[0], is_cuda=hidden.is_cuda)
        low = weight.to(dtype)
        wanted = any(ctx.needs_input_grad[:2])
        grad_hidden = torch.empty_like(hidden) if wanted else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted else None
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, n, rows):
            part = hidden[start : start + rows].to(dtype)  # (R, C)
            target = targets[start : start + rows, None]  # (R, 1)
            logits = (part @ low.T).float()  # (R, V)
            chosen = logits.gather(1, target)
            peak = logits.amax(dim=1, keepdim=True)
            logits.sub_(peak).exp_()
            total = logits.sum(dim=1, keepdim=True)
            loss += (peak + total.log() - chosen).sum()
            if grad_hidden is not None and grad_weight is not None:
                logits.mul_(1 / (total * n))  # softmax / N
                logits.scatter_add_(1, target, logits.new_full((), -1 / n).expand_as(target))
                grad_logits = logits.to(dtype)
                grad_hidden[start : start + rows] = grad_logits @ low
                grad_weight += grad_logits.T @ part
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype = weight.dtype
        return loss / n

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Return the stored gradients times that of the loss."""
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = grad_outputs[0]
        return grad_hidden * scale, (grad_weight * scale).to(ctx.weight_dtype), None, None


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats (fp32) of logits = hidden @ weight.T.

    `hidden` (..., C), `weight` (V, C), `targets` (...) int64. Equals `F.cross_entropy` on the logits; memory is one
    chunk of them.
    Products run in the autocast dtype where autocast is on, softmax and sums always in fp32.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    with torch.autocast(device, enabled=False):
        loss: Tensor = _LinearCrossEntropy.apply(hidden.flatten(0, -2), weight, targets.flatten(), dtype)
    return loss
