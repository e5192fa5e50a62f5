"""First-token share, massive activations and gate scores, each against a value known beforehand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gatebench.evaluation.probes.gate_scores import GateStats
from gatebench.evaluation.probes.probe import ProbeResult, probe
from gatebench.evaluation.probes.sinks import attention_to_first_keys, uniform_first_token_share
from gatebench.model.build import build_run_model
from gatebench.model.kernels import attention_map
from gatebench.model.transformer import Transformer
from gatebench.recipes import run_from_yaml
from tests.model.shapes import EVERY_VARIANT, TINY, build, token_ids

CPU = torch.device("cpu")


def ids_of(batch: int, length: int) -> Any:
    return token_ids(batch, length).numpy()


def measured(model: Transformer, ids: Any, batch_size: int = 4) -> ProbeResult:
    return probe(model, ids, batch_size=batch_size, device=CPU)


def explicit_shares(model: Transformer, ids: Any) -> tuple[Any, Any]:
    """(L, H) first-token shares with and without query 0, from the T x T map that the probe does without."""
    shares: list[Tensor] = []

    def hook(module: Any, args: tuple[Any, ...]) -> None:
        shares.append(attention_map(*module.queries_keys(module.project(args[0]), *args[1:3]))[..., 0])  # (B, H, T)

    handles = [block.attn.register_forward_pre_hook(hook) for block in model.blocks]
    with torch.no_grad():
        model(torch.from_numpy(ids))
    for handle in handles:
        handle.remove()
    first = torch.stack(shares)
    return first.mean((1, 3)).numpy(), first[..., 1:].mean((1, 3)).numpy()


def looking_evenly(**changes: object) -> Transformer:
    """A model whose queries are zero, so that its attention is uniform."""
    model = build("baseline", **changes)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.q_proj.weight)
    return model


# --- first-token share


@pytest.mark.parametrize(("length", "share"), [(8, 0.3397), (512, 0.01331), (1024, 0.00733)])
def test_uniform_attention_has_the_floor_as_its_share(length: int, share: float) -> None:
    assert uniform_first_token_share(length) == pytest.approx(share, abs=5e-5 if length == 8 else 5e-6)
    result = measured(looking_evenly(), ids_of(1, length))
    assert result.arrays()["first_token_share"] == pytest.approx(
        np.full((2, 4), uniform_first_token_share(length)), abs=1e-5
    )
    summary = result.summary()
    assert summary["first_token_share"] == pytest.approx(share, abs=5e-5 if length == 8 else 1e-5)
    assert summary["first_token_floor"] == pytest.approx(share, abs=5e-5 if length == 8 else 5e-6)
    assert summary["first_token_excess"] == pytest.approx(1.0, abs=1e-3)


def test_the_floor_without_query_0_is_that_of_the_other_queries() -> None:
    """T = 3: query 1 gives a half and query 2 a third: 5/12. Query 0 gives all: (1 + 5/6) / 3 = 11/18."""
    assert uniform_first_token_share(3, exclude_first_query=True) == pytest.approx(5 / 12)
    assert uniform_first_token_share(3) == pytest.approx(11 / 18)
    result = measured(looking_evenly(), ids_of(2, 8))
    assert result.arrays()["first_token_share_excl"] == pytest.approx(np.full((2, 4), (2.717857 - 1) / 7), abs=1e-5)


@pytest.mark.parametrize("length", [3, 8, 9, 40])
@pytest.mark.parametrize("name", ["baseline", "g1_headwise", "g3_elementwise", "g4_headwise", "kv_heads_x2"])
def test_the_share_equals_the_explicit_map(name: str, length: int) -> None:
    """4 query and 2 KV heads of 8, so T is below, at and above head_dim."""
    model, ids = build(name), ids_of(3, length)
    result = measured(model, ids, batch_size=2)
    share, share_excl = explicit_shares(model, ids)
    np.testing.assert_allclose(result.arrays()["first_token_share"], share, atol=1e-5)
    np.testing.assert_allclose(result.arrays()["first_token_share_excl"], share_excl, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("length", [5, 8, 40])
def test_the_streamed_map_is_the_explicit_one_on_all_its_keys(kv_heads: int, length: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, length, 8, generator=generator)
    k = torch.randn(2, kv_heads, length, 8, generator=generator)
    streamed = attention_to_first_keys(q, k)
    assert streamed.shape == (2, 4, length, min(8, length)) and streamed.dtype == torch.float32
    torch.testing.assert_close(streamed, attention_map(q, k)[..., :8], atol=1e-5, rtol=0)


def test_the_share_of_a_trained_model_equals_the_explicit_map(reference: Path) -> None:
    model = build_run_model(run_from_yaml((reference / "config.yaml").read_text(encoding="utf-8"), "config.yaml"))
    load_model(model, reference / "checkpoints" / "model.safetensors")
    ids = token_ids(4, 32, vocab_size=512).numpy()
    result = measured(model.eval(), ids)
    share, share_excl = explicit_shares(model, ids)
    np.testing.assert_allclose(result.arrays()["first_token_share"], share, atol=1e-5)
    np.testing.assert_allclose(result.arrays()["first_token_share_excl"], share_excl, atol=1e-5)
    assert np.ptp(result.arrays()["first_token_share"]) > 1e-3  # training moved it off the floor, head by head


@pytest.mark.parametrize("length", [8, 33])
def test_the_two_shares_hang_together(length: int) -> None:
    """Query 0 can only look at itself: F_incl = (1 + (T - 1) F_excl) / T."""
    result = measured(build("baseline"), ids_of(3, length))
    sinks = result.arrays()
    expected = (1 + (length - 1) * sinks["first_token_share_excl"]) / length
    np.testing.assert_allclose(sinks["first_token_share"], expected, atol=1e-6)


def test_a_planted_sink_is_found_in_its_head_alone() -> None:
    """Layer 1 head 2 has one query direction that meets the key of token 5, which stands at position 0 only."""
    model = build("baseline", qk_norm=False, n_kv_heads=4)
    ids = ids_of(2, 20) % 5
    ids[:, 0] = 5
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.q_proj.weight)
        torch.nn.init.zeros_(block.attn.o_proj.weight)
        torch.nn.init.zeros_(block.ffn.down_proj.weight)
    with torch.no_grad():
        model.embed.weight[:5] = torch.eye(5, TINY.d_model)[0]
        model.embed.weight[5] = torch.eye(24)[1]
        attention = model.blocks[1].attn
        # The slowest rotary pair (dimensions 3 and 7 of 8) hardly turns within 20 tokens.
        attention.q_proj.weight[2 * 8 + 3] = 40.0 * torch.eye(24)[0]
        attention.k_proj.weight[2 * 8 : 3 * 8] = 0.0
        attention.k_proj.weight[2 * 8 + 3] = 40.0 * torch.eye(24)[1]
    result = measured(model, ids)
    assert result.arrays()["first_token_share_excl"][1, 2] == pytest.approx(1.0, abs=1e-3)
    others = np.delete(result.arrays()["first_token_share_excl"].ravel(), 1 * 4 + 2)
    np.testing.assert_allclose(others, uniform_first_token_share(20, exclude_first_query=True), atol=1e-5)


class Shapes(TorchDispatchMode):
    """Collects the shape of every tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


