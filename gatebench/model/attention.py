"""Causal grouped-query attention with five gate sites.

Letters: B batch, T tokens, C d_model, H query heads, K KV heads, D head_dim, S keys (T plus what is cached).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatebench.config import ModelConfig
from gatebench.model.gates import GateInputs, GateSite
from gatebench.model.norm import RMSNorm
from gatebench.variants import Variant


class Rope(nn.Module):
    """Rotary position embedding, rotate-half, computed in fp32 (Su et al. 2021; transformers `modeling_qwen3`)."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, start: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return cos and sin (length, 1, D) in fp32 for positions start .. start + length - 1."""
        exponents = torch.arange(0, self.head_dim, 2, device=device, dtype=torch.float32) / self.head_dim
        positions = torch.arange(start, start + length, device=device, dtype=torch.float32)
        angles = torch.outer(positions, 1.0 / self.theta**exponents)  # (length, D/2)
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]  # (length, 1, D)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return `x` (B, T, heads, D) rotated by its positions' angles (T, 1, D), in the dtype of `x`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat((-second, first), dim=-1) * sin.to(x.dtype)


class KVCache:
    """Keys and values of one layer's earlier tokens, (B, K, S, D) each, gated and rotated."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    @property
    def length(self) -> int:
        """How many tokens are cached."""
        return 0 if self.k is None else self.k.shape[2]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append `k` and `v` (B, K, T, D) and return everything cached."""
        if self.k is not None and self.v is not None:
            k, v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        self.k, self.v = k, v
        return k, v


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return (queries, keys), True where a query may look; the last query sees every key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Return k and v (B, K or H, S, D) and SDPA's `enable_gqa` such that a fused kernel applies.

    On CUDA no fused kernel takes fp32 with grouped heads: SDPA would fall back to the whole T x S map. There the KV
    heads are repeated, which costs memory linear in S.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and q.is_cuda and q.dtype == torch.float32 and not torch.is_autocast_enabled("cuda"):
        return k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1), False
    return k, v, groups > 1


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return softmax(q kᵀ / √D) v, causal: q (B, H, T, D), k and v (B, K, S, D) -> (B, H, T, D).

    Torch's fused kernels where they apply. With cached keys (S > T) the mask is aligned to the last key.
    """
    k, v, enable_gqa = grouped(q, k, v)
    if q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=enable_gqa)
    mask = causal_mask(q.shape[2], k.shape[2], q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=enable_gqa)


def attention_map(q: Tensor, k: Tensor) -> Tensor:
    """Return the explicit causal map softmax(q kᵀ / √D), fp32: q (B, H, T, D), k (B, K, S, D) -> (B, H, T, S).

    Memory grows with T * S: for tests and for pictures of chosen layers; probes stream instead.
    """
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    logits = (q @ k.mT).float() / math.sqrt(q.shape[-1])
    return logits.masked_fill(~causal_mask(q.shape[2], k.shape[2], q.device), float("-inf")).softmax(dim=-1)


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the same as `sdpa`, through the explicit map."""
    v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    return attention_map(q, k).to(v.dtype) @ v


class Softmax(nn.Module):
    """Softmax attention; a module, so that what it reads can be hooked."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return (B, H, T, D) for q (B, H, T, D), k and v (B, K, S, D)."""
        return sdpa(q, k, v)


class Attention(nn.Module):
    """Grouped-query attention with QK-norm and RoPE; one call at each of the paper's five gate positions."""

    def __init__(self, config: ModelConfig, variant: Variant) -> None:
        super().__init__()
        c, h, k, d = config.d_model, config.n_heads, config.n_kv_heads, config.head_dim
        self.n_heads, self.n_kv_heads, self.head_dim = h, k, d
        bias = config.qkv_bias
        self.q_proj = nn.Linear(c, h * d, bias=bias)
        self.k_proj = nn.Linear(c, k * d, bias=bias)
        self.v_proj = nn.Linear(c, k * d, bias=bias)
        self.o_proj = nn.Linear(h * d, c, bias=bias)
        self.q_norm = RMSNorm(d, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(d, eps=config.norm_eps) if config.qk_norm else nn.Identity()

        def site(position: str, heads: int, width: int) -> GateSite:
            return GateSite(variant.at(position), c, heads, width, bias=bias, norm_eps=config.norm_eps)

        self.g1 = site("g1", h, d)
        self.g2 = site("g2", k, d)
        self.g3 = site("g3", k, d)
        self.g4 = site("g4", h, d)
        self.g5 = site("g5", 1, c)
        self.kernel = Softmax()

    def project(self, x: Tensor) -> GateInputs:
        """Return `x` (B, T, C) with its queries, keys and values: normed, not yet gated or rotated."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.n_heads, -1)))  # (B, T, H, D)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.n_kv_heads, -1)))  # (B, T, K, D)
        v = self.v_proj(x).unflatten(-1, (self.n_kv_heads, -1))  # (B, T, K, D)
        return GateInputs(x, q, k, v)

    def queries_keys(self, inputs: GateInputs, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return q (B, H, T, D) and k (B, K, T, D) as attention reads them: gated and rotated."""
        q, k = self.g4(inputs.query, inputs), self.g3(inputs.key, inputs)
        return rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return the attention output (B, T, C) for the normed hidden states `x` (B, T, C)."""
        inputs = self.project(x)
        q, k = self.queries_keys(inputs, cos, sin)  # (B, H, T, D), (B, K, T, D)
        v = self.g2(inputs.value, inputs).transpose(1, 2)  # (B, K, T, D)
        if cache is not None:
            k, v = cache.extend(k, v)  # (B, K, S, D)
        y = self.kernel(q, k, v).transpose(1, 2)  # (B, T, H, D)
        y = self.g1(y, inputs)
        out = self.o_proj(y.flatten(2))  # (B, T, C)
        return self.g5(out.unsqueeze(2), inputs).squeeze(2)
