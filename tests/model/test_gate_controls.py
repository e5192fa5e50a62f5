"""Controls of a gate's score on numbers worked out by hand: its shape, what it is computed from, its gradient.

σ(ln 3) = 3/4, σ(2 ln 3) = 9/10, σ'(ln 3) = 3/16.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gatebench.config import ModelConfig, OptimConfig
from gatebench.errors import UserError
from gatebench.gatespec import parse_gate
from gatebench.model import accounting
from gatebench.model.attention import KVCache
from gatebench.model.build import build_model
from gatebench.model.gates import Gate, GateInputs
from gatebench.model.transformer import Transformer
from gatebench.training.optim import parameter_groups
from tests.model.shapes import TINY, build, hidden_only, token_ids

LN3 = math.log(3.0)
X = hidden_only(torch.tensor([[[LN3, 7.0]]]))  # one token, d_model = 2
SITE = torch.tensor([[[[2.0, 4.0], [6.0, 8.0]]]])  # two heads of 2
HEADWISE = [[1.0, 0.0], [0.0, 0.0]]  # logits: ln 3 for head 0, 0 for head 1


def gate(name: str, weight: list[list[float]] | None = None, *, d_model: int = 2, n_heads: int = 2) -> Gate:
    """Return a gate at a site of heads of 2, with score matrix `weight` where it is one matrix."""
    spec = parse_gate(name)
    assert spec is not None
    built = Gate(spec, d_model=d_model, n_heads=n_heads, head_dim=2, bias=False, norm_eps=1e-6)
    if weight is not None:
        built.proj.weight.data = torch.tensor(weight)
    return built


def by_head(name: str, *, n_heads: int = 2, d_model: int = 2) -> Gate:
    """Return a headwise gate of which every head's score is the first channel of what it reads."""
    built = gate(name, n_heads=n_heads, d_model=d_model)
    built.proj.weight.data.zero_()
    built.proj.weight.data[..., 0] = 1.0
    return built


def assert_values(actual: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(actual[0, 0].detach(), torch.tensor(expected), atol=1e-6, rtol=1e-6)


# --- the score as a function of the logit


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("g1_headwise_floor0p2", [[1.6, 3.2], [3.6, 4.8]]),  # 0.2 + 0.8 x 3/4 and 0.2 + 0.8 x 1/2
        ("g1_headwise_temp0p5", [[1.8, 3.6], [3.0, 4.0]]),
        ("g1_headwise_floor0p2_temp0p5", [[1.84, 3.68], [3.6, 4.8]]),
        ("g1_headwise_shared_floor0p2", [[1.4, 2.8], [4.2, 5.6]]),  # the mean of 0.8 and 0.6
        ("g1_headwise_additive_floor0p2", [[2.8, 4.8], [6.6, 8.6]]),
        ("g1_headwise_hard", [[2.0, 4.0], [0.0, 0.0]]),  # σ(0) = 0.5 is not above 0.5
        ("g1_headwise_additive_hard", [[3.0, 5.0], [6.0, 8.0]]),
        ("g1_headwise_shared_hard", [[1.0, 2.0], [3.0, 4.0]]),
        ("g1_headwise_detached", [[1.5, 3.0], [3.0, 4.0]]),
    ],
)
def test_scores_of_the_logits_ln_3_and_0(name: str, expected: list[list[float]]) -> None:
    assert_values(gate(name, HEADWISE)(SITE, X), expected)


def test_a_floor_of_one_half_is_ns_sigmoid_bit_for_bit() -> None:
    ids = token_ids()
    floor, ns = (build(name) for name in ("g1_elementwise_floor0p5", "g1_elementwise_ns_sigmoid"))
    logits = torch.linspace(-9, 9, 1001)
    scores = floor.blocks[0].attn.g1.gates[0].scores(logits[:, None])[:, 0]
    with torch.no_grad():
        assert torch.equal(floor(ids), ns(ids))
    assert torch.equal(scores, 0.5 + 0.5 * torch.sigmoid(logits))


