"""Every form of gate on numbers worked out by hand: σ(ln 3) = 3/4, SiLU(ln 3) = 3/4 ln 3, tanh(ln 3) = 4/5."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gatebench.gatespec import GateSpec, parse_gate
from gatebench.model.gates import Gate, GateSite
from tests.model.shapes import build, hidden_only, token_ids

LN3 = math.log(3.0)
X = hidden_only(torch.tensor([[[LN3, 7.0]]]))  # one token, d_model = 2
SITE = torch.tensor([[[[2.0, 4.0], [6.0, 8.0]]]])  # two heads of 2


def gate(spec: str | GateSpec, weight: list[list[float]] | None = None, n_heads: int = 2) -> Gate:
    """Return a gate at a site of `n_heads` heads of 2, with score matrix `weight` (rows: scores, columns: x)."""
    spec = parse_gate(spec) if isinstance(spec, str) else spec
    built = Gate(spec, d_model=2, n_heads=n_heads, head_dim=2, bias=False, norm_eps=1e-6)
    if weight is not None:
        built.proj.weight.data = torch.tensor(weight)
    return built


def assert_values(actual: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(actual[0, 0], torch.tensor(expected), atol=1e-6, rtol=1e-6)


HEADWISE = [[1.0, 0.0], [0.0, 0.0]]  # logits: ln 3 for head 0, 0 for head 1
ELEMENTWISE = [[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]  # ln 3, 0 for head 0; -ln 3, 0 for head 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("g1_headwise", [[1.5, 3.0], [3.0, 4.0]]),
        ("g1_headwise_additive", [[2.75, 4.75], [6.5, 8.5]]),
        ("g1_headwise_silu", [[1.5 * LN3, 3.0 * LN3], [0.0, 0.0]]),
        ("g1_headwise_ns_sigmoid", [[1.75, 3.5], [4.5, 6.0]]),
        ("g1_headwise_identity", [[2 * LN3, 4 * LN3], [0.0, 0.0]]),
        ("g1_headwise_tanh", [[1.6, 3.2], [0.0, 0.0]]),
        ("g1_headwise_relu", [[2 * LN3, 4 * LN3], [0.0, 0.0]]),
        ("g1_headwise_additive_silu", [[2 + 0.75 * LN3, 4 + 0.75 * LN3], [6.0, 8.0]]),
        ("g1_headwise_additive_identity", [[2 + LN3, 4 + LN3], [6.0, 8.0]]),
        # shared: the mean of 3/4 and 1/2 is 5/8
        ("g1_headwise_shared", [[1.25, 2.5], [3.75, 5.0]]),
        ("g1_headwise_shared_additive", [[2.625, 4.625], [6.625, 8.625]]),
        ("g1_headwise_shared_silu", [[0.75 * LN3, 1.5 * LN3], [2.25 * LN3, 3 * LN3]]),
    ],
)
def test_headwise_gates(name: str, expected: list[list[float]]) -> None:
    assert_values(gate(name, HEADWISE)(SITE, X), expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("g2_elementwise", [[1.5, 2.0], [1.5, 4.0]]),
        ("g2_elementwise_additive", [[2.75, 4.5], [6.25, 8.5]]),
        ("g2_elementwise_silu", [[1.5 * LN3, 0.0], [-1.5 * LN3, 0.0]]),
        ("g2_elementwise_ns_sigmoid", [[1.75, 3.0], [3.75, 6.0]]),
        ("g2_elementwise_tanh", [[1.6, 0.0], [-4.8, 0.0]]),
        ("g2_elementwise_relu", [[2 * LN3, 0.0], [0.0, 0.0]]),
        ("g2_elementwise_additive_silu", [[2 + 0.75 * LN3, 4.0], [6 - 0.25 * LN3, 8.0]]),
        ("g2_elementwise_additive_identity", [[2 + LN3, 4.0], [6 - LN3, 8.0]]),
        # shared, per channel: (3/4 + 1/4) / 2 and (1/2 + 1/2) / 2
        ("g2_elementwise_shared", [[1.0, 2.0], [3.0, 4.0]]),
        # SiLU is not odd: (3/4 ln 3 - 1/4 ln 3) / 2 = ln 3 / 4
        ("g2_elementwise_shared_silu", [[0.5 * LN3, 0.0], [1.5 * LN3, 0.0]]),
    ],
)
def test_elementwise_gates(name: str, expected: list[list[float]]) -> None:
    assert_values(gate(name, ELEMENTWISE)(SITE, X), expected)


def test_sharing_can_average_before_the_activation() -> None:
    before = GateSpec("g1", "headwise", shared=True, shared_average="logits")
    score = math.sqrt(3) / (1 + math.sqrt(3))  # σ(ln 3 / 2) = 0.6340, not 5/8
    assert_values(gate(before, HEADWISE)(SITE, X), [[2 * score, 4 * score], [6 * score, 8 * score]])


@pytest.mark.parametrize(
    ("name", "shape", "at_zero"),
    [
        ("g1_headwise_input_independent", (2, 1), 0.5),
        ("g1_elementwise_input_independent", (2, 2), 0.5),
        ("g1_elementwise_ns_sigmoid_input_independent", (2, 2), 0.75),
    ],
)
def test_input_independent_gates_apply_theta(name: str, shape: tuple[int, int], at_zero: float) -> None:
    built = gate(name)
    assert built.theta.shape == shape
    assert_values(built(SITE, X), [[2 * at_zero, 4 * at_zero], [6 * at_zero, 8 * at_zero]])
    built.theta.data[0] = LN3
    score = {0.5: 0.75, 0.75: 0.875}[at_zero]
    assert_values(built(SITE, X), [[2 * score, 4 * score], [6 * at_zero, 8 * at_zero]])


def test_rmsnorm_scales_every_head_to_unit_rms_with_a_gain_per_head() -> None:
    built = gate("g1_rmsnorm")
    assert built.gain.shape == (2, 2)
    site = torch.tensor([[[[3.0, 4.0], [1.0, 7.0]]]])  # root mean squares: sqrt(12.5) and 5
    built.gain.data[1] = torch.tensor([2.0, 1.0])
    assert_values(built(site, X), [[3 / math.sqrt(12.5), 4 / math.sqrt(12.5)], [0.4, 1.4]])


def test_silu_only_has_no_parameters_and_acts_on_the_site() -> None:
    built = gate("g1_silu_only")
    assert list(built.parameters()) == []
    assert_values(built(torch.tensor([[[[LN3, -LN3], [0.0, 100.0]]]]), X), [[0.75 * LN3, -0.25 * LN3], [0.0, 100.0]])


def test_g5_gates_every_channel_of_the_output() -> None:
    built = gate("g5_elementwise", [[1.0, 0.0], [-1.0, 0.0]], n_heads=1)
    assert_values(built(torch.tensor([[[[2.0, 4.0]]]]), X), [[1.5, 1.0]])


def test_gates_of_one_site_act_in_the_order_of_the_name() -> None:
    def site(*names: str) -> GateSite:
        built = GateSite(tuple(map(parse_gate, names)), d_model=2, n_heads=2, head_dim=2, bias=False, norm_eps=1e-6)
        for one in built.gates:
            one.proj.weight.data = torch.tensor(HEADWISE)
        return built

    multiply, add = "g1_headwise", "g1_headwise_additive_identity"
    assert_values(site(multiply, add)(SITE, X), [[1.5 + LN3, 3 + LN3], [3.0, 4.0]])
    assert_values(site(add, multiply)(SITE, X), [[1.5 + 0.75 * LN3, 3 + 0.75 * LN3], [3.0, 4.0]])
    assert torch.equal(site()(SITE, X), SITE)


@pytest.mark.parametrize("position", ["g1", "g2", "g3", "g4"])
@pytest.mark.parametrize("granularity", ["headwise", "elementwise"])
def test_shared_scores_are_the_mean_over_heads_of_the_specific_scores(position: str, granularity: str) -> None:
    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        specific, shared = (
            getattr(build(name).blocks[0].attn, position).gates[0]
            for name in (f"{position}_{granularity}", f"{position}_{granularity}_shared")
        )
        theirs, ours = (g.scores(g.logits(hidden_only(x))) for g in (specific, shared))
    assert theirs.shape == (2, 5, 4 if position in ("g1", "g4") else 2, 1 if granularity == "headwise" else 8)
    assert ours.shape == (2, 5, 1, theirs.shape[-1])
    torch.testing.assert_close(ours, theirs.mean(dim=2, keepdim=True))


def test_key_and_query_gates_act_after_the_qk_norm() -> None:
    # Before the norm, one factor for a whole head would be undone; after it, every key has 3/4 of its length.
    x = torch.randn(1, 5, 24, generator=torch.Generator().manual_seed(0))
    for name, which in (("g4_headwise_input_independent", 0), ("g3_headwise_input_independent", 1)):
        model, baseline = build(name), build("baseline")
        site = model.blocks[0].attn.g4 if which == 0 else model.blocks[0].attn.g3
        site.gates[0].theta.data.fill_(LN3)
        cos, sin = model.rope(0, 5, x.device)
        with torch.no_grad():
            gated = model.blocks[0].attn.queries_keys(model.blocks[0].attn.project(x), cos, sin)
            plain = baseline.blocks[0].attn.queries_keys(baseline.blocks[0].attn.project(x), cos, sin)
        torch.testing.assert_close(gated[which], 0.75 * plain[which])
        assert torch.equal(gated[1 - which], plain[1 - which])


@pytest.mark.parametrize("name", ["g3_elementwise", "g4_elementwise", "g3_elementwise_additive_silu"])
def test_scores_stay_relative_because_gates_act_before_rope(name: str) -> None:
    # The same hidden states at positions 0.. and at positions 100.. give the same attention.
    attn = build(name, init_std=0.3).blocks[0].attn
    rope = build(name).rope
    x = torch.randn(1, 7, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        here, there = attn(x, *rope(0, 7, x.device)), attn(x, *rope(100, 7, x.device))
    torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-4)


def test_scores_are_computed_in_the_dtype_of_the_activations() -> None:
    model = build("g1_elementwise").to(torch.bfloat16)
    scored = model.blocks[0].attn.g1.gates[0]
    x = torch.randn(1, 3, 24).to(torch.bfloat16)
    assert scored.scores(scored.logits(hidden_only(x))).dtype == torch.bfloat16
    assert model(token_ids()).dtype == torch.bfloat16
