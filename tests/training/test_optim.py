"""Parameter groups over the whole registry, and the learning-rate schedules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gatebench.config import OptimConfig
from gatebench.training.optim import lr_factor, make_optimizer, parameter_groups
from tests.model.shapes import EVERY_VARIANT, build

MATRICES = ("weight", "gate_up_proj", "down_proj")

OPTIM = OptimConfig(lr=1e-2, weight_decay=0.1, gate_lr_multiplier=3.0)


def names_by_group(model: torch.nn.Module, config: OptimConfig) -> dict[str, set[str]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups: list[dict[str, Any]] = parameter_groups(model, config)
    return {group["name"]: {names[id(parameter)] for parameter in group["params"]} for group in groups}


@pytest.mark.parametrize("name", EVERY_VARIANT)
@pytest.mark.parametrize("bias", [False, True])
def test_every_parameter_is_in_exactly_one_group(name: str, bias: bool) -> None:
    model = build(name, qkv_bias=bias)
    placed = [id(p) for group in make_optimizer(model, OPTIM).param_groups for p in group["params"]]
    assert len(placed) == len(set(placed))
    assert set(placed) == {id(parameter) for parameter in model.parameters()}


@pytest.mark.parametrize("name", EVERY_VARIANT)
def test_only_matrices_decay_and_only_gates_have_the_gate_rate(name: str) -> None:
    model = build(name, qkv_bias=True)
    parameters = dict(model.named_parameters())
    groups = {group["name"]: group for group in parameter_groups(model, OPTIM)}
    for group, members in names_by_group(model, OPTIM).items():
        gates = [".gates." in member for member in members]
        assert all(gates) if group.startswith("gates") else not any(gates)
        assert groups[group]["lr"] == pytest.approx(3e-2 if group.startswith("gates") else 1e-2)
        assert groups[group]["weight_decay"] == (0.0 if group.endswith("no_decay") else 0.1)
        for member in members:
            # of 3 dimensions: a matrix an expert, or a head
            matrix = parameters[member].ndim in (2, 3) and member.endswith(MATRICES) and "embed" not in member
            assert matrix == (not group.endswith("no_decay")), member


def test_norms_biases_and_the_embedding_are_not_decayed() -> None:
    groups = names_by_group(build("g1_headwise", qkv_bias=True), OPTIM)
    undecayed = {name.split(".", 2)[-1] if name.startswith("blocks.0") else name for name in groups["no_decay"]}
    norms = {"attn_norm.weight", "ffn_norm.weight", "attn.q_norm.weight", "attn.k_norm.weight"}
    biases = {f"attn.{part}_proj.bias" for part in "qkvo"}
    assert {name for name in undecayed if not name.startswith("blocks.1")} == norms | biases | {
        "embed.weight",
        "norm.weight",
    }
    assert groups["gates"] == {f"blocks.{layer}.attn.g1.gates.0.proj.weight" for layer in (0, 1)}
    assert groups["gates_no_decay"] == {f"blocks.{layer}.attn.g1.gates.0.proj.bias" for layer in (0, 1)}


def test_a_tied_embedding_decays_when_asked_and_an_untied_output_layer_always() -> None:
    decaying = OPTIM.model_copy(update={"decay_embeddings": True})
    assert "embed.weight" in names_by_group(build("baseline"), decaying)["decay"]
    untied = names_by_group(build("baseline", tie_embeddings=False), OPTIM)
    assert "lm_head.weight" in untied["decay"] and "embed.weight" in untied["no_decay"]


def test_theta_and_gains_of_gates_are_not_decayed() -> None:
    assert set(names_by_group(build("g1_elementwise_input_independent"), OPTIM)) == {
        "decay",
        "no_decay",
        "gates_no_decay",
    }
    assert set(names_by_group(build("g1_rmsnorm"), OPTIM)) == {"decay", "no_decay", "gates_no_decay"}
    assert set(names_by_group(build("baseline"), OPTIM)) == {"decay", "no_decay"}


def test_the_gate_multiplier_scales_the_first_step() -> None:
    """AdamW's first step is lr in every coordinate with a gradient: three times as far in the gate."""
    moved = {}
    for multiplier in (1.0, 3.0):
        model = build("g1_headwise")
        optimizer = make_optimizer(model, OptimConfig(lr=1e-3, weight_decay=0.0, gate_lr_multiplier=multiplier))
        weights = {"gate": model.blocks[0].attn.g1.gates[0].proj.weight, "other": model.blocks[0].attn.q_proj.weight}
        before = {name: weight.detach().clone() for name, weight in weights.items()}
        model(torch.arange(9)[None]).logsumexp(-1).mean().backward()
        optimizer.step()
        moved[multiplier] = {name: (weight - before[name]).abs().max().item() for name, weight in weights.items()}
    assert moved[3.0]["gate"] == pytest.approx(3e-3, rel=1e-3)
    assert moved[1.0]["gate"] == pytest.approx(1e-3, rel=1e-3)
    assert moved[3.0]["other"] == moved[1.0]["other"]


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_warm_up_is_linear_and_reaches_the_peak(schedule: Any) -> None:
    config = OptimConfig(warmup_steps=4, schedule=schedule)
    assert [lr_factor(step, 100, config) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(("schedule", "middle"), [("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)])
def test_decay_passes_the_middle_and_ends_on_the_floor(schedule: Any, middle: float) -> None:
    config = OptimConfig(warmup_steps=10, schedule=schedule, min_lr_ratio=0.1)
    assert lr_factor(10, 111, config) == pytest.approx(1.0)
    assert lr_factor(60, 111, config) == pytest.approx(middle)
    assert lr_factor(110, 111, config) == pytest.approx(1.0 if schedule == "constant" else 0.1)


def test_a_quarter_of_the_cosine_is_above_the_line() -> None:
    cosine = OptimConfig(warmup_steps=0, schedule="cosine", min_lr_ratio=0.0)
    assert lr_factor(25, 101, cosine) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))  # 0.8536
    assert lr_factor(25, 101, cosine.model_copy(update={"schedule": "linear"})) == pytest.approx(0.75)


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    assert lr_factor(0, 10, OptimConfig(warmup_steps=0)) == 1.0
    assert lr_factor(0, 1, OptimConfig(warmup_steps=0)) == 1.0