def test_no_floor_is_the_papers_gate_bit_for_bit() -> None:
    with torch.no_grad():
        assert torch.equal(build("g1_elementwise_floor0_temp1")(token_ids()), build("g1_elementwise")(token_ids()))


def test_a_hard_gate_is_exactly_0_or_1_and_has_the_sigmoids_gradient() -> None:
    scores = gate("g1_headwise_hard").scores(torch.randn(10_000, generator=torch.Generator().manual_seed(0)))
    assert scores.unique().tolist() == [0.0, 1.0]
    hard, soft = gate("g1_headwise_hard", HEADWISE), gate("g1_headwise", HEADWISE)
    for built in (hard, soft):
        built(SITE, X).sum().backward()
    # head 0: (2 + 4) σ'(ln 3) x; head 1: (6 + 8) σ'(0) x
    expected = [[6 * 3 / 16 * LN3, 6 * 3 / 16 * 7], [14 / 4 * LN3, 14 / 4 * 7]]
    torch.testing.assert_close(hard.proj.weight.grad, torch.tensor(expected))
    torch.testing.assert_close(hard.proj.weight.grad, soft.proj.weight.grad)


# --- what it is computed from


def test_a_truncated_score_reads_the_first_channels_alone() -> None:
    built = gate("g1_headwise_first1", [[1.0], [0.0]])
    assert_values(built(SITE, X), [[1.5, 3.0], [3.0, 4.0]])
    assert_values(built(SITE, hidden_only(torch.tensor([[[LN3, -100.0]]]))), [[1.5, 3.0], [3.0, 4.0]])


def test_a_low_rank_score_goes_through_its_two_matrices() -> None:
    built = gate("g1_elementwise_rank1", [[1.0], [0.0], [-1.0], [2.0]])
    built.reduce.weight.data = torch.tensor([[1.0, 0.0]])
    assert_values(built(SITE, X), [[1.5, 2.0], [1.5, 7.2]])  # σ of ln 3, 0, -ln 3, 2 ln 3


def tensors(**given: list[list[float]]) -> GateInputs:
    """Return inputs of one token with the given tensors (heads, D); a gate that reads another fails."""
    return X._replace(**{key: torch.tensor(value)[None, None] for key, value in given.items()})


@pytest.mark.parametrize("source", ["value", "key", "query", "output"])
def test_each_head_reads_its_own_tensor(source: str) -> None:
    inputs = tensors(**{source: [[LN3, 5.0], [0.0, 5.0]]})
    assert_values(by_head(f"g1_headwise_from_{source}")(SITE, inputs), [[1.5, 3.0], [3.0, 4.0]])


def test_heads_have_weights_of_their_own() -> None:
    built = gate("g1_elementwise_from_value")
    # head 0: channel 0 reads v_0, channel 1 reads nothing; head 1: channel 0 reads -v_1, channel 1 reads 2 v_1
    built.proj.weight.data = torch.tensor([[[1.0, 0.0], [0.0, 0.0]], [[0.0, -1.0], [0.0, 2.0]]])
    inputs = tensors(value=[[LN3, 5.0], [5.0, LN3]])
    assert_values(built(SITE, inputs), [[1.5, 2.0], [1.5, 7.2]])


@pytest.mark.parametrize("source", ["value", "key"])
def test_a_kv_head_serves_its_group_of_query_heads(source: str) -> None:
    site = torch.ones(1, 1, 4, 2)
    inputs = tensors(**{source: [[LN3, 5.0], [0.0, 5.0]]})
    scores = by_head(f"g1_headwise_from_{source}", n_heads=4)(site, inputs)
    assert_values(scores, [[0.75, 0.75], [0.75, 0.75], [0.5, 0.5], [0.5, 0.5]])


def test_each_head_reads_its_own_slice_of_the_attention_input() -> None:
    inputs = hidden_only(torch.tensor([[[LN3, 7.0, 0.0, 7.0]]]))
    assert_values(by_head("g1_headwise_from_slice", d_model=4)(SITE, inputs), [[1.5, 3.0], [3.0, 4.0]])


