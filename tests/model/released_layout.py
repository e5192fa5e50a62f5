"""From the released code's fused layout (qiuzh20/gated_attention, modeling_qwen3.py) to ours.

There `q_proj` holds queries and gates together, grouped per KV head: viewed as (n_kv_heads, S, d_model), the first
G * head_dim rows of each group are its queries (G = n_heads / n_kv_heads) and the rest its gates. Splitting the flat
matrix in two is wrong unless n_kv_heads is 1.
"""

from __future__ import annotations

import re

from torch import Tensor

from gatebench.config import ModelConfig

RENAMED = {
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
}
RENAMED_IN_LAYER = {
    "self_attn": "attn",
    "mlp": "ffn",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def our_name(theirs: str) -> str:
    """Return our name of the parameter that the released code (and transformers' Qwen3) calls `theirs`."""
    if theirs in RENAMED:
        return RENAMED[theirs]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(\w+)\.(.+)", theirs)
    assert match, theirs
    layer, part, rest = match.groups()
    return f"blocks.{layer}.{RENAMED_IN_LAYER[part]}.{rest}"


def split_queries_and_gates(fused: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Return the rows of a fused weight or bias that are queries and those that are gates, in our order of heads."""
    queries = config.n_heads * config.head_dim // config.n_kv_heads
    grouped = fused.unflatten(0, (config.n_kv_heads, -1))  # (K, S, ...)
    return grouped[:, :queries].flatten(0, 1), grouped[:, queries:].flatten(0, 1)


def from_released(weights: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return our state dict (G1 gate, if any) of the released `weights`."""
    ours: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if ".q_proj." in name:
            queries, gates = split_queries_and_gates(tensor, config)
            ours[our_name(name)] = queries
            if len(gates):
                ours[our_name(name).replace("q_proj", "g1.gates.0.proj")] = gates
        else:
            ours[our_name(name)] = tensor
    return ours
