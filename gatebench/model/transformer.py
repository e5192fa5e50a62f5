"""The decoder-only transformer of the paper's Table 7 (dense): pre-norm, RMSNorm, SwiGLU, tied or untied embeddings.

Letters: B batch, T tokens, C d_model, F ffn_dim, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gatebench.config import ModelConfig
from gatebench.design import Design
from gatebench.model.attention import Attention, FirstValues, KVCache, Padding
from gatebench.model.loss import linear_cross_entropy
from gatebench.model.moe import MoE
from gatebench.model.norm import RMSNorm
from gatebench.model.rope import Rope
from gatebench.variants import Variant


class SwiGLU(nn.Module):
    """down(SiLU(gate(x)) ⊙ up(x)) (Shazeer 2020)."""

    def __init__(self, d_model: int, ffn_dim: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, ffn_dim, bias=False)
        self.up_proj = nn.Linear(d_model, ffn_dim, bias=False)
        self.down_proj = nn.Linear(ffn_dim, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, C) for `x` (B, T, C)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class SublayerOutput(nn.Module):
    """What happens to a sublayer's output before it is added to the residual stream: nothing, a clamp, a norm, or both.

    The clamp of the paper's appendix A.6 to [-c, c] comes first, then the second norm of a sandwich (its Table 2).
    """

    def __init__(self, config: ModelConfig, design: Design) -> None:
        super().__init__()
        self.clip = design.output_clip
        self.norm = RMSNorm(config.d_model, eps=config.norm_eps) if design.sandwich_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, C) for the output `x` (B, T, C) of a sublayer."""
        if self.clip is not None:
            x = x.clamp(-self.clip, self.clip)
        return self.norm(x)


class Block(nn.Module):
    """One pre-norm layer: h + Attn(N(h)), then h + FFN(N(h)); a `Design` may change what is added."""

    def __init__(self, config: ModelConfig, variant: Variant, depth: int) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.attn = Attention(config, variant, depth)
        self.attn_out = SublayerOutput(config, variant.design)
        self.ffn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.ffn = SwiGLU(config.d_model, config.ffn_dim) if config.moe is None else MoE(config.d_model, config.moe)
        self.ffn_out = SublayerOutput(config, variant.design)

    def forward(
        self,
        h: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: KVCache | None = None,
        first_values: FirstValues | None = None,
        padding: Padding | None = None,
    ) -> Tensor:
        """Return the residual stream (B, T, C) after this layer."""
        h = h + self.attn_out(self.attn(self.attn_norm(h), cos, sin, cache, first_values, padding))
        return h + self.ffn_out(self.ffn(self.ffn_norm(h)))


class Transformer(nn.Module):
    """Token ids in, logits out. `config` is final: overrides and parameter matching are applied (`model.build`)."""

    def __init__(self, config: ModelConfig, variant: Variant) -> None:
        super().__init__()
        self.config = config
        self.variant = variant
        self.embed = nn.Embedding(config.vocab_size, config.d_model)
        self.n_registers = variant.design.registers
        if self.n_registers:
            self.registers = nn.Parameter(torch.empty(self.n_registers, config.d_model))
        self.rope = Rope(config.head_dim, config.rope_theta, config.rope_scaling)
        self.blocks = nn.ModuleList(Block(config, variant, depth) for depth in range(config.n_layers))
        self.norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.lm_head.weight = self.embed.weight
        self.recompute = False
        """Keep only each block's input for the backward pass, and compute the rest again there."""

    def forward(self, ids: Tensor, caches: list[KVCache] | None = None, real: Tensor | None = None) -> Tensor:
        """Return logits (B, T, V) for `ids` (B, T); with `caches` (one a layer), `ids` continue what is cached.

        `real` marks padding (`hidden`).
        """
        return self.lm_head(self.hidden(ids, caches, real))

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean next-token cross-entropy in nats for `ids` and `targets` (B, T)."""
        return linear_cross_entropy(self.hidden(ids), self.lm_head.weight, targets)

    def hidden(self, ids: Tensor, caches: list[KVCache] | None = None, real: Tensor | None = None) -> Tensor:
        """Return what the output layer reads, the normed residual stream (B, T, C).

        Registers stand at the first positions of the sequence, before the text; their outputs are dropped.
        `real` says of every token, cached or in `ids`, whether it is one: (B, S), False for the padding before each
        row's first token. A row is what it would be without its padding, where outputs mean nothing. With caches, the
        first call must reach the first token of every row.
        """
        start = caches[0].length if caches else 0
        h = self.embed(ids)  # (B, T, C)
        padding = None
        if real is None:
            if self.n_registers and start == 0:
                h = torch.cat((self.registers.to(h.dtype).expand(len(h), -1, -1), h), dim=1)  # (B, registers + T, C)
            cos, sin = self.rope(start, h.shape[1], ids.device)
        else:
            real = F.pad(real, (0, self.n_registers), value=True)  # registers stand between padding and text
            positions = (real.cumsum(1) - 1).clamp(min=0)[:, start:]
            if self.n_registers and start == 0:
                text = F.pad(h, (0, 0, self.n_registers, 0))
                registers = self.registers.to(h.dtype)[positions.clamp(max=self.n_registers - 1)]
                h = torch.where((positions < self.n_registers)[..., None], registers, text)
            cos, sin = self.rope.at(positions)
            padding = Padding.of(real, start)
        first_values = FirstValues() if self.variant.design.value_residual else None
        for i, block in enumerate(self.blocks):
            inputs = (h, cos, sin, caches[i] if caches else None, first_values, padding)
            if self.recompute and torch.is_grad_enabled():
                h = checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
            else:
                h = block(*inputs)
        return self.norm(h[:, -ids.shape[1] :])

    def new_caches(self) -> list[KVCache]:
        """Return an empty cache for every layer."""
        return [KVCache() for _ in self.blocks]