def test_the_output_is_that_of_sdpa_before_any_gate() -> None:
    # At one site, the second gate reads what the first has not touched.
    seen: list[GateInputs] = []
    attn = build("g1_headwise+g1_headwise_from_output", n_layers=1).blocks[0].attn
    sdpa_output: list[Tensor] = []
    attn.kernel.register_forward_hook(lambda _, args, output: sdpa_output.append(output.transpose(1, 2)))
    attn.g1.gates[1].register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    with torch.no_grad():
        attn(torch.randn(1, 5, 24), *build("baseline").rope(0, 5, torch.device("cpu")))
    assert torch.equal(seen[0].output, sdpa_output[0])


def test_the_previous_token_is_zero_before_the_first_and_is_carried_by_the_cache() -> None:
    attn = build("g1_headwise_from_previous").blocks[0].attn
    x = torch.randn(2, 6, 24, generator=torch.Generator().manual_seed(0))
    expected = torch.cat((torch.zeros(2, 1, 24), x[:, :5]), dim=1)
    with torch.no_grad():
        assert torch.equal(attn.project(x).previous, expected)
        cache = KVCache()
        parts = [attn.project(part, cache).previous for part in x.split([1, 3, 2], dim=1)]
    assert torch.equal(torch.cat(parts, dim=1), expected)
    assert build("g1_headwise").blocks[0].attn.project(x).previous is None


def scores_that_move(name: str) -> list[int]:
    """Return the positions at which the first layer's scores change when token 4 does."""
    model, seen = build(name), []
    site = getattr(model.blocks[0].attn, name[:2])
    site.register_forward_pre_hook(lambda _, args: seen.append(site.gates[0].scores(site.gates[0].logits(args[1]))))
    ids = token_ids(batch=1, length=9)
    changed = ids.clone()
    changed[0, 4] = (changed[0, 4] + 1) % 61
    with torch.no_grad():
        model(ids)
        model(changed)
    return ((seen[0] - seen[1]).abs().amax(dim=(0, 2, 3)) > 1e-6).nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("g1_headwise_from_value", [4]),
        ("g1_headwise_from_key", [4]),
        ("g1_headwise_from_query", [4]),
        ("g2_headwise_from_key", [4]),
        ("g1_headwise_from_slice", [4]),
        ("g1_elementwise_first16", [4]),
        ("g1_elementwise_rank8", [4]),
        ("g1_headwise_from_previous", [5]),
        ("g2_headwise_from_previous", [5]),
        ("g1_headwise_from_output", [4, 5, 6, 7, 8]),  # every later query may attend to token 4
    ],
)
def test_a_score_moves_with_the_tokens_that_it_reads(name: str, positions: list[int]) -> None:
    assert scores_that_move(name) == positions


# --- gradients, biases, initial values


@pytest.mark.parametrize("form", ["", "_from_previous", "_from_value", "_from_query", "_from_output", "_from_slice"])
def test_detaching_cuts_the_path_through_the_score_and_nothing_else(form: str) -> None:
    gradients = []
    for suffix in ("", "_detached"):
        attn = build(f"g1_headwise{form}{suffix}", n_layers=1).blocks[0].attn
        inputs = attn.project(torch.randn(1, 5, 24, generator=torch.Generator().manual_seed(0)))
        inputs = inputs._replace(output=inputs.query * 2)
        read = GateInputs(*(t if t is None else t.detach().requires_grad_() for t in inputs))
        attn.g1.gates[0](torch.ones(1, 5, 4, 8), read).square().sum().backward()
        source = getattr(read, {"": "hidden", "_from_slice": "hidden"}.get(form, form.removeprefix("_from_")))
        gradients.append((attn.g1.gates[0].proj.weight.grad, source.grad))
    (weights, source), (weights_detached, source_detached) = gradients
    assert torch.equal(weights, weights_detached)
    assert source.abs().min() > 0
    assert source_detached is None


