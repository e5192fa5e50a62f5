"""Interventions on hand-made weights with known answers: what changes, what stays, and that all is undone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gatebench.data.tokens import IGNORED_TARGET
from gatebench.errors import UserError
from gatebench.evaluation.probes.hooks import scores_replaced
from gatebench.evaluation.probes.intervention_effects import NONE, effects, loss_change
from gatebench.evaluation.probes.interventions import (
    KINDS,
    Intervention,
    blocked_first_key,
    clipped_residual,
    forced_gates,
    mean_gate_scores,
    parse,
    residual_quantiles,
    zeroed_first_value,
)
from gatebench.evaluation.probes.probe import probe
from gatebench.model.kernels import attention_map
from gatebench.model.transformer import Transformer
from tests.model.shapes import EVERY_VARIANT, build, token_ids, use_eager

CPU = torch.device("cpu")
DATA: dict[str, Any] = {"batch_size": 2, "device": CPU}


def attention_outputs(model: Transformer, ids: Tensor) -> list[Tensor]:
    """What every layer's o_proj reads: (B, T, H * D)."""
    found: list[Tensor] = []
    handles = [
        block.attn.o_proj.register_forward_pre_hook(lambda module, args: found.append(args[0]))
        for block in model.blocks
    ]
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    return found


def even_head() -> tuple[Transformer, Tensor]:
    """One layer and head of 8: attention uniform, so each output is the mean of the values up to it.

    Token n embeds as e_n, and its value is 10 (n + 1) sqrt 24 in channel 0 (the norm multiplies e_n by sqrt 24): the
    ids 0, 1, 2, 3 have values 10, 20, 30, 40 once the norm's factor is divided out.
    """
    model = build("baseline", n_layers=1, n_heads=1, n_kv_heads=1, norm_eps=1e-12)
    with torch.no_grad():
        attention = model.blocks[0].attn
        attention.q_proj.weight.zero_()
        model.embed.weight.zero_()
        model.embed.weight[:24] = torch.eye(24)
        attention.v_proj.weight.zero_()
        attention.v_proj.weight[0] = 10.0 * torch.arange(1, 25) / 24**0.5
    return model.eval(), torch.arange(4)[None]


def means(model: Transformer, ids: Tensor) -> list[float]:
    return [round(value, 3) for value in attention_outputs(model, ids)[0][0, :, 0].tolist()]


# --- (b) block the first key


def test_untouched_each_output_is_the_mean_of_the_values_so_far() -> None:
    assert means(*even_head()) == [10, 15, 20, 25]


def test_without_the_first_key_the_mean_is_over_the_rest() -> None:
    """20 / 1, (20 + 30) / 2, (20 + 30 + 40) / 3; the first query keeps the only key it has."""
    model, ids = even_head()
    with blocked_first_key(model):
        assert means(model, ids) == [10, 20, 25, 30]
    assert means(model, ids) == [10, 15, 20, 25]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("eager", [False, True])
