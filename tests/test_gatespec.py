"""What a `GateSpec` may say, how it is spelled, and its matrices; the paper's words are in test_variants.py."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatebench.errors import UserError
from gatebench.gatespec import GateSpec, parse_gate
from gatebench.variants import get, select

PARTS = (
    ("", "_shared"),
    ("", "_additive"),
    ("", "_relu", "_hard", "_ns_sigmoid", "_floor0p25"),
    ("", "_temp0p5", "_temp2"),
    ("", "_input_independent", "_from_value", "_from_query", "_from_output", "_from_slice", "_from_previous"),
    ("", "_first16"),
    ("", "_rank8"),
    ("", "_detached"),
    ("", "_bias0p9"),
)
"""Words of every suffix in the order of the grammar."""


def spelled() -> list[tuple[str, GateSpec | None]]:
    """Return every combination of `PARTS` with its spec; None where it is refused."""
    specs: list[tuple[str, GateSpec | None]] = []
    for position, granularity in (("g1", "headwise"), ("g2", "elementwise"), ("g5", "elementwise")):
        for suffixes in itertools.product(*PARTS):
            word = f"{position}_{granularity}{''.join(suffixes)}"
            try:
                specs.append((word, parse_gate(word)))
            except UserError:
                specs.append((word, None))
    return specs


SPELLED = spelled()


def test_every_legal_combination_round_trips_and_has_a_name_of_its_own() -> None:
    legal = {word: spec for word, spec in SPELLED if spec is not None}
    assert all(spec.name == word and parse_gate(spec.name) == spec for word, spec in legal.items())
    assert len(set(legal.values())) == len(legal)


def test_the_legal_combinations_are_these() -> None:
    """G1: 2 sharings x 2 modes, times the sum over activations and sources below. G2: no query, no output. G5: hidden
    and previous, not shared.

    Sigmoid and its two floors, 3 temperatures: hidden and previous 2 x 2 x 2 x 2 (first, rank, detached, bias) each;
    value, query, output, slice 2 x 2 (detached, bias) each; constant 1. Hard: hidden and previous 8 each, four sources
    2 each, constant 1. ReLU the same but for the constant.
    """
    legal = [word for word, spec in SPELLED if spec is not None]
    counts = {site: len([word for word in legal if word.startswith(site)]) for site in ("g1", "g2", "g5")}
    sigmoid, hard = 9 * (32 + 4 * 4 + 1), 16 + 4 * 2 + 1
    assert counts["g1"] == 4 * (sigmoid + hard + hard - 1) == 1960
    assert counts["g2"] == 4 * (9 * (32 + 2 * 4 + 1) + (16 + 2 * 2 + 1) + (16 + 2 * 2)) == 1640
    assert counts["g5"] == 2 * (9 * (32 + 1) + 17 + 16) == 660


@given(
    st.floats(0, 1, exclude_max=True),
    st.floats(1e-3, 1e3),
    st.one_of(st.none(), st.floats(0, 1, exclude_min=True, exclude_max=True)),
)
def test_any_number_is_spelled_exactly(floor: float, temperature: float, bias: float | None) -> None:
    spec = GateSpec("g1", "headwise", floor=floor, temperature=temperature, bias=bias)
    assert parse_gate(spec.name) == spec


def test_other_spellings_of_a_number_share_the_canonical_name_and_so_the_runs() -> None:
    assert get("g1_elementwise_floor0p5") is get("g1_elementwise_ns_sigmoid")
    assert get("g1_elementwise_floor0p50_temp1p0").name == "g1_elementwise_ns_sigmoid"
    assert get("g1_elementwise_floor0") is get("g1_elementwise")
    assert get("g1_elementwise_temp2p0") is get("g1_elementwise_temp2")
    assert get("g1_headwise_floor0p125").name == "g1_headwise_floor0p125"


def test_a_word_says_all_about_its_gate() -> None:
    assert parse_gate("g2_headwise_shared_floor0p25_temp0p5_from_previous_first16_rank8_detached_bias0p9") == GateSpec(
        "g2", "headwise", True, "multiplicative", "sigmoid", "previous", "scores", 0.25, 0.5, 16, 8, True, 0.9
    )
    assert parse_gate("g1_elementwise_additive_hard") == GateSpec("g1", mode="additive", activation="hard")
    assert get("quantizable_gate").gates == (GateSpec("g1", "headwise", source="slice", bias=0.25),)


@pytest.mark.parametrize(
    ("name", "equation"),
    [
        ("g1_elementwise_ns_sigmoid", "Y_h' = Y_h ⊙ (0.5 + 0.5·σ(X W_θ,h))"),
        ("g1_headwise_floor0p1_temp2", "Y_h' = Y_h ⊙ (0.1 + 0.9·σ((X W_θ,h) / 2))"),
        ("g1_headwise_temp0p5_input_independent", "Y_h' = Y_h ⊙ σ(θ_h / 0.5)"),
        ("g1_headwise_hard", "Y_h' = Y_h ⊙ 1[σ(X W_θ,h) > 0.5]"),
        ("g1_headwise_from_value", "Y_h' = Y_h ⊙ σ(V_h W_θ,h)"),
        ("g2_headwise_from_key", "V_h' = V_h ⊙ σ(K_h W_θ,h)"),
        ("g4_headwise_from_query", "Q_h' = Q_h ⊙ σ(Q_h W_θ,h)"),
        ("g1_headwise_from_output", "Y_h' = Y_h ⊙ σ(Y_h W_θ,h)"),
        ("g5_elementwise_from_previous", "O' = O ⊙ σ(X₋₁ W_θ)"),
        ("g1_headwise_detached", "Y_h' = Y_h ⊙ σ(detach(X) W_θ,h)"),
        ("g1_headwise_first16", "Y_h' = Y_h ⊙ σ(X[:16] W_θ,h)"),
        ("g1_elementwise_rank8", "Y_h' = Y_h ⊙ σ(X A_8 B_θ,h)"),
        ("g1_headwise_from_slice_bias0p25", "Y_h' = Y_h ⊙ σ(X_h W_θ,h + b_h)"),
        ("g2_headwise_shared_floor0p25_from_value", "V_h' = V_h ⊙ mean_h (0.25 + 0.75·σ(V_h W_θ,h))"),
    ],
)
def test_equations(name: str, equation: str) -> None:
    gate = parse_gate(name)
    assert gate is not None
    assert gate.equation == equation


@pytest.mark.parametrize(
    ("name", "matrices"),
    [
        # d_model 24, 4 heads of 8
        ("g1_headwise", (24 * 4,)),
        ("g1_elementwise", (24 * 32,)),
        ("g1_elementwise_first16", (16 * 32,)),
        ("g1_elementwise_rank8", (24 * 8, 8 * 32)),
        ("g1_headwise_first16_rank3", (16 * 3, 3 * 4)),
        ("g1_headwise_from_value", (4 * 8,)),
        ("g1_elementwise_from_value", (4 * 8 * 8,)),
        ("g1_headwise_from_slice", (4 * 6,)),
        ("g1_elementwise_from_slice", (4 * 6 * 8,)),
        ("g1_elementwise_from_previous", (24 * 32,)),
        ("g1_elementwise_input_independent", ()),
        ("g1_rmsnorm", ()),
    ],
)
def test_the_weights_of_every_matrix(name: str, matrices: tuple[int, ...]) -> None:
    gate = parse_gate(name)
    assert gate is not None
    assert gate.matrices(d_model=24, n_heads=4, head_dim=8) == matrices


@pytest.mark.parametrize(("bias", "temperature", "start"), [(0.75, 1.0, 3.0), (0.25, 1.0, 1 / 3), (0.75, 2.0, 9.0)])
def test_a_bias_starts_where_the_sigmoid_is_what_the_word_says(bias: float, temperature: float, start: float) -> None:
    spec = GateSpec("g1", bias=bias, temperature=temperature)
    assert spec.initial_bias == pytest.approx(math.log(start))  # τ logit(p); 2 ln 3 = ln 9
    assert GateSpec("g1").initial_bias == 0.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("g1_elementwise_floor1", ["g1_elementwise_floor1: floor=1; legal: 0 or more and less than 1"]),
        ("g1_elementwise_temp0", ["g1_elementwise_temp0: temperature=0; legal: a positive number"]),
        ("g1_elementwise_first0", ["g1_elementwise_first0: first=0; legal: 1 or more"]),
        ("g1_elementwise_rank0", ["g1_elementwise_rank0: rank=0; legal: 1 or more"]),
        ("g1_elementwise_bias1", ["g1_elementwise_bias1: bias=1; legal: between 0 and 1"]),
        ("g2_headwise_from_query", ["g2_headwise_from_query", "a head at G2 has no query", "from_query at g1, g4"]),
        ("g2_headwise_from_output", ["a head at G2 has no output", "legal: from_output at g1"]),
        ("g4_headwise_from_output", ["legal: from_output at g1"]),
        ("g5_elementwise_from_value", ["a head at G5 has no value", "from_value at g1, g2, g3, g4"]),
        ("g5_elementwise_from_slice", ["a head at G5 has no slice"]),
        ("g1_elementwise_silu_temp2", ["numbers of the sigmoid", "legal: without _silu"]),
        ("g1_elementwise_hard_bias0p9", ["numbers of the sigmoid", "legal: without _hard"]),
        ("g1_elementwise_from_value_first16", ["first and rank shape the matrix that reads d_model channels"]),
        ("g1_elementwise_input_independent_rank8", ["first and rank shape the matrix"]),
        ("g1_elementwise_input_independent_detached", ["θ reads no input to detach"]),
        ("g1_elementwise_input_independent_bias0p9", ["is itself a bias"]),
        ("g1_elementwise_input_independent_from_value", ["unknown"]),
        ("g1_elementwise_from_hidden", ["unknown", "did you mean"]),
        ("g1_elementwise_detached_rank8", ["unknown"]),
        ("g1_elementwise_ns_sigmoid_floor0p25", ["unknown"]),
        ("g1_rmsnorm_detached", ["unknown"]),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(name: str, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        get(name)
    assert "\n" not in str(error.value)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("g1_elementwise_first25", (24, 4, 8), ["first25 of d_model=24", "first1 to first24"]),
        ("g1_elementwise_rank25", (24, 4, 8), ["rank25", "full rank is 24", "rank1 to rank24"]),
        ("g1_headwise_rank5", (24, 4, 8), ["full rank is 4"]),
        ("g1_elementwise_first16_rank20", (24, 4, 8), ["full rank is 16"]),
        ("g1_headwise_from_slice", (24, 5, 8), ["d_model=24", "5 heads", "a multiple of 5"]),
    ],
)
def test_a_gate_that_the_shape_cannot_have_is_refused(name: str, shape: tuple[int, int, int], words: list[str]) -> None:
    gate = parse_gate(name)
    assert gate is not None
    with pytest.raises(UserError) as error:
        gate.input_width(*shape)
    assert [word for word in (name, *words) if word not in str(error.value)] == []


def test_the_dose_response_of_the_floor_is_registered() -> None:
    floors = {
        v.gates[0].floor for v in select("g1_elementwise*") if v.gates[0] == GateSpec("g1", floor=v.gates[0].floor)
    }
    assert floors == {0.0, 0.1, 0.25, 0.5, 0.75, 0.9}


def test_every_source_is_registered_at_g1_in_both_granularities() -> None:
    sources = {(v.gates[0].granularity, v.gates[0].source) for v in select("group:source") if v.name.startswith("g1_")}
    read = {"value", "key", "query", "output", "previous"}
    assert sources == {(grain, source) for grain in ("headwise", "elementwise") for source in read} | {
        ("headwise", "slice")
    }