def test_a_detached_gate_changes_gradients_alone() -> None:
    attached, detached = (build(name) for name in ("g1_elementwise", "g1_elementwise_detached"))
    for model in (attached, detached):
        model.loss(token_ids(), token_ids(seed=1)).backward()
    with torch.no_grad():
        assert torch.equal(attached(token_ids()), detached(token_ids()))
    gradients = [dict(model.named_parameters()) for model in (attached, detached)]
    last = "blocks.1.attn.g1.gates.0.proj.weight"
    torch.testing.assert_close(gradients[0][last].grad, gradients[1][last].grad)
    assert not torch.allclose(gradients[0]["embed.weight"].grad, gradients[1]["embed.weight"].grad)


def test_a_bias_starts_where_its_word_says_and_is_not_decayed() -> None:
    model = build_model(ModelConfig(n_layers=1), "g1_headwise_from_slice_bias0p25+g2_elementwise_temp2_bias0p75")
    biases = {key: p for key, p in model.named_parameters() if key.endswith(".bias")}
    assert {key: round(float(p.unique().item()), 6) for key, p in biases.items()} == {
        "blocks.0.attn.g1.gates.0.proj.bias": round(-LN3, 6),  # logit(1/4)
        "blocks.0.attn.g2.gates.0.proj.bias": round(2 * LN3, 6),  # σ(2 ln 3 / 2) = 3/4
    }
    groups = {str(group["name"]): list(group["params"]) for group in parameter_groups(model, OptimConfig())}  # type: ignore[call-overload]
    assert {id(p) for p in groups["gates_no_decay"]} == {id(p) for p in biases.values()}
    assert len(groups["gates"]) == 2


def test_the_projections_bias_flag_still_starts_gates_at_zero() -> None:
    model = build("g1_headwise_from_value+g1_elementwise_rank8+g2_headwise", qkv_bias=True)
    biases = [p for key, p in model.named_parameters() if ".gates." in key and key.endswith("bias")]
    assert [p.numel() for p in biases[:3]] == [4, 32, 2]
    assert not any(p.any() for p in biases)


def test_a_low_rank_matrix_starts_as_large_as_a_full_one() -> None:
    full, low = (
        build_model(ModelConfig(n_layers=1), name).blocks[0].attn.g1.gates[0]
        for name in ("g1_elementwise", "g1_elementwise_rank8")
    )
    product = low.proj.weight @ low.reduce.weight
    assert product.shape == full.proj.weight.shape
    assert product.std().item() == pytest.approx(0.02, rel=0.1)
    assert full.proj.weight.std().item() == pytest.approx(0.02, rel=0.03)


def test_a_zero_initialised_low_rank_gate_can_still_move() -> None:
    model = build("g1_elementwise_rank8", gate_init_std=0.0)
    gates = {key.split(".gates.0.")[1]: p for key, p in model.blocks[0].attn.g1.named_parameters(prefix=".gates.0")}
    model.loss(token_ids(), token_ids(seed=1)).backward()
    grads = [p.grad for key, p in model.named_parameters() if ".gates." in key and key.endswith("proj.weight")]
    assert len(gates) == 2
    assert all(grad.any() for grad in grads)


# --- counts and refusals


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("g1_headwise_from_value", 4 * 8),
        ("g1_elementwise_from_value", 4 * 8 * 8),
        ("g2_headwise_from_value", 2 * 8),
        ("g1_headwise_from_slice_bias0p25", 4 * 6 + 4),
        ("g1_elementwise_rank8", 24 * 8 + 8 * 32),
        ("g1_headwise_first16", 16 * 4),
        ("g1_elementwise_bias0p9", 24 * 32 + 32),
        ("g1_elementwise_hard", 24 * 32),
        ("g1_elementwise_floor0p25", 24 * 32),
    ],
)
def test_parameters_by_hand(name: str, expected: int) -> None:
    spec = parse_gate(name)
    assert spec is not None
    assert accounting.gate_params(TINY, spec) == expected  # d_model 24, 4 query and 2 KV heads of 8


