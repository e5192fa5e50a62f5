"""Gates: the only place that interprets a `GateSpec`.

Letters: B batch, T tokens, C d_model, H heads at the site, D head_dim (at G5: H = 1, D = d_model).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatebench.gatespec import HEAD_SOURCES, GateSpec
from gatebench.model.norm import rms_norm


def hard_sigmoid(logits: Tensor) -> Tensor:
    """Return 1 where σ(logits) > 0.5 and else 0, with the gradient of σ (straight-through, Bengio et al. 2013)."""
    soft = torch.sigmoid(logits)
    return (logits > 0).to(soft.dtype) + (soft - soft.detach())


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "identity": lambda logits: logits,
    "tanh": torch.tanh,
    "relu": F.relu,
    "hard": hard_sigmoid,
}


class GateInputs(NamedTuple):
    """What a layer offers its gates to compute scores from; each reads what its `GateSpec.source` names."""

    hidden: Tensor
    """The attention input (B, T, C), normed."""
    query: Tensor
    """(B, T, H, D), after QK-norm, before a G4 gate and RoPE."""
    key: Tensor
    """(B, T, K, D), after QK-norm, before a G3 gate and RoPE."""
    value: Tensor
    """(B, T, K, D), before a G2 gate."""
    previous: Tensor | None = None
    """`hidden` of the token before (B, T, C), zeros at the first; None where no gate reads it."""
    output: Tensor | None = None
    """The SDPA output (B, T, H, D) before any G1 gate; None before there is one."""


class HeadLinear(nn.Module):
    """A linear map for each head, from its own channels to its own scores."""

    def __init__(self, n_heads: int, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_heads, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(n_heads * out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, T, H · out_features), laid out as by one matrix for all heads, for `x` (B, T, H, in_features)."""
        scores = torch.einsum("bthi,hoi->btho", x, self.weight).flatten(2)
        return scores if self.bias is None else scores + self.bias.to(scores.dtype)


class Gate(nn.Module):
    """One gate on a (B, T, H, D) tensor, scored from what the layer computes anyway (paper section 2.2, equation 5).

    Scores are computed in the dtype of the activations, as in the released code. `scores` is separate from `forward`
    so that probes read exactly what the gate applies. Raises UserError where the shape cannot have the gate.
    """

    def __init__(
        self, spec: GateSpec, d_model: int, n_heads: int, head_dim: int, *, bias: bool, norm_eps: float
    ) -> None:
        super().__init__()
        self.spec = spec
        self.n_heads = n_heads
        self.head_dim = head_dim
        self.norm_eps = norm_eps
        width = spec.score_width(n_heads, head_dim)
        bias = bias or spec.bias is not None
        if spec.source == "constant":
            self.theta = nn.Parameter(torch.zeros(n_heads, width // n_heads))
        elif spec.source in HEAD_SOURCES:
            read = spec.input_width(d_model, n_heads, head_dim)
            self.proj: nn.Module = HeadLinear(n_heads, read, width // n_heads, bias=bias)
        elif spec.source != "self":
            read = spec.input_width(d_model, n_heads, head_dim)
            if spec.rank is not None:
                self.reduce = nn.Linear(read, spec.rank, bias=False)
            self.proj = nn.Linear(spec.rank or read, width, bias=bias)
        elif spec.activation == "rmsnorm":
            # One gain per channel of every head: head-specific, as a GroupNorm with one group per head has it.
            self.gain = nn.Parameter(torch.ones(n_heads, head_dim))

    def source(self, inputs: GateInputs) -> Tensor:
        """Return what scores are computed from: (B, T, C or first) for all heads, or (B, T, H, C / H or D) by head."""
        if self.spec.source == "slice":
            read = inputs.hidden.unflatten(-1, (self.n_heads, -1))
        else:
            read = getattr(inputs, self.spec.source)
        if self.spec.source in HEAD_SOURCES and read.shape[2] < self.n_heads:
            read = read.repeat_interleave(self.n_heads // read.shape[2], dim=2)  # a KV head serves its group
        if self.spec.first is not None:
            read = read[..., : self.spec.first]
        return read.detach() if self.spec.detached else read

    def logits(self, inputs: GateInputs) -> Tensor:
        """Return raw scores (B, T, H, D or 1); (1, 1, H, D or 1) from a constant."""
        if self.spec.source == "constant":
            return self.theta.to(inputs.hidden.dtype)[None, None]
        read = self.source(inputs)
        if self.spec.rank is not None:
            read = self.reduce(read)
        return self.proj(read).unflatten(-1, (self.n_heads, -1))

    def scores(self, logits: Tensor) -> Tensor:
        """Return what multiplies or is added: the activation of `logits`, averaged over heads where shared."""
        spec = self.spec
        if spec.shared and spec.shared_average == "logits":
            logits = logits.mean(dim=-2, keepdim=True)
        if spec.temperature != 1:
            logits = logits / spec.temperature
        scores = ACTIVATIONS[spec.activation](logits)
        if spec.floor:
            scores = spec.floor + (1 - spec.floor) * scores
        if spec.shared and spec.shared_average == "scores":
            scores = scores.mean(dim=-2, keepdim=True)
        return scores

    def forward(self, site: Tensor, inputs: GateInputs) -> Tensor:
        """Return the gated `site` (B, T, H, D)."""
        if self.spec.mode == "transform":
            if self.spec.activation == "silu_only":
                return F.silu(site)
            return rms_norm(site, self.head_dim, self.gain, self.norm_eps)
        scores = self.scores(self.logits(inputs))
        return site + scores if self.spec.mode == "additive" else site * scores


class GateSite(nn.Module):
    """Every gate of one site, in order; the identity where a variant has none there."""

    def __init__(
        self, specs: tuple[GateSpec, ...], d_model: int, n_heads: int, head_dim: int, *, bias: bool, norm_eps: float
    ) -> None:
        super().__init__()
        self.gates = nn.ModuleList(
            Gate(spec, d_model, n_heads, head_dim, bias=bias, norm_eps=norm_eps) for spec in specs
        )

    def forward(self, site: Tensor, inputs: GateInputs) -> Tensor:
        """Return `site` (B, T, H, D) after all gates here."""
        for gate in self.gates:
            site = gate(site, inputs)
        return site
