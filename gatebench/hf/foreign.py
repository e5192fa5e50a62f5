"""What a checkpoint's config.json says in transformers' words, as a shape and a variant of ours, and back.

Whatever would change the result and cannot be represented is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from pydantic import ValidationError
from transformers import PreTrainedConfig, Qwen3Config, Qwen3MoeConfig, Qwen3NextConfig

from gatebench import variants
from gatebench.config import ModelConfig, RopeScalingConfig
from gatebench.errors import UserError
from gatebench.gatespec import GateSpec
from gatebench.hf.config import THEIR_WORDS, in_their_words
from gatebench.hf.layouts import QWEN3, QWEN3_NEXT, RELEASED, Layout
from gatebench.validation import one_line

CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "qwen3": Qwen3Config,
    "qwen3_moe": Qwen3MoeConfig,
    "qwen3_next": Qwen3NextConfig,
}
"""model_type -> what reads it, apart from gatebench's own."""
LEGAL = "gatebench, qwen3 (stock, or with the released code's gates), qwen3_moe, qwen3_next (full-attention layers)"
EXPERT_WORDS = {
    "n_experts": "num_experts",
    "top_k": "num_experts_per_tok",
    "expert_dim": "moe_intermediate_size",
    "norm_topk_prob": "norm_topk_prob",
}
"""A key of `model.moe` -> what transformers calls it."""
RELEASED_FLAGS = ("headwise_attn_output_gate", "elementwise_attn_output_gate", "qkv_bias", "use_qk_norm")
RELEASED_GATES = {GateSpec("g1", "headwise"): "g1_headwise", GateSpec("g1", "elementwise"): "g1_elementwise"}


@dataclass(frozen=True)
class Foreign:
    """What a checkpoint's config says, in our words."""

    shape: ModelConfig
    variant: str
    layout: Layout


def read(content: dict[str, Any], source: str) -> Foreign:
    """Return what `content`, a config.json, says. Raises UserError, naming `source`, for what we cannot represent."""
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIGS:
        raise UserError(f"{source}: model_type={kind!r} is not one that can be read; legal: {LEGAL}")
    try:
        config: Any = CONFIGS[kind].from_dict(content)
    except Exception as error:  # transformers has several for this
        reason = shorten(" ".join(str(error).split()), 200, placeholder=" ...")
        raise UserError(f"{source}: bad config.json ({reason})") from None
    for flag in RELEASED_FLAGS:
        if not isinstance(content.get(flag, False), bool):
            raise UserError(f"{source}: {flag}={content[flag]!r}; legal: true, false")
    released = kind == "qwen3" and any(flag in content for flag in RELEASED_FLAGS)
    for problem in _problems(config, kind):
        raise UserError(f"{source}: {problem}")
    theta, scaling = _rope(config, source)
    # Headwise wins where both are set.
    gates = [gate for gate in ("headwise", "elementwise") if released and content.get(f"{gate}_attn_output_gate")]
    if kind == "qwen3_next":
        gates = ["elementwise"]
    variant = f"g1_{gates[0]}" if gates else "baseline"
    words: dict[str, Any] = {
        **{ours: getattr(config, theirs, None) for ours, theirs in THEIR_WORDS.items()},
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        "qk_norm": not released or content.get("use_qk_norm", True),
        "qkv_bias": content.get("qkv_bias", False) if released else config.attention_bias,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "norm_eps": config.rms_norm_eps,
    }
    if kind == "qwen3_moe":
        words["moe"] = {ours: getattr(config, theirs) for ours, theirs in EXPERT_WORDS.items()}
        words["moe"] |= {"lbl_coef": config.router_aux_loss_coef, "lbl_convention": "transformers"}
        words["ffn_dim"] = config.moe_intermediate_size
    try:
        shape = ModelConfig.model_validate(words)
    except ValidationError as error:
        raise UserError(f"{source}: {one_line(error, ModelConfig)}") from None
    return Foreign(shape, variant, QWEN3_NEXT if kind == "qwen3_next" else RELEASED if released else QWEN3)