def test_blocking_is_the_explicit_map_with_its_first_column_removed_and_renormalised(
    kv_heads: int, eager: bool
) -> None:
    model, ids = build("baseline", n_kv_heads=kv_heads).eval(), token_ids(2, 11)
    if eager:
        use_eager(model)
    qkv: list[tuple[Tensor, Tensor]] = []
    handle = model.blocks[0].attn.register_forward_pre_hook(
        lambda module, args: qkv.append(module.queries_keys(module.project(args[0]), *args[1:3]))
    )
    values: list[Tensor] = []
    other = model.blocks[0].attn.g2.register_forward_hook(lambda module, args, output: values.append(output))
    with blocked_first_key(model):
        blocked = attention_outputs(model, ids)[0]
    handle.remove()
    other.remove()
    weights = attention_map(*qkv[0])
    weights[:, :, 1:, 0] = 0.0
    weights /= weights.sum(dim=-1, keepdim=True)
    v = values[0].transpose(1, 2).repeat_interleave(4 // kv_heads, dim=1)
    expected = (weights @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(blocked, expected, atol=1e-5, rtol=0)


def test_under_the_block_the_probe_sees_no_attention_to_the_first_token() -> None:
    """Only query 0 still looks at it: a share of 1/T, and none without query 0."""
    model, ids = build("baseline"), token_ids(2, 10).numpy()
    with blocked_first_key(model):
        result = probe(model, ids, **DATA)
    np.testing.assert_allclose(result.arrays()["first_token_share"], 0.1, atol=1e-6)
    np.testing.assert_allclose(result.arrays()["first_token_share_excl"], 0.0, atol=1e-6)
    with blocked_first_key(model, layers=[1]):
        share = probe(model, ids, **DATA).arrays()["first_token_share"]
    assert share[0].min() > 0.15 and share[1] == pytest.approx([0.1] * 4, abs=1e-6)


def test_a_window_of_one_token_survives_the_block() -> None:
    model, ids = even_head()
    with blocked_first_key(model):
        assert means(model, ids[:, :1]) == [10]


# --- (c) zero the first value


def test_with_a_first_value_of_zero_the_weights_stay() -> None:
    """0 / 1, 20 / 2, (20 + 30) / 3, (20 + 30 + 40) / 4."""
    model, ids = even_head()
    with zeroed_first_value(model):
        assert means(model, ids) == [0, 10, 16.667, 22.5]
        share = probe(model, ids.numpy(), **DATA).arrays()["first_token_share"]
    assert share[0, 0] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4, abs=1e-6)
    assert means(model, ids) == [10, 15, 20, 25]


def test_a_sink_whose_value_is_zero_costs_nothing_to_zero_and_something_to_block() -> None:
    """The idle head that a sink makes: with the first value already 0, zeroing is the identity, blocking is not."""
    model, ids = even_head()
    with torch.no_grad():
        model.blocks[0].attn.v_proj.weight[0, 0] = 0.0
    untouched = means(model, ids)
    assert untouched == [0, 10, 16.667, 22.5]
    with zeroed_first_value(model):
        assert means(model, ids) == untouched
    with blocked_first_key(model):
        assert means(model, ids) == [0, 20, 25, 30]


# --- (a) force gates to their mean


def two_token_gate(name: str = "g1_headwise") -> tuple[Transformer, Tensor]:
    """Values of 1; the gate's logit is +1.0986 (score 0.75) for token 1 and -1.0986 (0.25) for token 0.

    Per the norm, e_n becomes sqrt 24 e_n. Ids 0, 1, 1, 1: scores 0.25, 0.75, 0.75, 0.75, mean 0.625.
    """
    model = build(name, n_layers=1, n_heads=1, n_kv_heads=1, norm_eps=1e-12)
    with torch.no_grad():
        model.embed.weight.zero_()
        model.embed.weight[:24] = torch.eye(24)
        attention = model.blocks[0].attn
        attention.q_proj.weight.zero_()
        attention.v_proj.weight.zero_()
        attention.v_proj.weight[:, :2] = 1 / 24**0.5
        gate = getattr(attention, name[:2]).gates[0]
        gate.proj.weight.zero_()
        gate.proj.weight[:, 0] = -1.0986123 / 24**0.5
        gate.proj.weight[:, 1] = 1.0986123 / 24**0.5
    return model.eval(), torch.tensor([[0, 1, 1, 1]])


def test_a_forced_gate_multiplies_by_its_mean_whatever_the_token() -> None:
    model, ids = two_token_gate()
    assert means(model, ids) == [0.25, 0.75, 0.75, 0.75]
    gate = model.blocks[0].attn.g1.gates[0]
    scores = mean_gate_scores(model, ids.numpy(), **DATA)
    assert scores.keys() == {gate} and scores[gate].shape == (1, 1, 1, 1)
    assert scores[gate].item() == pytest.approx(0.625, abs=1e-6)
    with forced_gates(scores):
        assert means(model, ids) == [0.625] * 4
    assert means(model, ids) == [0.25, 0.75, 0.75, 0.75]


def test_an_additive_gate_adds_its_mean() -> None:
    """SiLU(±1.0986) = 0.82396 and -0.27465: mean 0.54931 on values of 1."""
    model, ids = two_token_gate("g1_headwise_additive_silu")
    with forced_gates(mean_gate_scores(model, ids.numpy(), **DATA)):
        assert means(model, ids) == [1.549] * 4


def test_at_g2_the_values_are_gated_alike() -> None:
    """Untouched: running means of 0.25, 0.75, 0.75, 0.75; forced: 0.625 throughout."""
    model, ids = two_token_gate("g2_headwise")
    assert means(model, ids) == [0.25, 0.5, 0.583, 0.625]
    with forced_gates(mean_gate_scores(model, ids.numpy(), **DATA)):
        assert means(model, ids) == [0.625] * 4


def test_means_are_kept_by_head_and_channel_or_pooled_by_layer() -> None:
    model = build("g1_elementwise")
    ids = token_ids(3, 9).numpy()
    by_score = mean_gate_scores(model, ids, **DATA)
    pooled = mean_gate_scores(model, ids, per="layer", **DATA)
    assert [scores.shape for scores in by_score.values()] == [(1, 1, 4, 8)] * 2
    for gate, scores in pooled.items():
        assert scores.shape == (1, 1, 1, 1) and scores.item() == pytest.approx(by_score[gate].mean().item())
    assert len(mean_gate_scores(model, ids, layers=[1], **DATA)) == 1


def test_a_shared_gate_is_forced_to_the_mean_of_what_it_applies() -> None:
    model = build("g1_headwise_shared")
    scores = mean_gate_scores(model, token_ids(2, 9).numpy(), **DATA)
    assert all(values.shape == (1, 1, 1, 1) for values in scores.values())


def test_an_input_independent_gate_is_its_mean() -> None:
    model, ids = build("g1_elementwise_input_independent").eval(), token_ids(2, 9)
    with torch.no_grad():
        model.blocks[0].attn.g1.gates[0].theta.uniform_(-3, 3)
        untouched = model(ids)
        with forced_gates(mean_gate_scores(model, ids.numpy(), **DATA)):
            torch.testing.assert_close(model(ids), untouched, atol=1e-5, rtol=0)


def test_replacing_scores_nests() -> None:
    model, ids = two_token_gate()
    gate = model.blocks[0].attn.g1.gates[0]
    with scores_replaced(gate, torch.tensor(0.5)):
        with scores_replaced(gate, torch.tensor(2.0)):
            assert means(model, ids) == [2.0] * 4
        assert means(model, ids) == [0.5] * 4
    assert means(model, ids) == [0.25, 0.75, 0.75, 0.75]


# --- (d) clip activations


def test_the_residual_stream_is_clamped_before_the_first_layer_and_after_each() -> None:
    """Embeddings of 1 with 50 in channel 4; layer 2 adds -90 to channel 5. Clipped at 20: 20, 20, and -20."""
    model, ids = spiked(), token_ids(2, 6).numpy()
    assert probe(model, ids, **DATA).arrays()["max_activation"].tolist() == [50.0, 89.0]
    with clipped_residual(model, dict.fromkeys(range(3), 20.0)):
        result = probe(model, ids, **DATA)
        assert result.arrays()["max_activation"].tolist() == [20.0, 20.0]
        assert result.arrays()["activation_max"][0, 1] == 20.0  # what the first layer reads is clamped already
    with clipped_residual(model, {2: 20.0}):
        assert probe(model, ids, **DATA).arrays()["max_activation"].tolist() == [50.0, 20.0]
    assert probe(model, ids, **DATA).arrays()["max_activation"].tolist() == [50.0, 89.0]


def spiked() -> Transformer:
    model = build("baseline", qkv_bias=True)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.o_proj.weight.zero_()
            block.ffn.down_proj.weight.zero_()
        model.embed.weight.fill_(1.0)
        model.embed.weight[:, 4] = 50.0
        model.blocks[1].attn.o_proj.bias[5] = -90.0
    return model.eval()


def test_a_limit_that_nothing_reaches_changes_nothing() -> None:
    model, ids = build("g1_headwise").eval(), token_ids(2, 9)
    with torch.no_grad():
        untouched = model(ids)
        with clipped_residual(model, dict.fromkeys(range(3), 1e6)):
            assert torch.equal(model(ids), untouched)


@pytest.mark.parametrize(("quantile", "after_2"), [(0.999, 89.0), (0.95, 50.0), (0.5, 1.0)])
def test_the_quantile_is_over_all_values_at_a_place(quantile: float, after_2: float) -> None:
    """24 channels, 12 tokens: after layer 2 a 24th of |h| is 89, a 24th 50, the rest 1."""
    limits = residual_quantiles(spiked(), token_ids(2, 6).numpy(), quantile, batch_size=1, device=CPU)
    assert list(limits) == [0, 1, 2]
    assert limits[2] == after_2


def test_a_quantile_is_that_of_all_values_at_once_whatever_the_batch() -> None:
    model, ids = build("baseline"), token_ids(7, 10).numpy()
    hidden: list[Tensor] = []
    handle = model.blocks[1].register_forward_hook(lambda module, args, output: hidden.append(output))
    with torch.no_grad():
        model(torch.from_numpy(ids))
    handle.remove()
    magnitudes = np.sort(np.abs(hidden[0].numpy()).ravel())
    for quantile in (0.5, 0.9, 0.999):
        for batch_size in (1, 3, 7):
            found = residual_quantiles(model, ids, quantile, batch_size=batch_size, device=CPU)[2]
            kept = int(np.ceil((1 - quantile) * magnitudes.size))
            assert found == pytest.approx(magnitudes[-kept], rel=1e-5)


# --- by name


@pytest.mark.parametrize(
    "text",
    [*KINDS, "mean-gate:per=layer", "block-first:layers=1+3", "clip-activations:c=20", "clip-activations:q=0.99"],
)
def test_a_name_reads_back_as_itself(text: str) -> None:
    assert parse(text).name == text
    assert parse(parse(text).name) == parse(text)


def test_layers_are_counted_from_1_in_a_name() -> None:
    assert parse("zero-first-value:layers=1+3").layers == (0, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("block-frist", "did you mean block-first"),
        ("block-first:c=3", "'c=3' is no option of block-first; legal: layers"),
        ("clip-activations:c=1,q=0.9", "both c and q"),
        ("clip-activations:c=0", "c=0; legal: a positive number"),
        ("clip-activations:q=1", "q=1; legal: above 0 and below 1"),
        ("clip-activations:c=x", "could not convert"),
        ("mean-gate:per=head", "per=head; legal: score, layer"),
        ("block-first:layers=0", "layers=0; legal: counted from 1"),
        ("block-first:layers", "'layers' is no option"),
    ],
)
def test_a_bad_name_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse(text)
    assert words in str(refusal.value) and text in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_layer_that_is_not_there_is_refused() -> None:
    with (
        pytest.raises(UserError, match="no layer 3; legal: 1 to 2"),
        parse("block-first:layers=3").applied(build("baseline"), token_ids().numpy(), **DATA),
    ):
        pass