@pytest.mark.parametrize("name", ["baseline", "g1_headwise", "kv_heads_x2"])
def test_nothing_holds_a_map_of_t_by_t(name: str) -> None:
    model, ids = build(name), ids_of(2, 97)
    with Shapes() as shapes:
        measured(model, ids)
    assert any(97 in shape for shape in shapes.seen)
    assert not [shape for shape in shapes.seen if shape.count(97) > 1]
    with Shapes() as shapes, torch.no_grad():
        attention_map(torch.zeros(2, 4, 97, 8), torch.zeros(2, 2, 97, 8))
    assert (2, 4, 97, 97) in shapes.seen  # what the mode would have seen


def test_the_batch_size_moves_no_probe() -> None:
    model, ids = build("g1_elementwise"), ids_of(7, 16)
    whole, single = measured(model, ids, 7).summary(), measured(model, ids, 1).summary()
    odd = measured(model, ids, 3).summary()
    assert whole == pytest.approx(single, rel=1e-5) and whole == pytest.approx(odd, rel=1e-5)
    assert whole["probe_tokens"] == 7 * 16


# --- massive activations


def test_m_act_is_the_mean_over_layers_of_the_largest_residual_before_the_final_norm() -> None:
    """Embeddings of at most 3; layer 1 adds -53 to channel 4: largest 3 and 50, M-Act 26.5. A norm would end near 5."""
    model = build("baseline", qkv_bias=True)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.o_proj.weight)
        torch.nn.init.zeros_(block.ffn.down_proj.weight)
    with torch.no_grad():
        model.embed.weight.fill_(-1.0)
        model.embed.weight[:, 4] = 3.0
        model.blocks[1].attn.o_proj.bias[4] = -53.0
    result = measured(model, ids_of(2, 12))
    assert result.arrays()["max_activation"].tolist() == [3.0, 50.0]
    assert result.summary()["m_act"] == 26.5