def _problems(config: Any, kind: str) -> list[str]:
    """Return a line for everything in a config, except RoPE, that changes the result and that we do not have."""
    problems = []
    if config.hidden_act != "silu":
        problems.append(f"hidden_act={config.hidden_act!r}; legal: silu")
    types = getattr(config, "layer_types", None) or []
    if other := sorted(set(types) - {"full_attention"}):
        problems.append(
            f"layer_types: layer {types.index(other[0])} is {other[0]}; legal: full_attention in every layer"
        )
    elif getattr(config, "use_sliding_window", False) and config.sliding_window and not types:
        problems.append(f"sliding_window={config.sliding_window} is in use; legal: use_sliding_window=false")
    if kind == "qwen3":
        return problems
    dense = set(config.mlp_only_layers or [])
    if kind == "qwen3_moe" and (dense or config.decoder_sparse_step != 1):
        problems.append(
            "mlp_only_layers or decoder_sparse_step leave layers without experts; legal: experts in all or none"
        )
    if kind == "qwen3_next" and config.num_experts and not dense.issuperset(range(config.num_hidden_layers)):
        problems.append("its experts have a shared one, which is not supported; legal: num_experts=0")
    return problems


def _rope(config: Any, source: str) -> tuple[Any, dict[str, Any] | None]:
    """Return base and scaling of the rotary embedding. Raises UserError for any but plain RoPE and YaRN on whole heads.

    The kinds (linear, dynamic, YaRN, ...) are told apart here, and only here.
    """
    rope = dict(config.rope_parameters)
    theta, partial = rope.pop("rope_theta"), rope.pop("partial_rotary_factor", None)
    partial = partial or getattr(config, "partial_rotary_factor", None) or 1.0
    if partial != 1.0:
        raise UserError(f"{source}: partial_rotary_factor={partial}: part of a head is rotated; legal: 1.0")
    if (kind := rope.get("rope_type", "default")) == "default":
        return theta, None
    if kind != "yarn":
        raise UserError(f"{source}: rope_type={kind!r} is not supported; legal: default, yarn")
    scaling = {key: value for key, value in rope.items() if value is not None and key != "type"}
    if other := sorted(scaling.keys() - RopeScalingConfig.model_fields.keys()):
        legal = ", ".join(RopeScalingConfig.model_fields)
        raise UserError(f"{source}: rope_parameters.{other[0]}={scaling[other[0]]!r} is not supported; legal: {legal}")
    return theta, scaling


def why_not(layout: Layout, shape: ModelConfig, variant: variants.Variant) -> str | None:
    """Return why `layout` (QWEN3 or RELEASED) cannot hold a model, in a clause; None where it can."""
    if variant.design.changes:
        return f"{' and '.join(variant.design.words)} is not in it"
    if layout is QWEN3:
        if variant.gates:
            return "it has no gates"
        return None if shape.qk_norm else "it has no model.qk_norm=false"
    if len(variant.gates) > 1 or (variant.gates and variant.gates[0] not in RELEASED_GATES):
        return f"its gates are {' or '.join(RELEASED_GATES.values())}"
    return None if shape.moe is None else "it has no experts"


def write(shape: ModelConfig, variant: variants.Variant, layout: Layout, dtype: str) -> dict[str, Any]:
    """Return the config.json of a model that `layout` (QWEN3 or RELEASED) can hold, for transformers 4.51 and later."""
    content: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM" if shape.moe is None else "Qwen3MoeForCausalLM"],
        "model_type": "qwen3" if shape.moe is None else "qwen3_moe",
        **in_their_words(shape),
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None if shape.rope_scaling is None else shape.rope_scaling.model_dump(exclude_none=True),
        "initializer_range": shape.init_std,
        "attention_bias": shape.qkv_bias,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "use_cache": True,
        "torch_dtype": dtype,
    }
    if (scaling := shape.rope_scaling) is not None:
        # transformers 4 divides these two, whatever the factor says
        content["max_position_embeddings"] = round(scaling.factor * scaling.original_max_position_embeddings)
    if shape.moe is not None:
        content |= {theirs: getattr(shape.moe, ours) for ours, theirs in EXPERT_WORDS.items()}
        content |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    if layout is RELEASED:
        content |= {
            "qkv_bias": shape.qkv_bias,
            "use_qk_norm": shape.qk_norm,
            "headwise_attn_output_gate": any(gate.granularity == "headwise" for gate in variant.gates),
            "elementwise_attn_output_gate": any(gate.granularity == "elementwise" for gate in variant.gates),
        }
    return content