def state(model: nn.Module) -> list[object]:
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    return [hooks, [sorted(vars(m)) for m in model.modules()]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EVERY_VARIANT)
def test_every_intervention_works_on_every_variant_and_leaves_nothing_behind(name: str, kind: str) -> None:
    model, ids = build(name).eval(), token_ids(2, 9)
    before = state(model)
    with torch.no_grad():
        untouched = model(ids)
        with pytest.raises(RuntimeError), parse(kind).applied(model, ids.numpy(), **DATA):
            assert torch.isfinite(model(ids)).all()
            raise RuntimeError
        assert torch.equal(model(ids), untouched)
    assert state(model) == before
    scored = any(gate.source != "self" for gate in model.variant.gates)
    assert parse(kind).applies_to(model) is (kind != "mean-gate" or scored)


@pytest.mark.parametrize("kind", ["block-first", "zero-first-value", "clip-activations"])
def test_an_intervened_model_is_still_causal(kind: str) -> None:
    model, ids = build("g1_headwise").eval(), token_ids(1, 12)
    changed = ids.clone()
    changed[0, 8] = (ids[0, 8] + 1) % 61
    with torch.no_grad(), parse(kind).applied(model, ids.numpy(), **DATA):
        difference = (model(ids) - model(changed)).abs().amax(dim=-1)[0]
    assert difference[:8].max() == 0.0 and difference[8] > 0.0


