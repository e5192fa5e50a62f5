"""Probes and interventions on attention that is not softmax: what counts as attention there, and what is blocked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gatebench.evaluation.probes.interventions import blocked_first_key, parse, zeroed_first_value
from gatebench.evaluation.probes.probe import probe
from gatebench.evaluation.probes.sinks import attention_maps, uniform_first_token_share
from gatebench.model.kernels import KERNELS
from gatebench.model.transformer import Transformer
from tests.model.shapes import build, token_ids

CPU = torch.device("cpu")
DATA: dict[str, Any] = {"batch_size": 2, "device": CPU}
WORDS = {"softmax": "baseline", "sigmoid": "sigmoid_attention"}
RIVALS = [WORDS.get(name, name) for name in KERNELS if name != "softmax"]
"""Every kernel but softmax, by its word."""


def kernel_inputs(model: Transformer, ids: Tensor) -> list[tuple[Tensor, ...]]:
    """What every layer's kernel reads: q, k, v, decay."""
    found: list[tuple[Tensor, ...]] = []
    hooks = [b.attn.kernel.register_forward_pre_hook(lambda m, args: found.append(args)) for b in model.blocks]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return found


def kernel_outputs(model: Transformer, ids: Tensor) -> list[Tensor]:
    found: list[Tensor] = []
    hooks = [b.attn.kernel.register_forward_hook(lambda m, args, out: found.append(out)) for b in model.blocks]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return found


def looking_evenly(name: str) -> Transformer:
    """A model whose queries are zero, so that every score is 0."""
    model = build(name)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.q_proj.weight)
    return model


@pytest.mark.parametrize("name", [*RIVALS, "registers3", "exclusive", "value_residual", "registers3+forgetting"])
@pytest.mark.parametrize("length", [6, 45])
def test_streamed_shares_are_those_of_the_explicit_map(name: str, length: int) -> None:
    """Below head_dim and above one block of queries."""
    model, ids = build(name).eval(), token_ids(3, length)
    sinks = probe(model, ids.numpy(), **DATA).arrays()
    for layer, (q, k, _, decay) in enumerate(kernel_inputs(model, ids)):
        kernel = model.blocks[layer].attn.kernel
        rows = kernel.shares(q, k, decay)
        without_query_0 = rows[:, :, 1:, 0].mean(dim=(0, 2)).detach()
        np.testing.assert_allclose(sinks["first_token_share"][layer], rows[..., 0].mean(dim=(0, 2)).detach(), atol=1e-5)
        np.testing.assert_allclose(sinks["first_token_share_excl"][layer], without_query_0, atol=1e-5)
        alpha = sinks["sink_alpha"][layer]
        for key in range(alpha.shape[-1]):
            np.testing.assert_allclose(alpha[:, key], rows[:, :, key:, key].mean(dim=(0, 2)).detach(), atol=1e-5)


def test_scores_of_zero_have_the_shares_that_each_kernel_gives_them() -> None:
    """Over 8 tokens: a null key takes one part of n + 1, softpick pays nothing, proxy scores are even."""
    ids = token_ids(2, 8).numpy()
    with_null_key = sum(1 / (n + 1) for n in range(1, 9)) / 8
    expected = {"baseline": uniform_first_token_share(8), "softmax1": with_null_key, "softpick": 0.0}
    expected |= dict.fromkeys(("sigmoid_attention", "differential"), expected["baseline"])
    for name, share in expected.items():
        np.testing.assert_allclose(
            probe(looking_evenly(name), ids, **DATA).arrays()["first_token_share"], share, atol=1e-6, err_msg=name
        )
    assert expected["baseline"] == pytest.approx(0.3397, abs=1e-4)


@pytest.mark.parametrize("name", ["softmax1", "sink_logits", "kv_bias"])
def test_rows_over_the_tokens_sum_to_less_than_one_beside_a_null_key(name: str) -> None:
    """8 keys, all tracked: what they get together is what the null key leaves."""
    model, ids = build(name), token_ids(2, 8).numpy()
    rows = attention_maps(model, ids, [0, 1], device=CPU, length=8).sum(axis=-1)
    assert rows.max() < 0.999 and rows.min() > 0.0
    together = probe(model, ids, **DATA).arrays()["first_keys_share"][..., -1]
    np.testing.assert_allclose(together, rows.mean(axis=-1), atol=1e-5)
    np.testing.assert_allclose(attention_maps(build("baseline"), ids, [0], device=CPU, length=8).sum(-1), 1, atol=1e-5)


def test_with_registers_the_first_key_is_a_register_and_the_text_begins_after_them() -> None:
    """Even attention over 3 + 5 tokens is that over 8; maps are 8 wide, and key 3 is the text's first."""
    model, ids = looking_evenly("registers3"), token_ids(2, 5).numpy()
    result = probe(model, ids, **DATA)
    np.testing.assert_allclose(result.arrays()["first_token_share"], uniform_first_token_share(8), atol=1e-6)
    summary = result.summary()
    assert summary["first_token_floor"] == pytest.approx(uniform_first_token_share(8))
    assert summary["probe_tokens"] == 10
    assert attention_maps(model, ids, [1], device=CPU, length=5).shape == (1, 4, 8, 8)


