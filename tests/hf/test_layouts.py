"""Fused projections taken apart and put together, and what no layout may get wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

import gatebench.hf
from gatebench.config import ModelConfig
from gatebench.hf.layouts import QWEN3_NEXT, RELEASED, Layout, from_layout, fuse, split_fused, to_layout
from tests.hf.models import wrapped
from tests.model.shapes import TINY, token_ids

HEADS, KV_HEADS, WIDTH, MODEL = 4, 2, 8, 24
Gated = Callable[[Tensor, Tensor], Tensor]


def per_kv_group(fused: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The released code's forward pass: view by KV head, then cut; queries and gates (T, H, D)."""
    y = (x @ fused.T).view(len(x), KV_HEADS, -1)
    queries, gates = y.split([HEADS // KV_HEADS * WIDTH, HEADS // KV_HEADS * WIDTH], dim=-1)
    return queries.reshape(len(x), HEADS, WIDTH), gates.reshape(len(x), HEADS, WIDTH)


def per_query_head(fused: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Qwen3-Next's: view by query head, then halve."""
    return (x @ fused.T).view(len(x), HEADS, 2 * WIDTH).chunk(2, dim=-1)


LAYOUTS = {"released": (RELEASED, per_kv_group), "qwen3_next": (QWEN3_NEXT, per_query_head)}
layouts = pytest.mark.parametrize(("layout", "forward"), LAYOUTS.values(), ids=LAYOUTS)


@layouts
def test_both_layouts_equal_a_separate_gate_projection_and_a_flat_cut_does_not(layout: Layout, forward: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(2 * HEADS * WIDTH, MODEL, generator=generator)
    x = torch.randn(5, MODEL, generator=generator)
    separate = split_fused(fused, layout.groups(TINY), HEADS * WIDTH)
    for weight, flat, expected in zip(separate, fused.chunk(2), forward(fused, x), strict=True):
        torch.testing.assert_close((x @ weight.T).view(5, HEADS, WIDTH), expected, atol=1e-6, rtol=1e-6)
        assert ((x @ flat.T).view(5, HEADS, WIDTH) - expected).abs().max() > 1
    assert torch.equal(fuse(*separate, layout.groups(TINY)), fused)


def test_rows_by_hand() -> None:
    """4 query heads of 2 over 2 KV heads, headwise: a group of 6 rows is 4 query rows and 2 gate rows."""
    queries, gates = split_fused(torch.arange(12), 2, 8)
    assert queries.tolist() == [0, 1, 2, 3, 6, 7, 8, 9] and gates.tolist() == [4, 5, 10, 11]
    assert fuse(queries, gates, 2).tolist() == list(range(12))


@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("name", ["baseline", "g1_headwise", "g1_elementwise"])
def test_export_then_import_is_bit_identical(name: str, qkv_bias: bool, tmp_path: Path) -> None:
    ours = wrapped(name, qkv_bias=qkv_bias)
    gatebench.hf.export(ours, None, tmp_path / "out", layout="released")
    again, _ = gatebench.hf.load(tmp_path / "out")
    assert again.config.variant == name
    state = again.transformer.state_dict()
    assert state.keys() == ours.transformer.state_dict().keys()
    for key, tensor in ours.transformer.state_dict().items():
        assert torch.equal(state[key], tensor), key
    assert torch.equal(again(token_ids()).logits, ours(token_ids()).logits)


def next_config(**changes: Any) -> Any:
    words: dict[str, Any] = {
        "vocab_size": 61,
        "hidden_size": MODEL,
        "intermediate_size": 20,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": WIDTH,
        "layer_types": ["full_attention"] * 2,
        "num_experts": 0,
        "initializer_range": 0.2,
        "partial_rotary_factor": 1.0,
    }
    return Qwen3NextConfig(**(words | changes))


def test_qwen3_next_full_attention_layers(tmp_path: Path) -> None:
    """Gates per query head, and norms stored as what they are above 1."""
    torch.manual_seed(0)
    theirs = Qwen3NextForCausalLM(next_config()).eval()
    with torch.no_grad():
        for key, parameter in theirs.named_parameters():
            if key.endswith("norm.weight"):
                parameter.uniform_(-0.5, 0.5)
    theirs.save_pretrained(tmp_path / "next")
    ours, _ = gatebench.hf.load(tmp_path / "next")
    assert ours.config.variant == "g1_elementwise"
    ids = token_ids(batch=2, length=11)
    with torch.no_grad():
        expected = theirs(ids).logits
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(ids).logits, expected, atol=1e-5, rtol=0)


def test_an_offset_of_a_norm_is_added_in_fp32_and_taken_off_again() -> None:
    """1 + 7/2048 is 1.00341796875; bf16 has nothing between 1 and 1.0078125."""
    stored = {"model.norm.weight": torch.full((8,), 7 / 2048, dtype=torch.bfloat16)}
    ours = from_layout(stored, ModelConfig(), QWEN3_NEXT)
    assert ours["norm.weight"].tolist() == [1.00341796875] * 8
    again = to_layout(ours, ModelConfig(), QWEN3_NEXT)["model.norm.weight"]
    assert torch.equal(again, stored["model.norm.weight"].float())
    narrow = {"norm.weight": torch.full((8,), 0.1, dtype=torch.bfloat16)}
    expected = narrow["norm.weight"].double() - 1
    assert torch.equal(to_layout(narrow, ModelConfig(), QWEN3_NEXT)["model.norm.weight"].double(), expected)
    double = {"model.norm.weight": torch.full((8,), 1e-9, dtype=torch.float64)}
    assert from_layout(double, ModelConfig(), QWEN3_NEXT)["norm.weight"][0] == 1 + 1e-9


@torch.no_grad()
def test_a_qwen3_next_in_bf16_has_its_norms_as_transformers_has_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = Qwen3NextForCausalLM(next_config()).eval()
    for key, parameter in theirs.named_parameters():
        if key.endswith("norm.weight"):
            parameter.uniform_(-0.01, 0.01)
    theirs.bfloat16().save_pretrained(tmp_path / "next")
    ours, _ = gatebench.hf.load(tmp_path / "next")
    theirs = Qwen3NextForCausalLM.from_pretrained(tmp_path / "next", dtype=torch.float32)
    ids = token_ids(batch=2, length=11)
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=1e-5, rtol=0)
    assert ours.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=1).shape == (2, 15)