# --- what they cost


def test_a_change_is_the_mean_over_tokens_and_its_interval_over_windows() -> None:
    """Window 1: +1 on two tokens; window 2: +3 on two. Mean 2; residuals ∓2 per window; t(1) = 12.706."""
    without = np.zeros((2, 3))
    with_it = np.array([[1.0, 1.0, 9.0], [3.0, 3.0, 9.0]])
    chosen = np.array([[True, True, False]] * 2)
    found = loss_change(with_it, without, chosen)
    assert (found.change, found.loss, found.tokens) == (2.0, 2.0, 4)
    half = 12.7062 * ((4 + 4) * 2) ** 0.5 / 4
    assert found.low == pytest.approx(2 - half, abs=1e-3) and found.high == pytest.approx(2 + half, abs=1e-3)


def test_windows_weigh_by_their_tokens() -> None:
    """Three tokens at +1 and one at +5: 2, not 3."""
    chosen = np.array([[True, True, True], [True, False, False]])
    found = loss_change(np.array([[1.0, 1, 1], [5, 0, 0]]), np.zeros((2, 3)), chosen)
    assert found.change == 2.0


def test_one_window_has_no_interval() -> None:
    found = loss_change(np.ones((1, 3)), np.zeros((1, 3)), np.ones((1, 3), dtype=bool))
    assert (found.change, found.low, found.high) == (1.0, None, None)


