"""Causal grouped-query attention with five gate sites.

Letters: B batch, T tokens, C d_model, H query heads, K KV heads, D head_dim, S keys (T plus what is cached).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gatebench.config import ModelConfig
from gatebench.model.gates import GateInputs, GateSite
from gatebench.model.head_output import HeadOutput
from gatebench.model.kernels import KERNELS, causal_mask
from gatebench.model.norm import RMSNorm
from gatebench.model.rope import rotate
from gatebench.model.switch import kv_projection
from gatebench.variants import Variant


class KVCache:
    """What one layer keeps of earlier tokens: keys and values (B, K, S, D), gated and rotated, and what few need."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.decay: Tensor | None = None
        """(B, H, S) of a kernel that has decays."""
        self.last: Tensor | None = None
        """The last token's attention input (B, 1, C), where a gate is computed from the token before."""

    @property
    def length(self) -> int:
        """How many tokens are cached."""
        return 0 if self.k is None else self.k.shape[2]

    def extend(self, k: Tensor, v: Tensor, decay: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append `k` and `v` (B, K, T, D), and `decay` (B, H, T), summed over these T; return everything cached."""
        if self.k is not None and self.v is not None:
            k, v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        if self.decay is not None and decay is not None:
            decay = torch.cat((self.decay, self.decay[..., -1:] + decay), dim=2)
        self.k, self.v, self.decay = k, v, decay
        return k, v, decay

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; one may stand there twice (beam search)."""
        for name in ("k", "v", "decay", "last"):
            if (held := getattr(self, name)) is not None:
                setattr(self, name, held.index_select(0, rows))


class Padding(NamedTuple):
    """Of a batch whose rows begin with padding: which tokens are real, and what a query may look at."""

    real: Tensor
    """(B, T, 1), of the tokens that pass."""
    mask: Tensor
    """(B, 1, T, S): earlier keys that are real, and the query's own, so that no row of a map is empty."""

    @classmethod
    def of(cls, real: Tensor, start: int) -> Padding:
        """Return that of the tokens from `start` on, where `real` (B, S) says of all which are no padding."""
        n_keys = real.shape[1]
        own = torch.eye(n_keys, dtype=torch.bool, device=real.device)[start:]  # (T, S)
        seen = real[:, None] & causal_mask(n_keys - start, n_keys, real.device)  # (B, T, S)
        return cls(real[:, start:, None], (seen | own)[:, None])


def shifted(x: Tensor, cache: KVCache | None) -> Tensor:
    """Return for each token of `x` (B, T, C) the one before it, cached or not; zeros for the first."""
    before = torch.zeros_like(x[:, :1]) if cache is None or cache.last is None else cache.last
    if cache is not None:
        cache.last = x[:, -1:]
    return torch.cat((before, x[:, :-1]), dim=1)


class FirstValues:
    """The first layer's values of the tokens that pass, which every later layer averages with its own (ResFormer).

    v_n' = (v_n + v_1) / 2, before G2: the constant form with equal parts of Zhou et al. (2024, arXiv 2410.17897).
    """

    def __init__(self) -> None:
        self.v: Tensor | None = None

    def joined(self, v: Tensor, *, is_first_layer: bool) -> Tensor:
        """Return the layer's values (B, T, K, D); the first layer's are kept for the others."""
        if is_first_layer:
            self.v = v
            return v
        assert self.v is not None
        return 0.5 * (v + self.v)


class Attention(nn.Module):
    """Grouped-query attention with QK-norm and RoPE; one call at each of the paper's five gate positions."""

    def __init__(self, config: ModelConfig, variant: Variant, depth: int) -> None:
        super().__init__()
        self.is_first_layer = depth == 0
        c, h, k, d = config.d_model, config.n_heads, config.n_kv_heads, config.head_dim
        self.n_heads, self.n_kv_heads, self.head_dim = h, k, d
        bias = config.qkv_bias
        self.q_proj = nn.Linear(c, h * d, bias=bias)
        self.k_proj = kv_projection(config, variant.design.switch_heads, "k")
        self.v_proj = kv_projection(config, variant.design.switch_heads, "v")
        self.o_proj = nn.Linear(h * d, c, bias=bias)
        self.q_norm = RMSNorm(d, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(d, eps=config.norm_eps) if config.qk_norm else nn.Identity()

        def site(position: str, heads: int, width: int) -> GateSite:
            return GateSite(variant.at(position), c, heads, width, bias=bias, norm_eps=config.norm_eps)

        self.reads_previous = any(gate.source == "previous" for gate in variant.gates)
        self.g1 = site("g1", h, d)
        self.g2 = site("g2", k, d)
        self.g3 = site("g3", k, d)
        self.g4 = site("g4", h, d)
        self.g5 = site("g5", 1, c)
        self.kernel = KERNELS[variant.design.kernel](config, variant.design, depth)
        self.head_output = HeadOutput(config, variant.design, depth)

    def project(self, x: Tensor, cache: KVCache | None = None) -> GateInputs:
        """Return `x` (B, T, C) with its queries, keys and values: normed, not yet gated or rotated."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.n_heads, -1)))  # (B, T, H, D)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.n_kv_heads, -1)))  # (B, T, K, D)
        v = self.v_proj(x).unflatten(-1, (self.n_kv_heads, -1))  # (B, T, K, D)
        return GateInputs(x, q, k, v, shifted(x, cache) if self.reads_previous else None)

    def queries_keys(self, inputs: GateInputs, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return q (B, H, T, D) and k (B, K, T, D) as attention reads them: gated and rotated."""
        q, k = self.g4(inputs.query, inputs), self.g3(inputs.key, inputs)
        return rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: KVCache | None = None,
        first_values: FirstValues | None = None,
        padding: Padding | None = None,
    ) -> Tensor:
        """Return the attention output (B, T, C) for the normed hidden states `x` (B, T, C)."""
        if padding is not None:
            x = x.masked_fill(~padding.real, 0.0)  # as what stands before a sequence's first token is zero
        inputs = self.project(x, cache)
        if first_values is not None:
            inputs = inputs._replace(value=first_values.joined(inputs.value, is_first_layer=self.is_first_layer))
        q, k = self.queries_keys(inputs, cos, sin)  # (B, H, T, D), (B, K, T, D)
        own_v = self.g2(inputs.value, inputs)  # (B, T, K, D)
        v, decay = own_v.transpose(1, 2), self.kernel.decay(x)  # (B, K, T, D), (B, H, T) or None
        if cache is not None:
            k, v, decay = cache.extend(k, v, decay)  # (B, K, S, D), (B, H, S)
        y = self.kernel(q, k, v, decay, mask=None if padding is None else padding.mask)  # (B, H, T, D)
        y = self.head_output(y.transpose(1, 2), own_v)  # (B, T, H, D)
        inputs = inputs._replace(output=y)
        y = self.g1(y, inputs)
        out = self.o_proj(y.flatten(2))  # (B, T, C)
        return self.g5(out.unsqueeze(2), inputs).squeeze(2)
