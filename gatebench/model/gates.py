"""Gates: the only place that interprets a `GateSpec`.

Letters: B batch, T tokens, C d_model, H heads at the site, D head_dim (at G5: H = 1, D = d_model).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatebench.gatespec import GateSpec
from gatebench.model.norm import rms_norm

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "ns_sigmoid": lambda logits: 0.5 + 0.5 * torch.sigmoid(logits),
    "identity": lambda logits: logits,
    "tanh": torch.tanh,
    "relu": F.relu,
}


def score_width(spec: GateSpec, n_heads: int, head_dim: int) -> int:
    """Return how many raw scores a gate computes per token, before any sharing."""
    return n_heads if spec.granularity == "headwise" else n_heads * head_dim


class GateInputs(NamedTuple):
    """What a layer offers its gates to compute scores from; each may use what its `GateSpec.source` names."""

    hidden: Tensor
    """The attention input (B, T, C), normed."""
    query: Tensor
    """(B, T, H, D), after QK-norm, before a G4 gate and RoPE."""
    key: Tensor
    """(B, T, K, D), after QK-norm, before a G3 gate and RoPE."""
    value: Tensor
    """(B, T, K, D), before a G2 gate."""


class Gate(nn.Module):
    """One gate on a (B, T, H, D) tensor, scored from the attention input (paper section 2.2, equation 5).

    Scores are computed in the dtype of the activations, as in the released code. `scores` is separate from `forward`
    so that probes read exactly what the gate applies.
    """

    def __init__(
        self, spec: GateSpec, d_model: int, n_heads: int, head_dim: int, *, bias: bool, norm_eps: float
    ) -> None:
        super().__init__()
        self.spec = spec
        self.n_heads = n_heads
        self.head_dim = head_dim
        self.norm_eps = norm_eps
        width = score_width(spec, n_heads, head_dim)
        if spec.source == "hidden":
            self.proj = nn.Linear(d_model, width, bias=bias)
        elif spec.source == "constant":
            self.theta = nn.Parameter(torch.zeros(n_heads, width // n_heads))
        elif spec.activation == "rmsnorm":
            # One gain per channel of every head: head-specific, as a GroupNorm with one group per head has it.
            self.gain = nn.Parameter(torch.ones(n_heads, head_dim))

    def logits(self, inputs: GateInputs) -> Tensor:
        """Return raw scores (B, T, H, D or 1); (1, 1, H, D or 1) from a constant."""
        if self.spec.source == "constant":
            return self.theta.to(inputs.hidden.dtype)[None, None]
        return self.proj(inputs.hidden).unflatten(-1, (self.n_heads, -1))

    def scores(self, logits: Tensor) -> Tensor:
        """Return what multiplies or is added: the activation of `logits`, averaged over heads where shared."""
        activation = ACTIVATIONS[self.spec.activation]
        if not self.spec.shared:
            return activation(logits)
        if self.spec.shared_average == "logits":
            return activation(logits.mean(dim=-2, keepdim=True))
        return activation(logits).mean(dim=-2, keepdim=True)

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