def test_one_planted_token_in_one_batch_is_enough() -> None:
    model, ids = build("baseline"), ids_of(6, 12) % 40
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.o_proj.weight)
        torch.nn.init.zeros_(block.ffn.down_proj.weight)
    with torch.no_grad():
        model.embed.weight.clamp_(-1, 1)
        model.embed.weight[41, 3] = 777.0
    assert measured(model, ids).summary()["m_act"] <= 1.0
    ids[3, 5] = 41
    assert measured(model, ids, batch_size=2).arrays()["max_activation"].tolist() == [777.0, 777.0]


# --- gate scores


def test_half_at_0_and_half_at_0_6_has_mean_0_3_and_is_half_closed() -> None:
    stats = GateStats()
    scores = torch.tensor([0.0, 0.6]).repeat(50)
    stats.add(scores, torch.full((100,), -2.0))
    figures = stats.figures()
    assert figures["mean"] == pytest.approx(0.3) and figures["closed"] == 0.5 and figures["open"] == 0.0
    assert figures["abs_logit"] == 2.0
    assert stats.counts.sum() == 100 and stats.counts[0] == 50 and stats.counts[30] == 50


def test_the_thresholds_themselves_are_neither_closed_nor_open() -> None:
    stats = GateStats()
    stats.add(torch.tensor([0.1, 0.9, 0.0999, 0.9001], dtype=torch.float64), torch.zeros(4))
    assert (stats.closed, stats.open, stats.n) == (1, 1, 4)


