"""Names and shapes of weights in other people's checkpoints, and ours.

`qwen3`: transformers' Qwen3 and Qwen3-MoE. `released`: the paper's released code (qiuzh20/gated_attention,
modeling_qwen3.py), where `q_proj` holds queries and gates, grouped per KV head. `qwen3_next`: the attention layer of
transformers' Qwen3-Next, where they are grouped per query head and a norm's weight is stored as that much more than 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gatebench.config import ModelConfig

TOP = {"embed": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head"}
PARTS = {"attn": "self_attn", "ffn": "mlp", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
"""Our name of a module -> theirs, at the top and in a layer."""
GATE = "g1.gates.0.proj"


@dataclass(frozen=True)
class Layout:
    """How a family of checkpoints stores the weights of an attention layer."""

    name: str
    per_query_head: bool = False
    """Whether queries and gates alternate per query head, in place of per KV head."""
    norm_offset: float = 0.0
    """What a stored norm weight lacks."""

    def groups(self, shape: ModelConfig) -> int:
        """Return in how many groups of queries and gates `q_proj` is stored."""
        return shape.n_heads if self.per_query_head else shape.n_kv_heads


QWEN3 = Layout("qwen3")
RELEASED = Layout("released")
QWEN3_NEXT = Layout("qwen3_next", per_query_head=True, norm_offset=1.0)


def split_fused(fused: Tensor, n_groups: int, n_queries: int) -> tuple[Tensor, Tensor]:
    """Return the rows of a fused weight or bias that are queries (`n_queries` in all) and those that are gates.

    Each of `n_groups` groups of rows holds its queries first. Both come back in the order of heads.
    """
    grouped = fused.unflatten(0, (n_groups, -1))
    queries = n_queries // n_groups
    return grouped[:, :queries].flatten(0, 1), grouped[:, queries:].flatten(0, 1)


def fuse(queries: Tensor, gates: Tensor, n_groups: int) -> Tensor:
    """Return the fused weight or bias that `split_fused` takes apart."""
    return torch.cat([rows.unflatten(0, (n_groups, -1)) for rows in (queries, gates)], dim=1).flatten(0, 1)


def our_name(theirs: str) -> str:
    """Return our name of the parameter `theirs`; one that no layer has stays as it is."""
    for ours, module in TOP.items():
        if theirs == f"{module}.weight":
            return f"{ours}.weight"
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(\w+)\.(.+)", theirs):
        layer, module, rest = match.groups()
        part = next((ours for ours, name in PARTS.items() if name == module), module)
        if part == "ffn":
            rest = re.sub(r"^experts\.(gate_up_proj|down_proj)$", r"\1", rest).replace("gate.weight", "router.weight")
        return f"blocks.{layer}.{part}.{rest}"
    return theirs


def their_name(ours: str) -> str:
    """Return the name in a checkpoint of our parameter `ours`; experts have none as a whole."""
    if not ours.startswith("blocks."):
        return f"{TOP[ours.removesuffix('.weight')]}.weight"
    _, layer, part, rest = ours.split(".", 3)
    return f"model.layers.{layer}.{PARTS[part]}.{rest.replace('router.weight', 'gate.weight')}"


def from_layout(theirs: Mapping[str, Tensor], shape: ModelConfig, layout: Layout) -> dict[str, Tensor]:
    """Return `Transformer`'s state dict of the checkpoint `theirs`; names that are not ours are left for the caller.

    Norm weights that are stored as an offset come back in fp32.
    Raises RuntimeError (torch's) where rows or experts do not come out even.
    """
    ours: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        renamed = our_name(name)
        if ".attn.q_proj." in renamed and layout is not QWEN3:
            ours[renamed], gates = split_fused(tensor, layout.groups(shape), shape.n_heads * shape.head_dim)
            if len(gates):
                ours[renamed.replace("q_proj", GATE)] = gates
        elif layout.norm_offset and "norm." in renamed:
            ours[renamed] = _widened(tensor) + layout.norm_offset
        else:
            ours[renamed] = tensor
    return ours if shape.moe is None else _with_experts_stacked(ours, shape.moe.n_experts)


def to_layout(ours: Mapping[str, Tensor], shape: ModelConfig, layout: Layout) -> dict[str, Tensor]:
    """Return the checkpoint of `Transformer`'s state dict `ours`; a tied output layer is left out."""
    theirs: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        if GATE in name or (name == "lm_head.weight" and shape.tie_embeddings):
            continue
        if name.endswith((".ffn.gate_up_proj", ".ffn.down_proj")):
            theirs |= _by_expert(name, tensor)
            continue
        if ".q_proj." in name and (gates := ours.get(name.replace("q_proj", GATE))) is not None:
            tensor = fuse(tensor, gates, layout.groups(shape))
        if layout.norm_offset and "norm." in name:
            tensor = _widened(tensor) - layout.norm_offset
        theirs[their_name(name)] = tensor
    return theirs


def _widened(tensor: Tensor) -> Tensor:
    """Return the tensor in fp32 at least: near 1, bf16 has steps of 1/128, which swallow what a norm stores."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _with_experts_stacked(ours: dict[str, Tensor], n_experts: int) -> dict[str, Tensor]:
    """Replace each layer's expert matrices, one by one as on the hub, by `MoE`'s two tensors."""
    stacked = {name: tensor for name, tensor in ours.items() if ".ffn.experts." not in name}
    for prefix in {name.split("experts.")[0] for name in ours.keys() - stacked.keys()}:

        def matrices(kind: str, prefix: str = prefix) -> list[Tensor]:
            return [ours[f"{prefix}experts.{n}.{kind}_proj.weight"] for n in range(n_experts)]

        stacked[f"{prefix}gate_up_proj"] = torch.cat(
            (torch.stack(matrices("gate")), torch.stack(matrices("up"))), dim=1
        )
        stacked[f"{prefix}down_proj"] = torch.stack(matrices("down"))
    return stacked


def _by_expert(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return one of `MoE`'s two tensors as the matrices of each expert, by their names on the hub."""
    kinds = ("gate", "up") if name.endswith("gate_up_proj") else ("down",)
    prefix = their_name(name.rsplit(".", 1)[0] + ".experts")
    return {
        f"{prefix}.{n}.{kind}_proj.weight": matrix.clone()
        for n, expert in enumerate(tensor)
        for kind, matrix in zip(kinds, expert.chunk(len(kinds)), strict=True)
    }
