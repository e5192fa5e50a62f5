"""Facts that hold for every variant: the whole registry, and legal names outside it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gatebench import variants
from gatebench.model import accounting
from gatebench.model.transformer import Transformer
from tests.model.shapes import EVERY_VARIANT, build, decode, shape, tiny_for, token_ids, use_eager

ADDED = (".gates.", ".router.", ".kernel.", ".head_output.", "_out.norm.", "registers")
"""What the name of a parameter that the baseline lacks holds: a gate's, a switch head's router, or a design's."""

every_variant = pytest.mark.parametrize("name", EVERY_VARIANT)


def loss_of(model: Transformer, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


@every_variant
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_forward_and_backward_are_finite_and_every_parameter_gets_gradient(name: str, bf16: bool) -> None:
    model = build(name)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = loss_of(model, token_ids())
    loss.backward()
    assert torch.isfinite(loss)
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        assert parameter.grad.any(), f"{key} has no gradient"


@every_variant
def test_every_score_of_every_gate_gets_gradient(name: str) -> None:
    model = build(name)
    loss_of(model, token_ids()).backward()
    for key, parameter in model.named_parameters():
        if ".gates." in key:
            rows = parameter.grad.flatten(1) if parameter.ndim > 1 else parameter.grad[:, None]
            assert rows.any(dim=1).all(), f"{key}: a row of the gate has no gradient"


@every_variant
def test_changing_a_token_changes_no_earlier_logit(name: str) -> None:
    model, ids = build(name), token_ids()
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 61
    with torch.no_grad():
        before, after = model(ids), model(changed)
    if tiny_for(name).moe is None:
        assert torch.equal(before[:, :4], after[:, :4])
    else:  # how the rows of an expert are blocked, and so rounded, depends on how many there are
        torch.testing.assert_close(before[:, :4], after[:, :4], atol=1e-6, rtol=1e-5)
    assert (before[:, 4:] - after[:, 4:]).abs().amax(dim=-1).min() > 1e-4  # and every later one


@every_variant
@pytest.mark.parametrize(
    "changes",
    [{}, {"qkv_bias": True, "tie_embeddings": False}, {"d_model": 32, "qk_norm": False}],
    ids=["tied", "bias-untied", "square-unnormed"],
)
def test_analytic_parameter_count_is_numel(name: str, changes: dict[str, object]) -> None:
    config, variant = shape(name, **changes), variants.get(name)
    with torch.device("meta"):
        model = Transformer(config, variant)
    assert accounting.total_params(config, variant) == sum(p.numel() for p in model.parameters())
    assert accounting.layer_params(config, variant) == sum(p.numel() for p in model.blocks[0].parameters())
    assert sum(accounting.layer_breakdown(config, variant).values()) == accounting.layer_params(config, variant)
    gates = sum(p.numel() for key, p in model.blocks[0].named_parameters() if ".gates." in key)
    assert sum(accounting.gate_params(config, gate) for gate in variant.gates) == gates


@every_variant
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_analytic_flops_are_torchs_own_count(name: str, qkv_bias: bool) -> None:
    model, ids = build(name, qkv_bias=qkv_bias), token_ids(batch=2, length=8)
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            loss = model(ids).square().mean()
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    expected = accounting.forward_flops_per_token(model.config, model.variant, seq_len=8)
    assert forward.get_total_flops() == 16 * expected
    assert forward.get_total_flops() + backward.get_total_flops() == 16 * accounting.train_flops_per_token(
        model.config, model.variant, seq_len=8
    )


@every_variant
def test_state_dict_round_trips(name: str) -> None:
    model, other, ids = build(name, seed=0), build(name, seed=1), token_ids()
    with torch.no_grad():
        assert not torch.equal(model(ids), other(ids))
        other.load_state_dict(model.state_dict(), strict=True)
        assert torch.equal(model(ids), other(ids))


@every_variant
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_parameters_shared_with_the_baseline_start_bit_identical(name: str, tied: bool) -> None:
    ours = dict(build(name, seed=3, tie_embeddings=tied).named_parameters())
    baseline = dict(build("baseline", tiny_for(name), seed=3, tie_embeddings=tied).named_parameters())
    reshaped = variants.get(name).ratios or variants.get(name).design.switch_heads
    baseline_has_experts = tiny_for(name).moe is not None
    for key, parameter in baseline.items():
        if ours[key].shape == parameter.shape:
            assert torch.equal(ours[key], parameter), key
        else:
            assert reshaped and (".ffn." if baseline_has_experts else ".attn.") in key, f"{key} has another shape"
    new = ours.keys() - baseline.keys()
    assert all(any(part in key for part in ADDED) for key in new), new


@every_variant
def test_eager_attention_equals_sdpa(name: str) -> None:
    ids = token_ids(length=17)
    with torch.no_grad():
        torch.testing.assert_close(use_eager(build(name))(ids), build(name)(ids), atol=1e-5, rtol=1e-5)


@every_variant
@pytest.mark.parametrize("chunk", [1, 4])
def test_cached_decoding_equals_prefill(name: str, chunk: int) -> None:
    model, ids = build(name), token_ids(length=11)
    with torch.no_grad():
        torch.testing.assert_close(decode(model, ids, chunk), model(ids), atol=1e-5, rtol=1e-5)


@every_variant
def test_cached_decoding_through_eager_attention_equals_prefill(name: str) -> None:
    model, ids = build(name), token_ids(length=11)
    with torch.no_grad():
        expected = model(ids)
        torch.testing.assert_close(decode(use_eager(model), ids, chunk=3), expected, atol=1e-5, rtol=1e-5)
