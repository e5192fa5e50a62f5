"""Parameters and FLOPs of a variant, by arithmetic on the configuration. Imports no torch.

Tests compare every figure with the built module (`numel()`) and with torch's own FLOP counter, for the whole registry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gatebench.config import ModelConfig, RunConfig
from gatebench.design import NULL_KEY_PADDING, Design, SwitchHeads
from gatebench.errors import UserError
from gatebench.gatespec import QUERY_SITES, GateSpec
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
    return Site(config.n_heads if position in QUERY_SITES else config.n_kv_heads, config.head_dim)


def gate_matrices(config: ModelConfig, gate: GateSpec) -> tuple[int, ...]:
    """Return the weights of a gate's matrices in one layer, from the score's input on.

    Raises UserError where the shape cannot have the gate (`GateSpec.input_width`).
    """
    site = gate_site(config, gate.position)
    return gate.matrices(config.d_model, site.n_heads, site.width)


def gate_params(config: ModelConfig, gate: GateSpec) -> int:
    """Return the parameters of one gate in one layer."""
    site = gate_site(config, gate.position)
    if gate.mode == "transform":
        return site.n_heads * site.width if gate.activation == "rmsnorm" else 0
    width = gate.score_width(site.n_heads, site.width)
    if gate.source == "constant":
        return width
    return sum(gate_matrices(config, gate)) + width * (config.qkv_bias or gate.bias is not None)


def kv_projection_params(config: ModelConfig, heads: SwitchHeads | None, tensor: str, *, bias: bool) -> int:
    """Return the parameters of one layer's map to `tensor`, "k" or "v": a matrix, or a router and experts per KV head.

    All experts are computed for every token, so without `bias` it is what a token's forward pass multiplies, too.
    """
    kv = config.n_kv_heads * config.head_dim
    if heads is None or tensor not in heads.tensors:
        return (config.d_model + bias) * kv
    return config.d_model * heads.n_experts * (kv + config.n_kv_heads)


@dataclass(frozen=True)
class KernelCosts:
    """What one layer's attention kernel costs; the defaults are softmax attention's."""

    params: Callable[[ModelConfig], int] = lambda config: 0
    token_flops: Callable[[ModelConfig], int] = lambda config: 0
    """Of each token, beside q kᵀ and the weighted sum of values."""
    passes: int = 1
    """How often these two are computed."""
    null_key: bool = False
    """One more key in every window, and a query for it."""
    padding: int = 0
    """Dimensions added to every head."""
    kept_maps: int = 0
    """fp32 maps (T x T for each head) that a kernel without a fused form keeps for its backward pass, rounded up."""


KERNEL_COSTS = {
    "softmax": KernelCosts(),
    "softmax1": KernelCosts(null_key=True),
    "sink_logits": KernelCosts(lambda config: config.n_heads, null_key=True, padding=NULL_KEY_PADDING),
    "kv_bias": KernelCosts(lambda config: 2 * config.n_kv_heads * config.head_dim, null_key=True),
    "sigmoid": KernelCosts(kept_maps=2),
    "softpick": KernelCosts(kept_maps=5),
    "clipped_softmax": KernelCosts(kept_maps=4),
    "forgetting": KernelCosts(
        lambda config: config.n_heads * (config.d_model + 1),
        token_flops=lambda config: 2 * config.d_model * config.n_heads,
        kept_maps=2,
    ),
    # four λ vectors, and the gain of the norm over a pair; once for each half of V
    "differential": KernelCosts(lambda config: 6 * config.head_dim, passes=2),
}
"""`Design.kernel` -> what it costs; the same names as KERNELS of `model/kernels.py`."""


def kernel_params(config: ModelConfig, design: Design) -> dict[str, int]:
    """Return the parameters of one layer's attention kernel under its name; nothing for a kernel without any."""
    count = KERNEL_COSTS[design.kernel].params(config)
    return {design.kernel: count} if count else {}


def kernel_flops(config: ModelConfig, design: Design, length: int) -> int:
    """Return matrix-product FLOPs of one layer's attention kernel, forward, over a window of `length` tokens."""
    costs = KERNEL_COSTS[design.kernel]
    keys, width = length + costs.null_key, config.head_dim + costs.padding
    maps = 4 * keys * keys * config.n_heads * width  # q kᵀ and the weighted sum of values
    return costs.passes * maps + length * costs.token_flops(config)


def ffn_breakdown(config: ModelConfig) -> dict[str, int]:
    """Return the parameters of one layer's feed-forward part: `ffn`, or `router` and `experts`."""
    if config.moe is None:
        return {"ffn": 3 * config.d_model * config.ffn_dim}
    n = config.moe.n_experts
    return {"router": config.d_model * n, "experts": 3 * config.d_model * config.moe.expert_dim * n}


def active_ffn_params(config: ModelConfig) -> int:
    """Return the feed-forward parameters of one layer that a token goes through: with experts, router and `top_k`."""
    parts = ffn_breakdown(config)
    if config.moe is None:
        return parts["ffn"]
    return parts["router"] + parts["experts"] * config.moe.top_k // config.moe.n_experts


def layer_breakdown(config: ModelConfig, variant: Variant) -> dict[str, int]:
    """Return the parameters of one layer by part, gates last under their names; the values sum to `layer_params`."""
    q, c = config.n_heads * config.head_dim, config.d_model
    bias, heads = config.qkv_bias, variant.design.switch_heads
    parts = {
        "q_proj": (c + bias) * q,
        "k_proj": kv_projection_params(config, heads, "k", bias=bias),
        "v_proj": kv_projection_params(config, heads, "v", bias=bias),
        "o_proj": (q + bias) * c,
        "qk_norm": 2 * config.head_dim * config.qk_norm,
        **ffn_breakdown(config),
        "norms": (4 if variant.design.sandwich_norm else 2) * c,
    }
    parts |= kernel_params(config, variant.design)
    return parts | {gate.name: gate_params(config, gate) for gate in variant.gates}


