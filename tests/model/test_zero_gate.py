"""A gate forced to 0 reaches every path: no overridden forward drops it (TensorRT-LLM#9060)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gatebench import variants
from gatebench.gatespec import factorial
from gatebench.model.attention import KVCache
from gatebench.model.gates import Gate
from gatebench.model.kernels import attention_map
from tests.model.shapes import EVERY_VARIANT, TINY, build

MULTIPLICATIVE = [
    name
    for name in EVERY_VARIANT
    if (v := variants.get(name)).gates and all(g.mode == "multiplicative" for g in v.gates)
]
OUTPUT_SIDE = [
    name for name in MULTIPLICATIVE if any(g.position in ("g1", "g2", "g5") for g in variants.get(name).gates)
]
SCORE_SIDE = [name for name in MULTIPLICATIVE if name not in OUTPUT_SIDE]


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Force the score of every gate to 0."""
    monkeypatch.setattr(Gate, "scores", lambda gate, logits: torch.zeros_like(logits))


def attention_outputs(name: str) -> dict[str, Tensor]:
    """Return the attention branch (B, T, C) of one layer on every path."""
    model = build(name)
    attn = model.blocks[0].attn
    x = torch.randn(2, 6, TINY.d_model, generator=torch.Generator().manual_seed(0))
    cos, sin = model.rope(0, 6, x.device)
    with torch.no_grad():
        outputs = {"sdpa": attn(x, cos, sin)}
        cache = KVCache()
        steps = [attn(x[:, t : t + 1], cos[t : t + 1], sin[t : t + 1], cache) for t in range(6)]
        outputs["cached"] = torch.cat(steps, dim=1)
        vars(attn.kernel)["forward"] = attn.kernel.explicit
        outputs["eager"] = attn(x, cos, sin)
    return outputs


def test_the_lists_hold_what_they_should() -> None:
    # Of the factorial's cells, multiplicative: G1 and G2 2 x 2 x 2 each and two at G5; G3 and G4 2 x 2 x 2 each.
    cells = {gate.name for gate in factorial()}
    assert len(cells.intersection(OUTPUT_SIDE)) == 18
    assert len(cells.intersection(SCORE_SIDE)) == 16
    assert "g1_elementwise_floor0p9" in OUTPUT_SIDE
    assert "g4_headwise_from_query" in SCORE_SIDE


@pytest.mark.parametrize("name", OUTPUT_SIDE)
@pytest.mark.usefixtures("closed")
def test_a_closed_gate_closes_the_attention_branch(name: str) -> None:
    for path, out in attention_outputs(name).items():
        assert out.abs().max() == 0.0, path


@pytest.mark.parametrize("name", OUTPUT_SIDE)
def test_an_open_gate_does_not(name: str) -> None:
    for path, out in attention_outputs(name).items():
        assert out.abs().max() > 1e-3, path


@pytest.mark.parametrize("name", SCORE_SIDE)
@pytest.mark.usefixtures("closed")
def test_a_closed_gate_at_key_or_query_makes_attention_uniform(name: str) -> None:
    model = build(name)
    x = torch.randn(1, 5, TINY.d_model, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        q, k = model.blocks[0].attn.queries_keys(model.blocks[0].attn.project(x), *model.rope(0, 5, x.device))
    uniform = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    torch.testing.assert_close(attention_map(q, k), uniform.expand(1, TINY.n_heads, 5, 5))


@pytest.mark.parametrize("name", ["g1_headwise", "g2_elementwise", "g5_elementwise"])
@pytest.mark.usefixtures("closed")
def test_a_closed_gate_closes_the_compiled_branch(name: str) -> None:
    torch._dynamo.reset()
    model = build(name)
    x = torch.randn(1, 5, TINY.d_model)
    compiled = torch.compile(model.blocks[0].attn, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert compiled(x, *model.rope(0, 5, x.device)).abs().max() == 0.0
