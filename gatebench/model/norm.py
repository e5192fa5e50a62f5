"""RMSNorm that stays in the dtype of the activations."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """x / rms(x) * weight over the last dimension (Zhang & Sennrich 2019), summed in fp32 inside torch's fused kernel.

    Under mixed precision the weight is cast to the input's dtype, as transformers' Qwen3RMSNorm returns it; torch's own
    module would leave the fused kernel there.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed `x` (..., D) in its own dtype."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)