def with_gate_bias(name: str, biases: list[float], **changes: object) -> Transformer:
    """A model whose gate logits are the same at every token: `biases` over the raw scores, repeated."""
    model = build(name, qkv_bias=True, **changes)
    for block in model.blocks:
        for site in ("g1", "g2", "g3", "g4", "g5"):
            for gate in getattr(block.attn, site).gates:
                torch.nn.init.zeros_(gate.proj.weight)
                n = gate.proj.bias.numel()
                gate.proj.bias.data = torch.tensor(biases).repeat(n // len(biases) + 1)[:n]
    return model


def test_gate_scores_are_those_that_the_model_applies() -> None:
    """Logits -3, 0, 0, 3 over four heads: mean 1/2, a quarter below 0.1 (sigmoid -3 = 0.047), a quarter above 0.9."""
    result = measured(with_gate_bias("g1_headwise", [-3.0, 0.0, 0.0, 3.0]), ids_of(3, 10), batch_size=2)
    summary = result.summary()
    assert summary["gate_mean"] == pytest.approx(0.5, abs=1e-6)
    assert (summary["gate_closed"], summary["gate_open"], summary["gate_abs_logit"]) == (0.25, 0.25, 1.5)
    (stats,), _ = result.gates["g1"]
    assert stats.n == 3 * 10 * 4 == stats.counts.sum()


def test_a_shared_gate_averages_before_it_is_counted() -> None:
    """Scores of 0 and 1 (logits -30 and 30) average to 1/2, neither closed nor open; |logit| stays 30."""
    summary = measured(with_gate_bias("g1_headwise_shared", [-30.0, 30.0]), ids_of(2, 10)).summary()
    assert summary["gate_mean"] == pytest.approx(0.5)
    assert (summary["gate_closed"], summary["gate_open"], summary["gate_abs_logit"]) == (0.0, 0.0, 30.0)


def test_scores_come_from_fp32_even_where_the_model_ran_in_bf16() -> None:
    """sigmoid(1) is 0.7310586; bf16 would round it to 0.7304688."""
    model = with_gate_bias("g1_elementwise", [1.0]).bfloat16()
    summary = measured(model, ids_of(2, 10)).summary()
    assert summary["gate_mean"] == pytest.approx(0.7310586, abs=1e-6)
    assert math.isfinite(summary["first_token_share"])  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_an_input_independent_gate_weighs_as_its_channels_do(batch_size: int) -> None:
    """theta (1, 1, H, D): a quarter of the heads at sigmoid(-4) = 0.018, the rest at one half."""
    model = build("g1_elementwise_input_independent")
    for block in model.blocks:
        block.attn.g1.gates[0].theta.data[0] = -4.0
    summary = measured(model, ids_of(3, 10), batch_size).summary()
    assert summary["gate_mean"] == pytest.approx(0.25 * 0.0179862 + 0.75 * 0.5, abs=1e-6)
    assert (summary["gate_closed"], summary["gate_abs_logit"]) == (0.25, 1.0)


def test_several_gates_are_reported_by_site_and_averaged_over_all() -> None:
    """G1 closed at sigmoid(-5) = 0.0067, G2 open at sigmoid(5) = 0.9933."""
    model = build("g1_headwise+g2_headwise", qkv_bias=True)
    for block in model.blocks:
        for site, logit in (("g1", -5.0), ("g2", 5.0)):
            gate = getattr(block.attn, site).gates[0]
            torch.nn.init.zeros_(gate.proj.weight)
            torch.nn.init.constant_(gate.proj.bias, logit)
    result = measured(model, ids_of(2, 10))
    arrays = result.arrays()
    assert arrays["gate_g1_mean"] == pytest.approx([0.0066929] * 2, abs=1e-6)
    assert arrays["gate_g2_mean"] == pytest.approx([0.9933071] * 2, abs=1e-6)
    assert arrays["gate_g1_closed"].tolist() == [1.0, 1.0] and arrays["gate_g2_open"].tolist() == [1.0, 1.0]
    summary = result.summary()
    assert summary["gate_mean"] == pytest.approx(0.5, abs=1e-6)
    assert (summary["gate_closed"], summary["gate_open"]) == (0.5, 0.5)


def test_two_gates_at_one_site_share_a_row_and_pool_their_histograms() -> None:
    result = measured(build("g1_headwise+g1_elementwise"), ids_of(2, 10))
    arrays = result.arrays()
    stats = result.gates["g1"][0]
    assert len(stats) == 2 and [s.n for s in stats] == [2 * 10 * 4, 2 * 10 * 4 * 8]
    assert arrays["gate_g1_mean"][0] == pytest.approx(np.mean([s.figures()["mean"] for s in stats]))
    assert arrays["gate_g1_hist"].sum(axis=1).tolist() == [2 * 10 * 4 * 9] * 2


@pytest.mark.parametrize(("site", "heads"), [("g1", 4), ("g2", 2), ("g3", 2), ("g4", 4)])
def test_every_score_of_a_site_is_counted_once(site: str, heads: int) -> None:
    arrays = measured(build(f"{site}_headwise"), ids_of(2, 10)).arrays()
    assert arrays[f"gate_{site}_hist"].sum(axis=1).tolist() == [2 * 10 * heads] * 2


@pytest.mark.parametrize("name", ["baseline", "g1_rmsnorm", "g1_silu_only", "g5_rmsnorm"])
def test_without_a_score_there_is_no_gate_figure(name: str) -> None:
    result = measured(build(name), ids_of(2, 10))
    summary = result.summary()
    assert [summary[f"gate_{figure}"] for figure in ("mean", "closed", "open", "abs_logit")] == [None] * 4
    assert not [name for name in result.arrays() if name.startswith("gate_")]


@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("g1_headwise", (0, 1)),
        ("g1_headwise_ns_sigmoid", (0, 1)),
        ("g1_headwise_tanh", (-1, 1)),
        ("g1_headwise_silu", (-2, 2)),
    ],
)
def test_histograms_span_what_the_activation_can_give(name: str, edges: tuple[int, int]) -> None:
    arrays = measured(build(name), ids_of(2, 10)).arrays()
    assert arrays["gate_g1_edges"].shape == (51,) and arrays["gate_g1_hist"].shape == (2, 50)
    assert (arrays["gate_g1_edges"][0], arrays["gate_g1_edges"][-1]) == edges
    assert arrays["gate_g1_hist"].sum(axis=1).tolist() == [2 * 10 * 4] * 2


def test_what_lies_beyond_the_edges_is_in_the_outer_bins() -> None:
    result = measured(with_gate_bias("g1_headwise_silu", [-9.0, 9.0]), ids_of(1, 10))
    histogram = result.arrays()["gate_g1_hist"][0]
    assert histogram.sum() == 40 and histogram[-1] == 20  # silu(9) = 8.999; silu(-9) = -0.001
    assert histogram[24] == 20


@pytest.mark.parametrize("name", EVERY_VARIANT)
def test_every_variant_has_finite_probes_that_json_can_hold(name: str) -> None:
    model = build(name)
    result = measured(model, ids_of(2, 9))
    json.dumps(result.summary(), allow_nan=False)
    scored = [gate for gate in model.variant.gates if gate.source != "self"]
    assert (result.summary()["gate_mean"] is not None) == bool(scored)
    assert set(result.gates) == {gate.position for gate in scored}
    assert all(np.isfinite(values).all() for values in result.arrays().values())


def test_no_hook_stays_behind() -> None:
    model = build("g1_headwise+g2_headwise")
    measured(model, ids_of(1, 9))
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