def test_effects_have_a_row_each_and_split_the_loss_by_group() -> None:
    model, ids = build("g1_headwise"), token_ids(6, 12).numpy()
    inputs, targets = ids[:, :-1], ids[:, 1:].copy()
    targets[0, 5:] = IGNORED_TARGET
    first = np.zeros(targets.shape, dtype=bool)
    first[:, :4] = True
    groups = {"start": first, "rest": ~first, "nothing": np.zeros_like(first)}
    rows = effects(
        model,
        [parse("block-first"), parse("mean-gate"), parse("clip-activations:c=1e6")],
        inputs=inputs,
        targets=targets,
        groups=groups,
        probe_inputs=ids,
        **DATA,
    )
    assert [row.intervention for row in rows] == [NONE, "block-first", "mean-gate", "clip-activations:c=1000000"]
    untouched, blocked, _, clipped = rows
    assert list(untouched.losses) == ["all", "start", "rest"]
    assert all(change.change == 0.0 for change in untouched.losses.values())
    assert all(change.change == 0.0 for change in clipped.losses.values())
    assert untouched.losses["all"].tokens == 6 * 11 - 6
    for row in rows:
        parts = [row.losses[group] for group in ("start", "rest")]
        assert sum(p.change * p.tokens for p in parts) == pytest.approx(row.losses["all"].change * 60, abs=1e-6)
    assert blocked.losses["all"].change != 0.0
    assert blocked.losses["all"].loss - untouched.losses["all"].loss == pytest.approx(blocked.losses["all"].change)
    assert blocked.figures["first_token_share"] == pytest.approx(1 / 12, abs=1e-6)
    assert blocked.figures["sink_rate"] == 0.0


def test_what_cannot_apply_has_no_numbers() -> None:
    ids = token_ids(2, 9).numpy()
    rows = effects(
        build("baseline"),
        [Intervention("mean-gate")],
        inputs=ids[:, :-1],
        targets=ids[:, 1:],
        groups={},
        probe_inputs=ids,
        **DATA,
    )
    assert rows[1].applies is False and rows[1].losses == {} and rows[1].figures["m_act"] is None