def test_triggers_keep_their_places_after_registers() -> None:
    """Uniform attention of the last of 3 + 29 tokens: 1/32 a key, one of the text's other tokens is a trigger."""
    model, ids = looking_evenly("registers3"), token_ids(1, 29).numpy()
    triggers = np.zeros(ids.shape, dtype=bool)
    triggers[0, 5] = True  # key 8 of the sequence
    result = probe(model, ids, triggers=triggers, **DATA)
    shares = result.arrays()["attention_idle"][..., 3]  # trigger keys, for the queries 4 to 31 but 8
    expected = sum(1 / (i + 1) for i in range(10, 32)) / 27  # at query 9 it is the token before
    np.testing.assert_allclose(shares, expected, atol=1e-6)


@pytest.mark.parametrize("name", RIVALS)
def test_blocking_the_first_key_is_the_kernel_over_the_rest(name: str) -> None:
    model, ids = build(name).eval(), token_ids(2, 9)
    q, k, v, decay = kernel_inputs(model, ids)[0]
    kernel = model.blocks[0].attn.kernel
    with torch.no_grad():
        alone = kernel(q[:, :, :1], k[:, :, :1], v[:, :, :1], None if decay is None else decay[:, :, :1])
        rest = kernel.explicit(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], None if decay is None else decay[:, :, 1:])
        with blocked_first_key(model):
            out = kernel_outputs(model, ids)[0]
            shares = kernel.shares(q, k, decay)
            block = kernel.shares(q[:, :, 4:7], k[:, :, :7], None if decay is None else decay[:, :, :7])
    torch.testing.assert_close(out, torch.cat((alone, rest), dim=2), atol=1e-5, rtol=1e-5)
    assert not shares[:, :, 1:, 0].any() and not block[..., 0].any()
    torch.testing.assert_close(block, shares[:, :, 4:7, :7])


@pytest.mark.parametrize("name", [*RIVALS, "registers3"])
def test_under_the_block_every_probe_sees_no_attention_on_the_first_key(name: str) -> None:
    model, ids = build(name), token_ids(2, 40).numpy()
    with blocked_first_key(model):
        result = probe(model, ids, **DATA)
    np.testing.assert_allclose(result.arrays()["first_token_share_excl"], 0.0, atol=1e-6)
    np.testing.assert_allclose(result.arrays()["attention_idle"][..., 0], 0.0, atol=1e-6)


def test_a_first_value_of_zero_takes_one_part_out_of_the_average() -> None:
    """The kernel is linear in values: what is missing is the first key's weight times its value, and nothing else."""
    for name in RIVALS:
        model, ids = build(name).eval(), token_ids(2, 9)
        q, k, v, decay = kernel_inputs(model, ids)[0]
        before = kernel_outputs(model, ids)[0]
        with zeroed_first_value(model):
            after = kernel_outputs(model, ids)[0]
        kernel = model.blocks[0].attn.kernel
        with torch.no_grad():
            first = kernel.map(q, k, decay)[..., :1] * kernel.by_query_head(v, 4)[:, :, :1]
        torch.testing.assert_close(before - after, first, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [*RIVALS, "registers3", "value_residual", "exclusive"])
@pytest.mark.parametrize("kind", ["block-first", "zero-first-value", "clip-activations:c=2", "mean-gate"])
def test_interventions_change_a_gated_rival_and_keep_it_causal(name: str, kind: str) -> None:
    model, ids = build(f"{name}+g1_headwise").eval(), token_ids(1, 12)
    changed = ids.clone()
    changed[0, 8] = (ids[0, 8] + 1) % 61
    with torch.no_grad():
        untouched = model(ids)
        with parse(kind).applied(model, ids.numpy(), **DATA):
            under, moved = model(ids), model(changed)
    assert (under - untouched).abs().max() > 1e-4
    difference = (under - moved).abs().amax(dim=-1)[0]
    assert difference[:8].max() == 0.0 and difference[8] > 0.0


def test_clipping_before_the_first_layer_reaches_its_values_in_every_layer() -> None:
    """With value residual the later layers read the first layer's values as it computes them, clipped input and all."""
    model, ids = build("value_residual").eval(), token_ids(1, 6)
    with torch.no_grad():
        model.embed.weight.mul_(100.0)
    seen: list[Tensor] = []
    hook = model.blocks[1].attn.g2.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    own = model.blocks[1].attn.v_proj.register_forward_hook(lambda m, args, out: seen.append(out.unflatten(-1, (2, 8))))
    first = model.blocks[0].attn.v_proj.register_forward_hook(
        lambda m, args, out: seen.append(out.unflatten(-1, (2, 8)))
    )
    with torch.no_grad(), parse("clip-activations:c=1").applied(model, ids.numpy(), **DATA):
        model(ids)
    for handle in (hook, own, first):
        handle.remove()
    first_v, own_v, read = seen
    torch.testing.assert_close(read, (first_v + own_v) / 2)
