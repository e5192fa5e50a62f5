"""Designs beyond the kernel: registers, value residual, exclusive attention, stabilisers; and the words of all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gatebench import variants
from gatebench.design import Design
from gatebench.errors import UserError
from gatebench.model.accounting import account
from gatebench.model.attention import FirstValues
from gatebench.model.transformer import SublayerOutput
from gatebench.recipes import make_run
from tests.model.shapes import TINY, build, decode, token_ids

# --- registers


def test_registers_are_tokens_before_the_text_whose_outputs_are_dropped() -> None:
    """Registers that hold the embeddings of tokens 7, 1 and 5 do what these three do before the text."""
    model, baseline, ids = build("registers3"), build("baseline"), token_ids(length=9)
    prefix = torch.tensor([[7, 1, 5]]).expand(2, -1)
    with torch.no_grad():
        model.registers.copy_(baseline.embed.weight[prefix[0]])
        expected = baseline(torch.cat((prefix, ids), dim=1))[:, 3:]
        torch.testing.assert_close(model(ids), expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(decode(model, ids, chunk=2), expected, atol=1e-5, rtol=1e-5)


def test_registers_are_cached_once() -> None:
    model, ids = build("registers3"), token_ids(length=5)
    caches = model.new_caches()
    with torch.no_grad():
        assert model(ids[:, :2], caches).shape == (2, 2, 61)
        model(ids[:, 2:], caches)
    assert [cache.length for cache in caches] == [8, 8]


# --- value residual


def layer_values(name: str) -> tuple[list[Tensor], list[Tensor]]:
    """Return what every layer projects and what its G2 site reads, (B, T, K, D) each."""
    model, projected, read = build(name), [], []
    for block in model.blocks:
        block.attn.v_proj.register_forward_hook(lambda m, args, out: projected.append(out.unflatten(-1, (2, 8))))
        block.attn.g2.register_forward_pre_hook(lambda m, args: read.append(args[0]))
    with torch.no_grad():
        model(token_ids())
    return projected, read


def test_later_layers_read_the_mean_of_their_values_and_the_first_layers() -> None:
    projected, read = layer_values("value_residual+g2_headwise")
    torch.testing.assert_close(read[0], projected[0])
    torch.testing.assert_close(read[1], (projected[0] + projected[1]) / 2)
    assert (read[1] - projected[1]).abs().max() > 0.1


def test_with_one_layer_a_value_residual_changes_nothing() -> None:
    ids = token_ids()
    with torch.no_grad():
        assert torch.equal(build("value_residual", n_layers=1)(ids), build("baseline", n_layers=1)(ids))


def test_first_values_of_one_pass_do_not_reach_the_next() -> None:
    model, ids = build("value_residual"), token_ids()
    with torch.no_grad():
        before = model(ids)
        model(token_ids(seed=1))
        assert torch.equal(model(ids), before)


@pytest.mark.parametrize("name", ["value_residual", "registers3+forgetting+g1_headwise", "differential", "kv_bias"])
def test_recomputation_changes_no_gradient(name: str) -> None:
    gradients = []
    for recompute in (False, True):
        model = build(name, n_layers=3)
        model.recompute = recompute
        model(token_ids()).square().mean().backward()
        gradients.append({key: parameter.grad for key, parameter in model.named_parameters()})
    for key, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][key], atol=1e-7, rtol=1e-5)


# --- exclusive self attention


def test_exclusive_attention_leaves_nothing_along_the_tokens_own_value() -> None:
    """z_i = y_i - (y_i · v_i) v_i / ‖v_i‖², query head h beside the value of KV head h // 2."""
    model = build("exclusive+g2_elementwise")
    attention, seen = model.blocks[0].attn, {}
    attention.head_output.register_forward_hook(lambda m, args, out: seen.update(y=args[0], v=args[1], z=out))
    with torch.no_grad():
        model(token_ids())
    for i in range(9):
        for h in range(4):
            y, v = seen["y"][0, i, h], seen["v"][0, i, h // 2]
            torch.testing.assert_close(seen["z"][0, i, h], y - (y @ v) * v / (v @ v), atol=1e-5, rtol=1e-5)
            assert abs(seen["z"][0, i, h] @ v) < 1e-5
    assert seen["z"][:, 0].abs().max() < 1e-5  # the first token has no other value to read


def test_exclusive_attention_survives_a_value_of_zero() -> None:
    model = build("exclusive")
    with torch.no_grad():
        model.blocks[0].attn.v_proj.weight.zero_()
    loss = model(token_ids()).square().mean()
    loss.backward()
    assert torch.isfinite(loss) and all(torch.isfinite(p.grad).all() for p in model.parameters())


# --- stabilisers


def test_clipping_comes_before_the_norm_of_a_sandwich() -> None:
    """Clipped at 300: [900, -400, 0, 0] -> [300, -300, 0, 0], whose RMS is 212.13: 1.41421 each."""
    config = TINY.model_copy(update={"d_model": 4})
    x = torch.tensor([[900.0, -400.0, 0.0, 0.0]])
    assert SublayerOutput(config, variants.get("baseline").design)(x).tolist() == x.tolist()
    assert SublayerOutput(config, variants.get("clip300").design)(x).tolist() == [[300.0, -300.0, 0.0, 0.0]]
    assert SublayerOutput(config, variants.get("clip100").design)(x).tolist() == [[100.0, -100.0, 0.0, 0.0]]
    with torch.no_grad():
        both = SublayerOutput(config, variants.get("sandwich_norm+clip300").design)(x)[0].tolist()
        alone = SublayerOutput(config, variants.get("sandwich_norm").design)(x)[0].tolist()
    assert both == pytest.approx([2**0.5, -(2**0.5), 0, 0], abs=1e-4)
    assert alone == pytest.approx([900 / 492.443, -400 / 492.443, 0, 0], abs=1e-4)


def test_a_block_adds_the_normed_and_clipped_outputs_of_both_sublayers() -> None:
    model, h = build("sandwich_norm+clip1"), torch.randn(1, 5, 24, generator=torch.Generator().manual_seed(0))
    block, (cos, sin) = model.blocks[0], model.rope(0, 5, h.device)

    def normed(x: Tensor) -> Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt()

    with torch.no_grad():
        middle = h + normed(block.attn(normed(h), cos, sin).clamp(-1, 1))
        expected = middle + normed(block.ffn(normed(middle)).clamp(-1, 1))
        torch.testing.assert_close(block(h, cos, sin), expected, atol=1e-4, rtol=1e-4)


# --- words


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("g1_headwise+registers4+softmax1", "softmax1+registers4+g1_headwise"),
        ("exclusive+sandwich_norm+kv_heads_x2", "kv_heads_x2+sandwich_norm+exclusive"),
        ("clipped_softmax12", "clipped_softmax"),
        ("clipped_softmax1234567", "clipped_softmax1234567"),
        ("clip1000000", "clip1000000"),
        ("g1_headwise+clipped_softmax4", "clipped_softmax4+g1_headwise"),
    ],
)
def test_a_combination_has_one_canonical_name_that_reads_back(name: str, canonical: str) -> None:
    assert variants.get(name).name == canonical
    assert variants.get(canonical).design == variants.get(name).design


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("softpick+softmax1", "softpick and softmax1 both set kernel"),
        ("clipped_softmax+forgetting", "clipped_softmax and forgetting both set kernel"),
        ("registers4+registers16", "registers4 and registers16 both set registers"),
        ("exclusive+differential", "exclusive with differential"),
        ("registers0", "unknown"),
    ],
)
def test_what_cannot_be_combined_is_refused_in_one_line(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        variants.get(name)
    assert "\n" not in str(refusal.value)


def test_a_design_says_what_it_costs() -> None:
    eager = {name for name, variant in variants.registry().items() if variant.design.eager}
    assert eager == {"sigmoid_attention", "softpick", "clipped_softmax", "forgetting"}
    assert variants.get("softpick+g1_headwise").design.eager
    assert variants.get("registers4").design.costs[0].startswith("registers4: every layer runs on the registers")
    assert variants.get("baseline").design.costs == variants.get("sandwich_norm").design.costs == ()
    assert Design().equations == () and len(variants.get("registers4+exclusive").design.equations) == 2


def test_a_run_scales_by_its_own_context_and_keeps_its_fingerprint() -> None:
    run = make_run("quick", "sigmoid_attention")
    assert run.model.context_length is None
    assert account(run).model.context_length == run.data.seq_len == 256
    assert account(make_run("quick", "baseline", 0, ["model.context_length=64"])).model.context_length == 64
    changed = make_run("quick", "sigmoid_attention", 0, ["model.context_length=64"])
    assert changed.fingerprint != run.fingerprint


def test_first_values_hold_the_first_layers() -> None:
    first, v = FirstValues(), torch.full((1, 1, 1, 2), 2.0)
    assert first.joined(v, is_first_layer=True) is v
    assert first.joined(torch.full((1, 1, 1, 2), 6.0), is_first_layer=False).tolist() == [[[[4.0, 4.0]]]]
