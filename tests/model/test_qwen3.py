"""The ungated dense model is transformers' Qwen3, weight for weight."""

from __future__ import annotations

import pytest
import torch

from gatebench.config import ModelConfig
from gatebench.model.build import build_model
from tests.model.released_layout import our_name
from tests.model.shapes import token_ids, use_eager

SHAPES = {
    "square-tied": ModelConfig(
        n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, head_dim=8, ffn_dim=48, vocab_size=61, init_std=0.1
    ),
    "wide-heads-untied": ModelConfig(
        n_layers=3,
        d_model=24,
        n_heads=6,
        n_kv_heads=2,
        head_dim=16,
        ffn_dim=40,
        vocab_size=61,
        tie_embeddings=False,
        rope_theta=1e6,
        init_std=0.1,
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_logits_equal_qwen3(name: str) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = SHAPES[name]
    assert (config.n_heads * config.head_dim == config.d_model) == (name == "square-tied")
    theirs = Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=config.d_model,
            intermediate_size=config.ffn_dim,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            num_key_value_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            tie_word_embeddings=config.tie_embeddings,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            attention_bias=config.qkv_bias,
            use_sliding_window=False,
        )
    ).eval()
    ours = build_model(config, "baseline", seed=0)
    with torch.no_grad():
        for parameter in ours.parameters():
            if parameter.ndim == 1:  # norms at 1 would hide a norm in the wrong place
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(parameter.numel()))
        state = ours.state_dict()
        theirs.load_state_dict({key: state[our_name(key)] for key in theirs.state_dict()}, strict=True)
        assert {our_name(key) for key in theirs.state_dict()} == set(state)
        ids = token_ids(batch=3, length=33)
        expected = theirs(ids).logits
        assert expected.std() > 0.1
        torch.testing.assert_close(ours(ids), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(use_eager(ours)(ids), expected, atol=1e-5, rtol=0)