def test_a_detached_input_saves_a_third_of_the_gates_training_flops() -> None:
    attached, detached, baseline = (
        accounting.train_flops_per_token(TINY, build(name).variant, seq_len=10)
        for name in ("g1_elementwise", "g1_elementwise_detached", "baseline")
    )
    assert attached - baseline == 6 * 2 * 24 * 32  # two layers, two a multiply-add, three passes
    assert detached - baseline == 4 * 2 * 24 * 32


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("g1_elementwise_first32", "g1_elementwise_first32: first32 of d_model=24 channels; legal: first1 to first24"),
        ("g1_headwise_rank8", "g1_headwise_rank8: rank8 of a matrix whose full rank is 4; legal: rank1 to rank4"),
    ],
)
def test_a_gate_too_large_for_the_shape_is_refused_where_the_model_is_built(name: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        build(name)
    assert str(error.value) == words


def test_slices_need_a_width_that_the_heads_divide() -> None:
    with pytest.raises(UserError, match="d_model=26 has no equal slices for 4 heads; legal: d_model a multiple of 4"):
        build("g1_headwise_from_slice", d_model=26)


# --- the gate of "Quantizable Transformers"


def quantizable_attention(model: Transformer, x: Tensor) -> Tensor:
    """Return σ(w_h · x_h + b_h) softmax(q kᵀ / √D) v, concatenated and projected, arXiv 2306.12929."""
    attn = model.blocks[0].attn
    inputs = attn.project(x)
    q, k = attn.queries_keys(inputs, *model.rope(0, x.shape[1], x.device))
    k, v = k.repeat_interleave(2, 1), inputs.value.transpose(1, 2).repeat_interleave(2, 1)
    logits = (q @ k.mT / math.sqrt(8)).masked_fill(torch.ones(7, 7).triu(1).bool(), float("-inf"))
    slices = x.reshape(*x.shape[:2], 4, 6)
    weight, bias = attn.g1.gates[0].proj.weight[:, 0], attn.g1.gates[0].proj.bias
    pi = torch.sigmoid((slices * weight).sum(dim=-1) + bias)  # (B, T, H)
    heads = pi.transpose(1, 2)[..., None] * (logits.softmax(dim=-1) @ v)
    return attn.o_proj(heads.transpose(1, 2).flatten(2))


def test_the_quantizable_transformers_gate_is_its_formula() -> None:
    model = build("quantizable_gate").double()
    model.blocks[0].attn.g1.gates[0].proj.bias.data += torch.tensor([0.0, 1.0, -1.0, 2.0])
    x = torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        ours = model.blocks[0].attn(x, *model.rope(0, 7, x.device))
        torch.testing.assert_close(ours, quantizable_attention(model, x), atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize(
    ("name", "init_std", "held"),
    [
        ("g1_headwise_silu_input_independent+g2_elementwise_silu_input_independent", None, True),
        ("g1_headwise_identity_input_independent+g5_elementwise_hard_input_independent", None, True),
        ("g3_headwise_tanh_input_independent+g4_headwise_silu_input_independent", None, True),
        ("g1_headwise_silu+g2_headwise_tanh", 0.0, True),
        ("g1_headwise_silu+g2_headwise_tanh", None, False),
        ("g1_headwise_silu_input_independent", None, False),
        ("g1_headwise_silu_input_independent+g2_headwise_input_independent", None, False),
        ("g1_headwise_silu_input_independent+g3_headwise_silu_input_independent", None, False),
        ("kv_bias+g1_headwise_silu_input_independent+g2_headwise_silu_input_independent", None, False),
        ("kv_bias+g1_headwise_silu_input_independent+g5_elementwise_silu_input_independent", None, True),
    ],
)
def test_gates_that_hold_one_another_closed_have_no_gradient(name: str, init_std: float | None, held: bool) -> None:
    config = TINY.model_copy(update={"gate_init_std": init_std})
    model = build_model(config, name)
    ids = torch.arange(12).view(2, 6) % config.vocab_size
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    gradients = [p.grad for key, p in model.named_parameters() if ".gates." in key]
    assert gradients and bool(model.variant.held_closed(zero_matrices=init_std == 0)) is held
    assert all(g is None or not g.any() for g in gradients) is held