def layer_params(config: ModelConfig, variant: Variant) -> int:
    """Return the parameters of one layer."""
    return sum(layer_breakdown(config, variant).values())


def total_params(config: ModelConfig, variant: Variant) -> int:
    """Return all parameters; tied embeddings count once."""
    embeddings = config.vocab_size * config.d_model * (1 if config.tie_embeddings else 2)
    embeddings += variant.design.registers * config.d_model
    return embeddings + config.n_layers * layer_params(config, variant) + config.d_model


def active_params(config: ModelConfig, variant: Variant) -> int:
    """Return the parameters that one token goes through: all but the experts that it is not sent to."""
    idle = sum(ffn_breakdown(config).values()) - active_ffn_params(config)
    return total_params(config, variant) - config.n_layers * idle


def match(config: ModelConfig, count: Callable[[ModelConfig], int], target: int, what: str) -> ModelConfig:
    """Return `config` with the ffn_dim that brings `count` of it nearest to `target` (ties: the smaller).

    With experts it is the inner size of each of them (moe.expert_dim, too), so that a unit is n_experts times larger.
    Raises UserError, with `{what} adds {n}` filled in, where even one FFN unit would be too many.
    """
    now = count(config)
    added, unit = now - target, count(_with_ffn(config, config.ffn_dim + 1)) - now
    ffn_dim = config.ffn_dim - (2 * added + unit) // (2 * unit)
    if ffn_dim < 1:
        raise UserError(
            f"{what.format(added)}, more than the whole FFN (ffn_dim={config.ffn_dim}) holds; legal: param_match=none "
            "or a larger ffn_dim"
        )
    return _with_ffn(config, ffn_dim)


def _with_ffn(config: ModelConfig, ffn_dim: int) -> ModelConfig:
    moe = config.moe and config.moe.model_copy(update={"expert_dim": ffn_dim})
    return config.model_copy(update={"ffn_dim": ffn_dim, "moe": moe})


@dataclass(frozen=True)
class Accounting:
    """What a variant costs under a recipe."""

    model: ModelConfig
    """The final shape, after the variant's overrides and parameter matching."""
    n_params: int
    n_params_baseline: int
    n_params_active: int
    """Parameters that one token goes through; all of them in a dense model."""
    flops_per_token: int
    flops_per_token_baseline: int

    @property
    def added(self) -> int:
        """Parameters beyond the baseline's; with param_match=ffn, the residual."""
        return self.n_params - self.n_params_baseline


def final_shape(config: RunConfig) -> ModelConfig:
    """Return the shape that a run is built with: `config.shape`, with the ffn_dim that `param_match` asks for."""
    if config.param_match == "none":
        return config.shape

    def count(model: ModelConfig, variant: Variant) -> int:
        if config.param_match == "ffn":
            return total_params(model, variant)
        return train_flops_per_token(model, variant, config.data.seq_len)

    unit = "parameters" if config.param_match == "ffn" else "FLOPs a token"
    what = f"param_match='{config.param_match}': variant '{config.variant}' adds {{:,}} {unit}"
    target = count(config.model, get("baseline"))
    return match(config.shape, lambda model: count(model, config.spec), target, what)


def account(config: RunConfig) -> Accounting:
    """Return the exact costs of a run in its final shape, beside the baseline's."""
    model, variant, baseline = final_shape(config), config.spec, get("baseline")
    seq_len = config.data.seq_len
    return Accounting(
        model,
        total_params(model, variant),
        total_params(config.model, baseline),
        active_params(model, variant),
        train_flops_per_token(model, variant, seq_len),
        train_flops_per_token(config.model, baseline, seq_len),
    )


def forward_flops_per_token(config: ModelConfig, variant: Variant, seq_len: int) -> int:
    """Return matrix-product FLOPs of one token's forward pass at context `seq_len`.

    Two per multiply-add; attention counts the full T x T map (the convention of PaLM's appendix B, which does not halve
    for causality); norms, activations, elementwise products and the sorting of tokens by expert are left out. What a
    window costs only once (registers, a null key) is shared out over its tokens, rounded down.
    """
    q, c = config.n_heads * config.head_dim, config.d_model
    heads = variant.design.switch_heads
    weights = c * q + q * c + active_ffn_params(config)
    weights += sum(kv_projection_params(config, heads, tensor, bias=False) for tensor in "kv")
    weights += sum(sum(gate_matrices(config, gate)) for gate in variant.gates)
    length = seq_len + variant.design.registers
    layer = 2 * length * weights + kernel_flops(config, variant.design, length)
    return config.n_layers * layer // seq_len + 2 * c * config.vocab_size


def train_flops_per_token(config: ModelConfig, variant: Variant, seq_len: int) -> int:
    """Return FLOPs of one training token: the backward pass costs twice the forward pass.

    Less where a gate's input is detached: the matrix that reads it passes no gradient on, which is half its backward.
    """
    detached = sum(gate_matrices(config, gate)[0] for gate in variant.gates if gate.detached)
    detached = detached * (seq_len + variant.design.registers) // seq_len
    return 3 * forward_flops_per_token(config, variant, seq_len) - 2 * config.n_layers * detached
