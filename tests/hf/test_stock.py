"""Logits here and in stock transformers, of models exported there and imported from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import gatebench.hf
from gatebench.hf import GatebenchForCausalLM
from tests.hf.models import LENGTHS, padded_batch, wrapped
from tests.model.shapes import token_ids

SHAPES: dict[str, dict[str, Any]] = {
    "one-query-head-a-kv-head": {"n_kv_heads": 4},
    "two": {"n_kv_heads": 2, "qkv_bias": True},
    "eight": {"n_heads": 8, "n_kv_heads": 1, "tie_embeddings": False, "rope_theta": 1e6},
    "yarn": {"rope_scaling": {"factor": 4, "original_max_position_embeddings": 32, "attention_factor": 1.0}},
    "experts": {"ffn_dim": 12, "moe": {"n_experts": 6, "top_k": 2, "expert_dim": 12}},
    "experts-unnormed": {
        "n_kv_heads": 1,
        "ffn_dim": 12,
        "moe": {"n_experts": 6, "top_k": 1, "expert_dim": 12, "norm_topk_prob": False},
    },
}
COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "head_dim": 8,
    "initializer_range": 0.2,
    "max_position_embeddings": 128,
}
STOCK: dict[str, Callable[[], Any]] = {
    "one-query-head-a-kv-head": lambda: Qwen3ForCausalLM(
        Qwen3Config(**COMMON, intermediate_size=20, num_attention_heads=4, num_key_value_heads=4)
    ),
    "two": lambda: Qwen3ForCausalLM(
        Qwen3Config(**COMMON, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, attention_bias=True)
    ),
    "eight": lambda: Qwen3ForCausalLM(
        Qwen3Config(
            **COMMON, intermediate_size=20, num_attention_heads=8, num_key_value_heads=1, tie_word_embeddings=True
        )
    ),
    "yarn": lambda: Qwen3ForCausalLM(
        Qwen3Config(
            **COMMON,
            intermediate_size=20,
            num_attention_heads=4,
            num_key_value_heads=2,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        )
    ),
    "experts": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **COMMON,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=12,
            norm_topk_prob=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        )
    ),
}


def positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def assert_same_logits(ours: GatebenchForCausalLM, theirs: Any) -> None:
    """Prefill, a left-padded batch, and the same decoded token by token through both caches."""
    theirs.eval()
    ids, mask = padded_batch()
    expected = theirs(ids).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(ours(ids).logits, expected, atol=1e-5, rtol=0)
    expected = theirs(ids, attention_mask=mask, position_ids=positions(mask)).logits
    logits = ours(ids, attention_mask=mask).logits
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(logits[row, -length:], expected[row, -length:], atol=1e-5, rtol=0)
    cache = their_cache = None
    for n in (8, 9, 10, 11):
        done = 0 if cache is None else n - 1
        part = ours(ids[:, done:n], attention_mask=mask[:, :n], cache=cache, use_cache=True)
        their_part = theirs(
            ids[:, done:n],
            attention_mask=mask[:, :n],
            position_ids=positions(mask)[:, done:n],
            cache=their_cache,
            use_cache=True,
        )
        torch.testing.assert_close(part.logits[:, -1], their_part.logits[:, -1], atol=1e-5, rtol=0)
        cache, their_cache = part.cache, their_part.cache


@pytest.mark.parametrize("name", SHAPES)
def test_exported(name: str, tmp_path: Path) -> None:
    ours = wrapped("baseline", **SHAPES[name])
    assert gatebench.hf.export(ours, None, tmp_path / "out") == "qwen3"
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(theirs).__name__ == ("Qwen3MoeForCausalLM" if "moe" in SHAPES[name] else "Qwen3ForCausalLM")
    assert_same_logits(ours, theirs)


@pytest.mark.parametrize("name", STOCK)
def test_imported(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = STOCK[name]()
    with torch.no_grad():
        for key, parameter in theirs.named_parameters():
            if key.endswith(("norm.weight", ".bias")):
                parameter.uniform_(0.5, 1.5)
    theirs.save_pretrained(tmp_path / "stock")
    ours, _ = gatebench.hf.load(tmp_path / "stock")
    assert_same_logits(ours, theirs)
    gatebench.hf.export(ours, None, tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "stock" / "model.safetensors"
    ).read_bytes()


def test_generation_is_stock_transformers_own(tmp_path: Path) -> None:
    ours, (ids, mask) = wrapped("baseline"), padded_batch()
    gatebench.hf.export(ours, None, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for how in ({"do_sample": False}, {"num_beams": 3, "do_sample": False}):
        made = [m.generate(ids, attention_mask=mask, max_new_tokens=9, **how) for m in (ours, theirs)]
        assert made[0].shape == (3, 20) and torch.equal(*made)


@torch.no_grad()
def test_one_normalised_expert_has_weight_one(tmp_path: Path) -> None:
    """Training refuses it, since its loss teaches the router nothing; as a model it is what transformers computes."""
    config = Qwen3MoeConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=1,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        tie_word_embeddings=False,
    )
    theirs = Qwen3MoeForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "one")
    ours, _ = gatebench.hf.load(tmp_path / "one")
    torch.testing.assert_close(ours(token_ids()).logits, theirs(token_ids()).logits, atol=1e-5, rtol=0)
