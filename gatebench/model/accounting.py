"""Parameters and FLOPs of a variant, by arithmetic on the configuration. Imports no torch.

Tests compare every figure with the built module (`numel()`) and with torch's own FLOP counter, for the whole registry.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatebench.config import ModelConfig, RunConfig, apply_variant
from gatebench.errors import UserError
from gatebench.gatespec import GateSpec
from gatebench.variants import Variant, get


@dataclass(frozen=True)
class Site:
    """Heads and width of the tensor that a gate acts on."""

    n_heads: int
    width: int


def gate_site(config: ModelConfig, position: str) -> Site:
    """Return the shape of the tensor at `position`: query heads (G1, G4), KV heads (G2, G3), or d_model (G5)."""
    if position == "g5":
        return Site(1, config.d_model)
    return Site(config.n_heads if position in ("g1", "g4") else config.n_kv_heads, config.head_dim)


def gate_params(config: ModelConfig, gate: GateSpec) -> int:
    """Return the parameters of one gate in one layer."""
    site = gate_site(config, gate.position)
    if gate.mode == "transform":
        return site.n_heads * site.width if gate.activation == "rmsnorm" else 0
    width = site.n_heads * (1 if gate.granularity == "headwise" else site.width)
    if gate.source == "constant":
        return width
    return width * (config.d_model + config.qkv_bias)


def layer_breakdown(config: ModelConfig, variant: Variant) -> dict[str, int]:
    """Return the parameters of one layer by part, gates last under their names; the values sum to `layer_params`."""
    q, kv, c = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim, config.d_model
    bias = config.qkv_bias
    parts = {
        "q_proj": (c + bias) * q,
        "k_proj": (c + bias) * kv,
        "v_proj": (c + bias) * kv,
        "o_proj": (q + bias) * c,
        "qk_norm": 2 * config.head_dim * config.qk_norm,
        "ffn": 3 * c * config.ffn_dim,
        "norms": (4 if variant.design.sandwich_norm else 2) * c,
    }
    return parts | {gate.name: gate_params(config, gate) for gate in variant.gates}


def layer_params(config: ModelConfig, variant: Variant) -> int:
    """Return the parameters of one layer."""
    return sum(layer_breakdown(config, variant).values())


def total_params(config: ModelConfig, variant: Variant) -> int:
    """Return all parameters; tied embeddings count once."""
    embeddings = config.vocab_size * config.d_model * (1 if config.tie_embeddings else 2)
    return embeddings + config.n_layers * layer_params(config, variant) + config.d_model


def match_ffn(config: ModelConfig, variant: Variant, target: int) -> ModelConfig:
    """Return `config` with the ffn_dim that brings the variant's count nearest to `target` (ties: the smaller).

    Raises UserError where even one FFN unit would be too many.
    """
    unit = 3 * config.d_model * config.n_layers
    rest = total_params(config, variant) - unit * config.ffn_dim
    ffn_dim = -(-(2 * (target - rest) - unit) // (2 * unit))  # round half down
    if ffn_dim < 1:
        raise UserError(
            f"param_match='ffn': variant '{variant.name}' adds {rest - target + unit * config.ffn_dim:,} parameters, "
            f"more than the whole FFN (ffn_dim={config.ffn_dim}) holds; legal: param_match=none or a larger ffn_dim"
        )
    return config.model_copy(update={"ffn_dim": ffn_dim})


@dataclass(frozen=True)
class Accounting:
    """What a variant costs under a recipe."""

    model: ModelConfig
    """The final shape, after the variant's overrides and parameter matching."""
    n_params: int
    n_params_baseline: int
    flops_per_token: int
    flops_per_token_baseline: int

    @property
    def added(self) -> int:
        """Parameters beyond the baseline's; with param_match=ffn, the residual."""
        return self.n_params - self.n_params_baseline


def account(config: RunConfig) -> Accounting:
    """Return the final model shape of a run and its exact costs beside the baseline's."""
    variant, baseline = get(config.variant), get("baseline")
    model = apply_variant(config.model, variant)
    target = total_params(config.model, baseline)
    if config.param_match == "ffn":
        model = match_ffn(model, variant, target)
    seq_len = config.data.seq_len
    return Accounting(
        model,
        total_params(model, variant),
        target,
        train_flops_per_token(model, variant, seq_len),
        train_flops_per_token(config.model, baseline, seq_len),
    )


def forward_flops_per_token(config: ModelConfig, variant: Variant, seq_len: int) -> int:
    """Return matrix-product FLOPs of one token's forward pass at context `seq_len`.

    Two per multiply-add; attention counts the full T x T map (the convention of PaLM's appendix B, which does not halve
    for causality); norms, activations and elementwise products are left out.
    """
    q, kv, c = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim, config.d_model
    weights = c * q + 2 * c * kv + q * c + 3 * c * config.ffn_dim
    for gate in variant.gates:
        if gate.source == "hidden":
            site = gate_site(config, gate.position)
            weights += c * site.n_heads * (1 if gate.granularity == "headwise" else site.width)
    attention = 2 * seq_len * q  # q kᵀ and the weighted sum of values
    return 2 * (config.n_layers * (weights + attention) + c * config.vocab_size)


def train_flops_per_token(config: ModelConfig, variant: Variant, seq_len: int) -> int:
    """Return FLOPs of one training token: the backward pass costs twice the forward pass."""
    return 3 * forward_flops_per_token(config, variant, seq_len)
