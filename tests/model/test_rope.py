"""Plain RoPE and YaRN, the latter against transformers' own frequencies."""

from __future__ import annotations

import pytest
import torch

from gatebench.config import ModelConfig, RopeScalingConfig
from gatebench.errors import UserError
from gatebench.model.build import build_model
from gatebench.model.rope import Rope, attention_factor, correction_range
from gatebench.recipes import make_run

CPU = torch.device("cpu")


def yarn(factor: float = 4, original: int = 32768, **more: object) -> RopeScalingConfig:
    return RopeScalingConfig(factor=factor, original_max_position_embeddings=original, **more)  # type: ignore[arg-type]


def test_the_papers_setting() -> None:
    assert correction_range(128, 1e6, yarn()) == (23, 40)
    assert attention_factor(yarn()) == pytest.approx(1.1386, abs=5e-5)


def test_the_factor_multiplies_both_cos_and_sin() -> None:
    rope = Rope(128, 1e6, yarn())
    cos, sin = rope(0, 50, CPU)
    norm = (cos.square() + sin.square()).sqrt()
    assert torch.allclose(norm, torch.full_like(norm, 1.1386294), atol=1e-6)


def test_fast_pairs_stay_and_slow_ones_are_divided() -> None:
    plain, scaled = Rope(128, 1e6).frequencies(), Rope(128, 1e6, yarn()).frequencies()
    assert torch.equal(scaled[:24], plain[:24])
    assert torch.allclose(scaled[40:], plain[40:] / 4, rtol=1e-6)
    assert ((scaled[24:40] < plain[24:40]) & (scaled[24:40] > plain[24:40] / 4)).all()


@pytest.mark.parametrize("head_dim", [16, 48, 128])
def test_factor_one_is_plain_rope_to_the_bit(head_dim: int) -> None:
    for ours, plain in zip(
        Rope(head_dim, 1e4, yarn(1, 256))(0, 700, CPU), Rope(head_dim, 1e4)(0, 700, CPU), strict=True
    ):
        assert torch.equal(ours, plain)


def test_an_explicit_attention_factor_is_honoured() -> None:
    assert attention_factor(yarn(attention_factor=1.0)) == 1.0
    cos, sin = Rope(128, 1e6, yarn(attention_factor=1.0))(0, 1, CPU)
    assert cos.eq(1).all()
    assert sin.eq(0).all()


@pytest.mark.parametrize(
    ("d_model", "n_heads", "head_dim", "theta", "scaling"),
    [
        (2048, 16, 128, 1e6, yarn()),
        (1536, 16, 128, 1e6, yarn()),  # the paper's 48-layer model: head_dim is not d_model / heads
        (192, 4, 48, 1e4, yarn(4, 256)),
        (256, 4, 64, 1e6, yarn(32, 1024)),
        (256, 4, 64, 1e6, yarn(8, 1024, truncate=False)),
        (256, 4, 64, 5e5, yarn(4, 1024, beta_fast=16.0, beta_slow=2.0, attention_factor=1.0)),
        (64, 4, 16, 1e4, yarn(4, 8)),  # low and high meet
    ],
)
def test_frequencies_are_those_of_transformers(
    d_model: int, n_heads: int, head_dim: int, theta: float, scaling: RopeScalingConfig
) -> None:
    pytest.importorskip("transformers")
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    words = scaling.model_dump(exclude_none=True)
    config = Qwen3Config(
        hidden_size=d_model,
        num_attention_heads=n_heads,
        head_dim=head_dim,
        max_position_embeddings=int(scaling.factor) * scaling.original_max_position_embeddings,
        rope_parameters={**words, "rope_theta": theta},
    )
    theirs, factor = ROPE_INIT_FUNCTIONS["yarn"](config, CPU)
    assert torch.allclose(Rope(head_dim, theta, scaling).frequencies(), theirs, rtol=1e-6, atol=0)
    assert attention_factor(scaling) == pytest.approx(factor, rel=1e-12)


def test_a_model_is_built_with_its_scaling() -> None:
    shape = {
        "n_layers": 1,
        "d_model": 32,
        "n_heads": 2,
        "n_kv_heads": 1,
        "head_dim": 16,
        "ffn_dim": 32,
        "vocab_size": 9,
    }
    ids = torch.arange(8)[None]
    with torch.no_grad():
        logits = [
            build_model(ModelConfig(**shape, rope_scaling=scaling), "baseline")(ids)  # type: ignore[arg-type]
            for scaling in (None, yarn(1, 4), yarn(4, 4))
        ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2], atol=1e-4)


def test_runs_without_scaling_keep_their_names_and_others_have_their_own() -> None:
    plain = make_run("quick", "baseline")
    assert plain.fingerprint == "92432aca"
    scaled = make_run(
        "quick",
        "baseline",
        overrides=["model.rope_scaling={factor: 4, original_max_position_embeddings: 256}"],
    )
    assert scaled.model.rope_scaling == yarn(4, 256)
    assert scaled.fingerprint != plain.fingerprint


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("{factor: 0.5, original_max_position_embeddings: 256}", "model.rope_scaling.factor"),
        ("{factor: 4}", "model.rope_scaling.original_max_position_embeddings"),
        ("{rope_type: linear, factor: 4, original_max_position_embeddings: 8}", "'yarn'"),
        ("{factor: 4, original_max_position_embeddings: 8, beta_fast: 0.5}", "beta_fast=0.5"),
        ("{factor: 4, original_max_position_embeddings: 8, mscale: 1}", "mscale"),
    ],
)
def test_what_is_not_legal_is_named(setting: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_run("quick", "baseline", overrides=[f"model.rope_scaling={setting}"])
