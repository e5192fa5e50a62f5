"""Shapes and variants that the model tests share."""

from __future__ import annotations

import torch
from torch import Tensor

from gatebench import variants
from gatebench.config import ModelConfig, MoEConfig, Recipe, resolve
from gatebench.model.build import build_model
from gatebench.model.gates import GateInputs
from gatebench.model.transformer import Transformer

TINY = ModelConfig(
    n_layers=2,
    d_model=24,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    ffn_dim=20,
    vocab_size=61,
    init_std=0.2,
    context_length=128,
)
"""q * dk = 32 differs from d_model = 24; init_std is large enough for every path to leave its mark on the logits."""

TINY_MOE = TINY.model_copy(update={"ffn_dim": 4, "moe": MoEConfig(n_experts=32, top_k=4, expert_dim=4)})
"""TINY with experts, for the variants that change how many there are."""

REGISTRY = tuple(variants.registry())

GRAMMAR_EXTRAS = (
    "g1_elementwise_tanh",
    "g2_headwise_relu",
    "g1_elementwise_shared_ns_sigmoid",
    "g3_rmsnorm",
    "g4_silu_only",
    "g5_rmsnorm",
    "g5_elementwise_input_independent",
    "g3_headwise_input_independent",
    "g2_elementwise_shared_input_independent",
    "g1_elementwise_additive_silu_input_independent",
    "g3_elementwise_from_key",
    "g4_elementwise_from_value",
    "g5_elementwise_from_previous_rank4",
    "g2_headwise_from_slice",
    "g1_headwise_shared_floor0p25_temp2_from_key_detached_bias0p9",
    "g2_elementwise_shared_additive_hard_from_previous_first8_rank4_detached",
    "g1_headwise_from_previous+g3_headwise_from_previous",
    "g1_headwise+g2_headwise",
    "g1_elementwise+g1_rmsnorm",
    "g1_headwise+g2_elementwise+g3_headwise+g4_elementwise+g5_elementwise",
    "kv_heads_x2+g1_headwise",
    "switch_k_2top1",
    "switch_kv_3top2+g1_headwise+g2_headwise",
    "clipped_softmax4",
    "registers3+forgetting+g1_headwise",
    "registers2+value_residual+exclusive+kv_bias+g1_elementwise",
    "sink_logits+value_residual+g2_elementwise",
    "softmax1+exclusive+g2_headwise",
    "differential+value_residual+registers1+g1_headwise+g2_headwise",
    "sigmoid_attention+clip100+g1_elementwise",
    "softpick+sandwich_norm+g5_elementwise",
    "kv_heads_x2+differential",
    "experts_plus4+g1_headwise",
)
"""Legal names that no registry entry lists: the grammar alone must make them work too."""

EVERY_VARIANT = (*REGISTRY, *GRAMMAR_EXTRAS)


def tiny_for(name: str) -> ModelConfig:
    """Return the tiny shape, with experts for a variant of them."""
    return TINY_MOE if any(key.startswith("moe.") for key in variants.get(name).ratios) else TINY


def shape(name: str, config: ModelConfig = TINY, **changes: object) -> ModelConfig:
    """Return the final shape of the variant `name` at `config` with `changes`."""
    config = tiny_for(name) if config is TINY else config
    changed = ModelConfig.model_validate({**config.model_dump(), **changes})
    resolved = resolve(Recipe(model=changed), variants.get(name))
    return resolved.model_copy(update={"context_length": changed.context_length})


def build(name: str, config: ModelConfig = TINY, seed: int = 0, **changes: object) -> Transformer:
    """Return an initialised model of the variant `name`."""
    return build_model(shape(name, config, **changes), name, seed)


def token_ids(batch: int = 2, length: int = 9, vocab_size: int = TINY.vocab_size, seed: int = 0) -> Tensor:
    """Return random ids (batch, length)."""
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def hidden_only(x: Tensor) -> GateInputs:
    """Return the inputs of gates that read the attention input `x` (B, T, C) and nothing else."""
    nothing = x.new_full((), float("nan"))
    return GateInputs(x, nothing, nothing, nothing)


def use_eager(model: Transformer) -> Transformer:
    """Return `model` after sending its attention through the explicit map."""
    for block in model.blocks:
        vars(block.attn.kernel)["forward"] = block.attn.kernel.explicit
    return model


def decode(model: Transformer, ids: Tensor, chunk: int) -> Tensor:
    """Return the logits (B, T, V) of `ids` (B, T) read `chunk` tokens at a time through the KV cache."""
    caches = model.new_caches()
    return torch.cat([model(part, caches) for part in ids.split(chunk, dim=1)], dim=1)
