"""Eager equals compiled.

Whether a forward traces whole is a fact of each variant, so the whole registry is traced. Inductor, the real compiler,
takes seconds a graph and compiles the operations that it is handed, whichever variant they come from: it gets a spread
with every part that a variant can have. A set that reaches every line of `model/gates.py` and every site goes through
dynamo and AOT autograd, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.model.shapes import REGISTRY, TINY, build, token_ids
from tests.model.spread import SPREAD

EVERY_PATH = (
    "baseline",
    "g1_headwise",
    "g1_elementwise_shared",
    "g1_elementwise_additive_silu",
    "g1_rmsnorm",
    "g1_silu_only",
    "g1_elementwise_input_independent",
    "g2_elementwise_ns_sigmoid",
    "g1_headwise_hard",
    "g1_elementwise_first16_rank8_detached_bias0p9",
    "g1_elementwise_temp2_from_value",
    "g1_headwise_from_output+g2_headwise_from_previous",
    "quantizable_gate",
    "g1_headwise+g2_elementwise+g3_headwise+g4_elementwise+g5_elementwise",
    "softmax1",
    "sink_logits+g1_headwise",
    "kv_bias",
    "sigmoid_attention",
    "softpick",
    "clipped_softmax",
    "forgetting+g1_elementwise",
    "differential",
    "exclusive",
    "sandwich_norm+clip100",
)
INDUCTOR_GRADIENTS = ("baseline", "g1_headwise", "g1_elementwise", "g2_elementwise_shared_additive_silu", "g1_rmsnorm")


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    """Forget earlier graphs, so that no variant meets dynamo's limit on recompilations of one forward."""
    torch._dynamo.reset()


def one_layer(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor, Tensor]]:
    """Return one block of the variant and its inputs: hidden states (B, T, C), cos, sin."""
    model = build(name, n_layers=1)
    h = torch.randn(2, 6, TINY.d_model, generator=torch.Generator().manual_seed(0))
    return model.blocks[0], (h, *model.rope(0, 6, h.device))


def output_and_gradients(forward: Callable[..., Tensor], block: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the output of `forward` and the gradient of its squared mean for every parameter."""
    block.zero_grad()
    out = forward(*inputs)
    out.square().mean().backward()
    return [out.detach(), *(parameter.grad.clone() for parameter in block.parameters())]


def assert_compiled_equals_eager(name: str, backend: str) -> None:
    block, inputs = one_layer(name)
    eager = output_and_gradients(block, block, inputs)
    compiled = output_and_gradients(torch.compile(block, backend=backend, fullgraph=True), block, inputs)
    for ours, theirs in zip(compiled, eager, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", EVERY_PATH)
def test_every_path_traces_whole_and_keeps_outputs_and_gradients(name: str) -> None:
    assert_compiled_equals_eager(name, "aot_eager")


def assert_outputs_are_kept(name: str, backend: str) -> None:
    block, inputs = one_layer(name)
    with torch.no_grad():
        expected = block(*inputs)
        compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=False)(*inputs)
    torch.testing.assert_close(compiled, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTRY)
def test_every_variant_traces_whole_and_keeps_its_outputs(name: str) -> None:
    assert_outputs_are_kept(name, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", SPREAD)
def test_a_spread_compiled_by_inductor_keeps_its_outputs(name: str) -> None:
    assert_outputs_are_kept(name, "inductor")


@pytest.mark.slow
@pytest.mark.parametrize("name", INDUCTOR_GRADIENTS)
def test_inductor_keeps_gradients(name: str) -> None:
    assert_compiled_equals_eager(name, "inductor")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baseline", "g1_headwise"])
def test_one_compilation_serves_every_layer_of_a_model(name: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("inductor")
    model = build(name, n_layers=4)
    h = torch.randn(2, 6, TINY.d_model, generator=torch.Generator().manual_seed(0))
    cos, sin = model.rope(0, 6, h.device)
    expected = compiled = h
    with torch.no_grad():
        for block in model.blocks:
            expected = block(expected, cos, sin)
            compiled = torch.compile(block, backend=counter, fullgraph=True)(compiled, cos, sin)
    torch.testing.assert_close(compiled, expected, atol=1e-5, rtol=1e-5)
    assert counter.frame_count == 1


@pytest.mark.slow
@pytest.mark.parametrize(("name", "graphs"), [("differential", 1), ("value_residual", 2), ("registers2", 1)])
def test_designs_that_depend_on_the_layer_need_no_graph_a_layer(name: str, graphs: int) -> None:
    """λ₀ differs in every layer and is no constant of the graph; the first layer's values make one graph more."""
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    model, ids = build(name, n_layers=3), token_ids()
    expected = model(ids)
    expected.square().mean().backward()
    gradients = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    for block in model.blocks:
        block.forward = torch.compile(block.forward, backend=counter, fullgraph=True)
    compiled = model(ids)
    compiled.square().mean().backward()
    torch.testing.assert_close(compiled, expected, atol=1e-5, rtol=1e-5)
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[key], atol=1e-5, rtol=1e-5)
    assert counter.frame_count == graphs
