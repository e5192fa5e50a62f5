"""What a gate depends on: the query's token (G1, G4, G5), each key's token (G2, G3), or nothing.

The attention input that the gate alone sees is changed at one token; everything else reads the true one.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.model.shapes import build, token_ids

T, CHANGED = 9, 4


def rows_that_change(name: str) -> list[int]:
    """Return the positions whose attention output changes when token 4 changes in the eyes of the gate alone."""
    model = build(name)
    attn, position = model.blocks[0].attn, name.split("_")[0]
    x = torch.randn(1, T, 24, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[:, CHANGED] += 1.0
    cos, sin = model.rope(0, T, x.device)
    with torch.no_grad():
        before = attn(x, cos, sin)
        site = getattr(attn, position)
        hook = site.register_forward_pre_hook(lambda _, args: (args[0], args[1]._replace(hidden=other)))
        after = attn(x, cos, sin)
        hook.remove()
    moved = (before - after).abs().amax(dim=(0, 2)) > 1e-6
    return moved.nonzero().flatten().tolist()


FORMS = ["headwise", "elementwise", "elementwise_shared", "elementwise_additive_silu", "elementwise_silu"]


@pytest.mark.parametrize("position", ["g1", "g4"])
@pytest.mark.parametrize("form", FORMS)
def test_at_the_query_side_a_gate_depends_on_its_own_token_alone(position: str, form: str) -> None:
    assert rows_that_change(f"{position}_{form}") == [CHANGED]


def test_after_the_output_projection_a_gate_depends_on_its_own_token_alone() -> None:
    assert rows_that_change("g5_elementwise") == [CHANGED]


@pytest.mark.parametrize("position", ["g2", "g3"])
@pytest.mark.parametrize("form", FORMS)
def test_at_the_key_side_every_query_feels_the_gate_of_each_key(position: str, form: str) -> None:
    # A G3 gate moves no output of query 4 only if query 4 saw one key; it sees five.
    assert rows_that_change(f"{position}_{form}") == list(range(CHANGED, T))


@pytest.mark.parametrize("position", ["g1", "g2", "g3", "g4"])
@pytest.mark.parametrize("granularity", ["headwise", "elementwise"])
def test_an_input_independent_gate_depends_on_no_token(position: str, granularity: str) -> None:
    assert rows_that_change(f"{position}_{granularity}_input_independent") == []


@pytest.mark.parametrize("name", ["g1_headwise", "g1_elementwise", "g2_headwise", "g2_elementwise", "g5_elementwise"])
def test_in_the_whole_model_the_first_layers_score_moves_with_its_token_alone(name: str) -> None:
    model, seen = build(name), []
    site = getattr(model.blocks[0].attn, name[:2])

    def record(_: torch.nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
        gate = site.gates[0]
        seen.append(gate.scores(gate.logits(inputs[1])))

    site.register_forward_pre_hook(record)
    ids = token_ids(batch=1, length=T)
    changed = ids.clone()
    changed[0, CHANGED] = (changed[0, CHANGED] + 1) % 61
    with torch.no_grad():
        model(ids)
        model(changed)
    moved = (seen[0] - seen[1]).abs().amax(dim=(0, 2, 3)) > 1e-6
    assert moved.nonzero().flatten().tolist() == [CHANGED]
    assert seen[0].std(dim=1).min() > 1e-3  # no static scalar per head: scores differ from token to token
