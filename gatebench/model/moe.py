"""Mixture of experts: a softmax top-k router over fine-grained SwiGLU experts, and what keeps their loads even.

Letters: B batch, T tokens, N = B * T, C d_model, E n_experts, K top_k, F expert_dim, L layers. docs/moe.md has the
formulas; the layer is transformers' Qwen3MoeSparseMoeBlock, weight for weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatebench.config import MoEConfig
from gatebench.model.grouped import grouped_mm


class Routing(NamedTuple):
    """What the router of one layer did with one batch; `load_balancing_loss` and `z_loss` read it."""

    counts: Tensor
    """(E,) int64: tokens sent to each expert; they sum to N * K."""
    mean_probs: Tensor
    """(E,) mean router probability of each expert, fp32, with gradient."""
    z: Tensor
    """Mean squared logsumexp of the router's logits, fp32, with gradient."""
    entropy: Tensor
    """Mean entropy of the router's probabilities in nats, without gradient; ln E when it prefers no expert."""


class _Dispatch(torch.autograd.Function):
    """Tokens (N, C) to rows (N * K, C) sorted by expert: row i is token order[i] // K.

    Forward and backward are look-ups, without atomic additions, so that results are the same to the bit every time.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, inverse: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.top_k = top_k
        return tokens[order // top_k]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        return grads[0][inverse].unflatten(0, (-1, ctx.top_k)).sum(1), None, None, None


class _Collect(torch.autograd.Function):
    """Rows sorted by expert (N * K, C) back to the order of their tokens (N, K, C)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(order)
        return rows[inverse].unflatten(0, (-1, top_k))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (order,) = ctx.saved_tensors
        return grads[0].flatten(0, 1)[order], None, None, None


class MoE(nn.Module):
    """The experts of one layer. The router works in fp32 whatever the precision of the rest; no token is dropped."""

    def __init__(self, d_model: int, config: MoEConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(d_model, config.n_experts, bias=False)
        self.gate_up_proj = nn.Parameter(torch.empty(config.n_experts, 2 * config.expert_dim, d_model))
        self.down_proj = nn.Parameter(torch.empty(config.n_experts, d_model, config.expert_dim))
        self.routing: Routing | None = None
        """Of the latest forward pass; `take_routings` hands it over."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, C) for `x` (B, T, C): Σ_k w_k down_k(SiLU(gate_k x) ⊙ up_k x) over each token's experts."""
        tokens = x.flatten(0, -2)  # (N, C)
        weights, experts = self.route(tokens)  # (N, K) each
        ranked, order = experts.flatten().sort(stable=True)  # rows of one expert side by side
        every = torch.arange(self.config.n_experts, device=x.device)
        ends = torch.searchsorted(ranked, every, right=True, out_int32=True)  # (E,)
        inverse = order.argsort()
        top_k = self.config.top_k

        device = x.device.type
        autocast = not x.is_meta and torch.is_autocast_enabled(device)  # which the meta device does not know
        dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
        rows = _Dispatch.apply(tokens.to(dtype), order, inverse, top_k)  # (N * K, C)
        gate, up = grouped_mm(rows, self.gate_up_proj.to(dtype).transpose(1, 2), ends).chunk(2, dim=-1)
        rows = grouped_mm(F.silu(gate) * up, self.down_proj.to(dtype).transpose(1, 2), ends)  # (N * K, C)
        parts = _Collect.apply(rows, order, inverse, top_k)  # (N, K, C)
        return (parts * weights.to(dtype)[..., None]).sum(1).view_as(x)

    def route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's weights and experts, both (N, K), for `tokens` (N, C), and keep the `Routing`."""
        n_experts = self.config.n_experts
        with nullcontext() if tokens.is_meta else torch.autocast(tokens.device.type, enabled=False):
            logits = F.linear(tokens.float(), self.router.weight.float())  # (N, E)
        probs = logits.softmax(-1)
        weights, experts = probs.topk(self.config.top_k)
        if self.config.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        chosen = experts.flatten()
        lse = logits.logsumexp(-1)
        self.routing = Routing(
            counts=chosen.new_zeros(n_experts).scatter_add(0, chosen, torch.ones_like(chosen)),
            mean_probs=probs.mean(0),
            z=lse.square().mean(),
            entropy=(lse - (probs * logits).sum(-1)).mean().detach(),
        )
        return weights, experts


def take_routings(model: nn.Module) -> list[Routing]:
    """Return what every MoE layer of `model` kept in its latest forward pass, in order, and make the layers forget."""
    taken = []
    for module in model.modules():
        if isinstance(module, MoE) and module.routing is not None:
            taken.append(module.routing)
            module.routing = None
    return taken


def load_balancing_loss(mean_probs: Sequence[Tensor], counts: Tensor, config: MoEConfig) -> Tensor:
    """Return the load-balancing loss of the layers' `mean_probs` (L times (E,)); gradient flows through them alone.

    `counts` (L, E) says how many tokens went to each expert: those of this batch, or of any larger set of tokens.
    megatron (Megatron-LM, moe_utils.py): mean over layers of E Σ_e f_e P_e with f_e = counts_e / Σ counts, 1 when the
    load is even. transformers (`load_balancing_loss_func`): f, which sums to K there, and P are averaged over the
    layers first, so that it is K when even.
    """
    probs = torch.stack(list(mean_probs))  # (L, E)
    share = counts / counts.sum(-1, keepdim=True)  # (L, E)
    if config.lbl_convention == "transformers":
        share, probs = config.top_k * share.mean(0), probs.mean(0)  # (E,)
    loss = config.n_experts * (share.to(probs.dtype) * probs).sum(-1)
    return loss.mean()


def objective(lbl: Tensor, z_loss: Tensor, n_layers: int, config: MoEConfig) -> Tensor:
    """Return what is added to the cross-entropy: `lbl` and `z_loss` (means over layers), weighted.

    Layers add up in both, except that transformers' load-balancing loss is one number for all of them.
    """
    layers = 1 if config.lbl_convention == "transformers" else n_layers
    return config.lbl_coef * layers * lbl + config.z_loss_coef * n_layers * z_loss
