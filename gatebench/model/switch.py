"""Switch heads: every KV head picks its key or value projection from experts, token by token (the paper's Table 6).

Letters: B batch, T tokens, C d_model, K KV heads, E experts, D head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gatebench.config import ModelConfig
from gatebench.design import SwitchHeads


class SwitchProjection(nn.Linear):
    """Experts of one projection for every KV head: v_h = Σ_{e in top-k of s} σ(s_e) · x W_{h,e}, with s = x W_s,h.

    The sigmoid comes after the selection; nothing is renormalised and nothing has a bias (SwitchHead: RobertCsordas/
    moe_attention, `full_moe_relative_attention.py`). Keys and values have routers of their own. With one expert this is
    the headwise gate on the projection's output: `switch_v_1top1` is `g2_headwise`.

    All experts are computed in one matrix product, the unselected ones times zero, so that no (token, head) pair is
    sorted and no shape depends on the data. `accounting.py` counts all of them (docs/scale.md).
    """

    def __init__(self, d_model: int, n_heads: int, head_dim: int, heads: SwitchHeads) -> None:
        super().__init__(d_model, heads.n_experts * n_heads * head_dim, bias=False)
        self.router = nn.Linear(d_model, n_heads * heads.n_experts, bias=False)
        self.n_heads, self.n_experts, self.top_k = n_heads, heads.n_experts, heads.top_k

    def scores(self, x: Tensor) -> Tensor:
        """Return what multiplies each expert, (B, T, K, E) for `x` (B, T, C): σ of the logit, 0 where not selected."""
        logits = self.router(x).unflatten(-1, (self.n_heads, self.n_experts))  # (B, T, K, E)
        if self.top_k == self.n_experts:
            return logits.sigmoid()
        selected = torch.zeros_like(logits).scatter(-1, logits.topk(self.top_k, dim=-1).indices, 1.0)
        return logits.sigmoid() * selected

    def forward(self, x: Tensor) -> Tensor:
        """Return keys or values (B, T, K * D) for `x` (B, T, C)."""
        experts = super().forward(x).unflatten(-1, (self.n_experts, self.n_heads, -1))  # (B, T, E, K, D)
        scores = self.scores(x).mT.unsqueeze(-1)  # (B, T, E, K, 1)
        return (experts * scores).sum(dim=-3).flatten(-2)  # (B, T, K * D)


def kv_projection(config: ModelConfig, heads: SwitchHeads | None, tensor: str) -> nn.Linear:
    """Return the map from `x` (B, T, C) to `tensor`, "k" or "v" (B, T, K * D): one matrix, or switch heads there."""
    if heads is not None and tensor in heads.tensors:
        return SwitchProjection(config.d_model, config.n_kv_heads, config.head_dim, heads)
    return nn.Linear(config.d_model, config.n_kv_heads * config.head_dim, bias=config.qkv_bias)
