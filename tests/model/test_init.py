"""Initial values: what they are, and that they depend on seed and name alone (contract 1)."""

from __future__ import annotations

import pytest
import torch

from gatebench.config import ModelConfig
from gatebench.model.build import build_model, build_run_model
from gatebench.model.init import parameter_generator
from gatebench.recipes import make_run
from tests.model.shapes import TINY, build, hidden_only, token_ids


def first_gate(model: torch.nn.Module, position: str = "g1") -> torch.nn.Module:
    return getattr(model.blocks[0].attn, position).gates[0]


def test_a_parameters_generator_is_keyed_by_seed_and_name() -> None:
    # Recorded: a change here changes every published run.
    assert parameter_generator(0, "embed.weight").initial_seed() == 2_956_821_454_833_469_499
    assert parameter_generator(1, "blocks.0.attn.q_proj.weight").initial_seed() == 7_968_038_298_530_694_827


def test_released_initialisation() -> None:
    model = build_model(ModelConfig(n_layers=2, qkv_bias=True, tie_embeddings=False), "g1_elementwise", seed=0)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.ndim == 1:
            assert (parameter == 1).all(), name
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.03), name
            assert abs(parameter.mean().item()) < 0.0005, name


def test_no_two_parameters_draw_the_same_numbers() -> None:
    firsts = [p.flatten()[:4].tolist() for p in build("g1_elementwise+g2_elementwise").parameters() if p.ndim > 1]
    assert len({tuple(values) for values in firsts}) == len(firsts) == 19


def test_the_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    one, same, other = (build("g1_headwise", seed=seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["embed.weight"], other["embed.weight"])


def test_global_random_state_neither_matters_nor_moves() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build("g1_headwise").state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert all(torch.equal(value, one[key]) for key, value in build("g1_headwise").state_dict().items())


def test_depth_and_tying_shift_nothing() -> None:
    shallow, deep = build("baseline", n_layers=2).state_dict(), build("baseline", n_layers=3).state_dict()
    assert all(torch.equal(shallow[key], deep[key]) for key in shallow)
    untied = build("baseline", tie_embeddings=False).state_dict()
    assert all(torch.equal(shallow[key], untied[key]) for key in shallow if key != "lm_head.weight")


def test_tied_embeddings_are_one_parameter() -> None:
    model = build("baseline")
    assert model.lm_head.weight is model.embed.weight
    assert "lm_head.weight" not in dict(model.named_parameters())


def test_parameter_matching_leaves_attention_paired() -> None:
    overrides = ["param_match=ffn"]
    ours = build_run_model(make_run("quick", "g1_elementwise", 0, overrides))
    baseline = build_run_model(make_run("quick", "baseline", 0, overrides)).state_dict()
    for key, value in ours.state_dict().items():
        if ".gates." not in key:
            assert torch.equal(value, baseline[key]) == (".ffn." not in key), key


@pytest.mark.parametrize("name", ["g1_headwise", "g1_elementwise", "g2_headwise", "g5_elementwise"])
def test_a_sigmoid_gate_starts_near_one_half(name: str) -> None:
    model = build_model(ModelConfig(), name, seed=0)
    gate = first_gate(model, name[:2])
    with torch.no_grad():
        h = model.blocks[0].attn_norm(model.embed(token_ids(2, 64, vocab_size=4096)))  # unit RMS per token
        logits = gate.logits(hidden_only(h))
    # logits are N(0, 0.02² · 192): a standard deviation of 0.277
    assert logits.std().item() == pytest.approx(0.277, rel=0.1)
    assert gate.scores(logits).mean().item() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("name", ["g1_headwise", "g1_elementwise", "g2_elementwise", "g5_elementwise"])
def test_a_zero_initialised_gate_is_not_overwritten(name: str) -> None:
    # After full construction (LAVT-RIS#15): every matrix 0, every score exactly one half.
    model = build(name, gate_init_std=0.0)
    gates = [p for key, p in model.named_parameters() if ".gates." in key]
    assert len(gates) == 2
    assert not any(p.any() for p in gates)
    x = torch.randn(1, 3, TINY.d_model)
    gate = first_gate(model, name[:2])
    assert (gate.scores(gate.logits(hidden_only(x))) == 0.5).all()
    assert model.blocks[0].attn.q_proj.weight.std() > 0.1


@pytest.mark.parametrize("name", ["g1_headwise_input_independent", "g1_elementwise_input_independent"])
def test_input_independent_gates_start_at_exactly_one_half(name: str) -> None:
    gate = first_gate(build(name))
    assert (gate.scores(gate.logits(hidden_only(torch.randn(1, 3, TINY.d_model)))) == 0.5).all()


def test_gate_init_std_changes_gates_alone() -> None:
    plain, changed = build("g1_elementwise").state_dict(), build("g1_elementwise", gate_init_std=0.05).state_dict()
    for key, value in plain.items():
        assert torch.equal(value, changed[key]) == (".gates." not in key), key
    assert changed["blocks.0.attn.g1.gates.0.proj.weight"].std().item() == pytest.approx(0.05, rel=0.1)


def test_depth_scaled_init_divides_the_two_output_projections_by_the_root_of_twice_the_layers() -> None:
    plain, scaled = build("baseline").state_dict(), build("baseline", depth_scaled_init=True).state_dict()
    for key, value in plain.items():
        factor = 0.5 if key.endswith(("o_proj.weight", "down_proj.weight")) else 1.0  # 1 / sqrt(2 * 2 layers)
        torch.testing.assert_close(scaled[key], factor * value)
