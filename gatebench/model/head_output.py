"""What happens to a head's average of values before its G1 gate.

Letters: B batch, T tokens, H query heads, K KV heads, D head_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatebench.config import ModelConfig
from gatebench.design import Design
from gatebench.model.kernels import lambda_init
from gatebench.model.norm import rms_norm


class HeadOutput(nn.Module):
    """What happens to the average of values before G1: nothing, or what a `Design` says.

    `differential`: RMSNorm over each pair's 2 D channels, with one gain for all pairs, times 1 - λ₀. `exclusive`: what
    points along the token's own value is taken out, y - (y · v̂) v̂ with v̂ = v / ‖v‖ after G2.
    """

    def __init__(self, config: ModelConfig, design: Design, depth: int) -> None:
        super().__init__()
        self.exclusive = design.exclusive
        self.differential = design.kernel == "differential"
        if self.differential:
            self.norm_eps = config.norm_eps
            self.gain = nn.Parameter(torch.ones(2 * config.head_dim))
            self.scale = torch.tensor(1.0 - lambda_init(depth), dtype=torch.float32, device="cpu")  # see `Differential`

    def forward(self, y: Tensor, v: Tensor) -> Tensor:
        """Return (B, T, H, D) for the averages `y` (B, T, H, D) and the same tokens' values `v` (B, T, K, D)."""
        if self.differential:
            pairs = y.unflatten(2, (-1, 2)).flatten(-2)  # (B, T, H/2, 2 D)
            pairs = rms_norm(pairs, pairs.shape[-1], self.gain, self.norm_eps) * self.scale
            y = pairs.unflatten(-1, (2, -1)).flatten(2, 3)
        if self.exclusive:
            own = F.normalize(v, dim=-1).repeat_interleave(y.shape[2] // v.shape[2], dim=2)
            y = y - (y * own).sum(dim=-1, keepdim=True) * own
        return y
