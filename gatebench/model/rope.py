"""Rotary position embedding, and YaRN, which stretches it over longer contexts without training.

Letters: B batch, T tokens, D head_dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gatebench.config import RopeScalingConfig


class Rope(nn.Module):
    """Rotary position embedding, rotate-half, computed in fp32 (Su et al. 2021; transformers `modeling_qwen3`).

    With `scaling` it is YaRN's (Peng et al. 2023, arXiv 2309.00071; transformers `modeling_rope_utils`).
    """

    def __init__(self, head_dim: int, theta: float, scaling: RopeScalingConfig | None = None) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta
        self.scaling = scaling

    def forward(self, start: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cos and sin (length, 1, D) in fp32 for positions start .. start + length - 1."""
        return self.at(torch.arange(start, start + length, device=device))

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin (T, 1, D), or (B, T, 1, D), in fp32 for `positions` (T,) or (B, T)."""
        angles = positions.float()[..., None] * self.frequencies(positions.device)  # (..., T, D/2)
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(-2)  # (..., T, 1, D)
        if self.scaling is None:
            return angles.cos(), angles.sin()
        factor = attention_factor(self.scaling)
        return angles.cos() * factor, angles.sin() * factor

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return the angle per position of each pair of dimensions, (D/2,) fp32, the fastest first."""
        exponents = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32) / self.head_dim
        plain = 1.0 / self.theta**exponents
        if self.scaling is None:
            return plain
        low, high = correction_range(self.head_dim, self.theta, self.scaling)
        pairs = torch.arange(self.head_dim // 2, device=device, dtype=torch.float32)
        ramp = ((pairs - low) / (high - low)).clamp(0, 1)  # 0: as it was, 1: slower by the factor
        return plain * (1 - ramp * (1 - 1 / self.scaling.factor))


def correction_range(head_dim: int, theta: float, scaling: RopeScalingConfig) -> tuple[float, float]:
    """Return YaRN's low and high: up to the pair `low` nothing is changed, from `high` on all of it.

    A pair turns `beta_fast` times over the original context at `low`, and `beta_slow` times at `high`.
    """

    def pair_that_turns(n_rotations: float) -> float:
        context = scaling.original_max_position_embeddings
        return head_dim * math.log(context / (n_rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    return low, high + 0.001 if high == low else high


def attention_factor(scaling: RopeScalingConfig) -> float:
    """Return what YaRN multiplies both cos and sin by, and so the attention logits by its square."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1.0


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `x` (B, T, heads, D) rotated by its positions' angles, (T or B, T, 1, D), in the dtype of `x`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)
