"""Our logits and attention maps are those of the paper's released code (golden/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gatebench.config import ModelConfig
from gatebench.model.build import build_model
from gatebench.model.kernels import attention_map
from gatebench.model.transformer import Transformer
from tests.model.released_layout import from_released, split_queries_and_gates
from tests.model.shapes import decode, use_eager

GOLDEN = Path(__file__).parent / "golden"
VARIANT = {"none": "baseline", "headwise": "g1_headwise", "elementwise": "g1_elementwise"}


def load(kind: str) -> tuple[Transformer, dict[str, Tensor]]:
    """Return our model with the released weights, and what the file holds."""
    with np.load(GOLDEN / f"official_a_{kind}.npz") as file:
        theirs = json.loads(str(file["config"]))
        arrays = {key: torch.from_numpy(file[key]) for key in file.files if key != "config"}
    config = ModelConfig(
        n_layers=theirs["num_hidden_layers"],
        d_model=theirs["hidden_size"],
        n_heads=theirs["num_attention_heads"],
        n_kv_heads=theirs["num_key_value_heads"],
        head_dim=theirs["head_dim"],
        ffn_dim=theirs["intermediate_size"],
        vocab_size=theirs["vocab_size"],
        tie_embeddings=theirs["tie_word_embeddings"],
        qk_norm=theirs["use_qk_norm"],
        qkv_bias=theirs["qkv_bias"],
        rope_theta=theirs["rope_theta"],
        norm_eps=theirs["rms_norm_eps"],
    )
    model = build_model(config, VARIANT[kind], seed=0)
    weights = {key.removeprefix("w."): value for key, value in arrays.items() if key.startswith("w.")}
    model.load_state_dict(from_released(weights, config), strict=True)
    return model, arrays


kinds = pytest.mark.parametrize("kind", VARIANT)


@kinds
def test_logits_are_the_released_codes(kind: str) -> None:
    model, golden = load(kind)
    with torch.no_grad():
        torch.testing.assert_close(model(golden["ids"]), golden["logits"], atol=1e-5, rtol=0)
        torch.testing.assert_close(decode(model, golden["ids"], chunk=5), golden["logits"], atol=1e-5, rtol=0)
        torch.testing.assert_close(use_eager(model)(golden["ids"]), golden["logits"], atol=1e-5, rtol=0)


@kinds
def test_attention_maps_are_the_released_codes(kind: str) -> None:
    model, golden = load(kind)
    ids = golden["ids"]
    maps: list[Tensor] = []
    with torch.no_grad():
        cos, sin = model.rope(0, ids.shape[1], ids.device)
        h = model.embed(ids)
        for block in model.blocks:
            maps.append(attention_map(*block.attn.queries_keys(block.attn.project(block.attn_norm(h)), cos, sin)))
            h = block(h, cos, sin)
    assert len(maps) == 2
    for layer, ours in enumerate(maps):
        torch.testing.assert_close(ours, golden[f"attn.{layer}"], atol=1e-5, rtol=0)


def test_fused_rows_are_grouped_by_kv_head() -> None:
    # 4 query heads of 2 over 2 KV heads, headwise: each group of 6 rows is 4 query rows and 2 gate rows.
    config = ModelConfig(n_heads=4, n_kv_heads=2, head_dim=2)
    queries, gates = split_queries_and_gates(torch.arange(12), config)
    assert queries.tolist() == [0, 1, 2, 3, 6, 7, 8, 9]
    assert gates.tolist() == [4, 5, 10, 11]


def test_a_flat_split_of_the_fused_matrix_gives_other_logits() -> None:
    model, golden = load("elementwise")
    with torch.no_grad():
        for layer, block in enumerate(model.blocks):
            queries, gates = golden[f"w.model.layers.{layer}.self_attn.q_proj.weight"].chunk(2)
            block.attn.q_proj.weight.copy_(queries)
            block.attn.g1.gates[0].proj.weight.copy_(gates)
        assert (model(golden["ids"]) - golden["logits"]).abs().max() > 1e-3
