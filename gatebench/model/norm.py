"""RMSNorm that stays in the dtype of the activations."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rms_norm(x: Tensor, size: int, weight: Tensor, eps: float) -> Tensor:
    """Return x / rms(x) * weight over the last dimension, (..., size), in the dtype of `x`.

    `weight` broadcasts against `x`. CUDA's autocast would return fp32, which the rest of the layer would then stay in.
    """
    with torch.autocast("cuda", enabled=False) if x.is_cuda else nullcontext():
        if weight.shape == (size,):
            return F.rms_norm(x, (size,), weight.to(x.dtype), eps)
        return F.rms_norm(x, (size,), eps=eps) * weight.to(x.dtype)


class RMSNorm(nn.RMSNorm):
    """x / rms(x) * weight over the last dimension (Zhang & Sennrich 2019), summed in fp32 inside torch's fused kernel.

    Under mixed precision the weight is cast to the input's dtype, as transformers' Qwen3RMSNorm returns it; torch's own
    module would leave the fused kernel there.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed `x` (..., D) in its own dtype."""
        assert self.eps is not None
        return rms_norm(x, self.normalized_shape[-1], self.weight, self.eps)
