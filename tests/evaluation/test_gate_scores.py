"""Spread, extremes and the first token's score of gates; mean, sparsity and histograms are in test_probes.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gatebench.evaluation.probes.gate_scores import GateScores, GateStats
from gatebench.evaluation.probes.interventions import mean_gate_scores
from gatebench.evaluation.probes.probe import probe
from tests.model.shapes import build, token_ids

CPU = torch.device("cpu")


def scored(gates: dict[str, list[list[GateStats]]]) -> GateScores:
    scores = GateScores(8)
    scores.gates = gates
    return scores


def test_half_at_0_and_half_at_0_6_has_mean_and_deviation_0_3_and_is_half_closed() -> None:
    stats = GateStats()
    stats.add(torch.tensor([0.0, 0.6]).repeat(50), torch.zeros(100))
    assert (stats.figures()["mean"], stats.figures()["std"]) == (pytest.approx(0.3), pytest.approx(0.3))
    assert (stats.minimum, stats.maximum) == (0.0, pytest.approx(0.6))
    assert stats.figures()["closed"] == 0.5 and stats.figures()["open"] == 0.0
    summary = scored({"g1": [[stats]]}).summary()
    assert (summary["gate_mean"], summary["gate_closed"]) == (pytest.approx(0.3), 0.5)


def test_batches_add_up_to_what_one_batch_gives() -> None:
    scores = torch.rand(7, 5, 2, 3, generator=torch.Generator().manual_seed(0))
    whole, parts = GateStats(), GateStats()
    whole.add(scores, scores)
    for part in scores.split(2):
        parts.add(part, part)
    assert parts.figures() == pytest.approx(whole.figures()) and parts.n == whole.n
    assert whole.figures()["std"] == pytest.approx(float(scores.double().std(correction=0)))


def test_equal_scores_have_no_deviation() -> None:
    stats = GateStats()
    stats.add(torch.full((1000,), 0.1), torch.zeros(1000))
    assert stats.figures()["std"] == pytest.approx(0.0, abs=1e-7)


def test_the_first_token_has_a_mean_of_its_own() -> None:
    """One where the others are zero, over four tokens: 1 and 1/4."""
    stats = GateStats()
    scores = torch.zeros(2, 4, 3, 1)
    scores[:, 0] = 1.0
    stats.add(scores, scores)
    stats.add_first(scores)
    assert (stats.figures()["first"], stats.figures()["mean"]) == (1.0, 0.25)


def test_a_first_token_of_its_own_kind_is_found_in_a_model() -> None:
    """Token 0 embeds as e_0, all others as e_1; the gate reads -40 from e_0 (after the norm: x sqrt 24) and 0 else."""
    model = build("g2_headwise")
    ids = token_ids(2, 10).numpy() % 5 + 1
    ids[:, 0] = 0
    with torch.no_grad():
        model.embed.weight[:] = torch.eye(24)[1]
        model.embed.weight[0] = torch.eye(24)[0]
        for block in model.blocks:
            block.attn.o_proj.weight.zero_()
            block.ffn.down_proj.weight.zero_()
            gate = block.attn.g2.gates[0]
            gate.proj.weight.zero_()
            gate.proj.weight[:, 0] = -40.0
    result = probe(model, ids, batch_size=2, device=CPU)
    assert result.flat()["gate_first"] == pytest.approx(0.0, abs=1e-6)
    assert result.summary()["gate_mean"] == pytest.approx(0.45)  # nine tokens of ten at one half
    arrays = result.arrays()
    assert arrays["value_norm_first"].max() < 1e-6 < arrays["value_norm_raw_first"].min()


def test_arrays_have_a_row_a_layer() -> None:
    result = probe(build("g1_headwise+g2_elementwise"), token_ids(2, 9).numpy(), batch_size=2, device=CPU)
    arrays = result.of(GateScores).arrays()
    for site in ("g1", "g2"):
        for name in ("mean", "std", "min", "max", "closed", "open", "abs_logit", "first"):
            assert arrays[f"gate_{site}_{name}"].shape == (2,)
        assert (arrays[f"gate_{site}_min"] <= arrays[f"gate_{site}_mean"]).all()
        assert (arrays[f"gate_{site}_mean"] <= arrays[f"gate_{site}_max"]).all()
        assert (arrays[f"gate_{site}_std"] > 0).all()
        assert np.isfinite(arrays[f"gate_{site}_first"]).all()


def test_figures_by_head_are_those_of_each_head_and_their_mean_is_the_layers() -> None:
    result = probe(build("g1_headwise+g2_elementwise"), token_ids(2, 9).numpy(), batch_size=2, device=CPU)
    arrays = result.of(GateScores).arrays()
    for site in ("g1", "g2"):
        heads = {name: arrays[f"gate_{site}_head_{name}"] for name in ("mean", "at_end", "abs_logit")}
        assert heads["mean"].shape[0] == 2 and heads["mean"].shape == heads["abs_logit"].shape
        assert heads["mean"].mean(axis=1) == pytest.approx(arrays[f"gate_{site}_mean"])
        assert heads["abs_logit"].mean(axis=1) == pytest.approx(arrays[f"gate_{site}_abs_logit"])
        at_end = arrays[f"gate_{site}_closed"] + arrays[f"gate_{site}_open"]
        assert heads["at_end"].mean(axis=1) == pytest.approx(at_end)


def test_a_shared_gate_has_one_score_for_every_head() -> None:
    arrays = probe(build("g1_headwise_shared"), token_ids(2, 9).numpy(), batch_size=2, device=CPU).arrays()
    assert (arrays["gate_g1_head_mean"] == arrays["gate_g1_head_mean"][:, :1]).all()


def test_without_gates_there_is_no_spread() -> None:
    summary = scored({}).summary()
    assert {summary[key] for key in ("gate_std", "gate_min", "gate_max", "gate_first")} == {None}


def test_a_hard_gate_is_closed_or_open_and_nothing_between() -> None:
    result = probe(build("g1_headwise_hard"), token_ids(2, 9).numpy(), batch_size=2, device=CPU)
    histogram = result.arrays()["gate_g1_hist"]
    assert result.arrays()["gate_g1_edges"][[0, -1]].tolist() == [0.0, 1.0]
    assert histogram[:, 0].sum() > 0 and histogram[:, -1].sum() > 0
    assert histogram[:, 1:-1].sum() == 0
    summary = result.summary()
    assert summary["gate_closed"] + summary["gate_open"] == pytest.approx(1.0)
    assert summary["gate_open"] == pytest.approx(summary["gate_mean"])


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("g1_elementwise_floor0p25", 0.25, 1.0), ("g1_elementwise_floor0p9", 0.9, 1.0), ("g1_elementwise", 0.0, 1.0)],
)
def test_the_floor_bounds_every_score_that_is_counted(name: str, low: float, high: float) -> None:
    arrays = probe(build(name, gate_init_std=3.0), token_ids(2, 9).numpy(), batch_size=2, device=CPU).arrays()
    assert arrays["gate_g1_min"].min() == pytest.approx(low, abs=1e-4)
    assert arrays["gate_g1_max"].max() == pytest.approx(high, abs=1e-4)
    assert arrays["gate_g1_edges"][[0, -1]].tolist() == [0.0, 1.0]


SOURCES = ("previous", "value", "key", "query", "output", "slice")


@pytest.mark.parametrize("name", [f"g1_headwise_from_{source}" for source in SOURCES] + ["g2_headwise_from_previous"])
def test_probe_and_intervention_see_the_scores_that_the_gate_applies(name: str) -> None:
    """The factor by which each layer's gate scales its tensor, from the tensors themselves."""
    model, ids = build(name), token_ids(2, 9)
    ratios: dict[str, torch.Tensor] = {}

    def record(key: str) -> object:
        def hook(module: torch.nn.Module, args: tuple[torch.Tensor, object], output: torch.Tensor) -> None:
            ratios[key] = (output.norm(dim=-1, keepdim=True) / args[0].norm(dim=-1, keepdim=True)).detach()

        return hook

    gates = [getattr(block.attn, name[:2]).gates[0] for block in model.blocks]
    handles = [gate.register_forward_hook(record(str(layer))) for layer, gate in enumerate(gates)]
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    means = mean_gate_scores(model, ids.numpy(), batch_size=2, device=CPU)
    layer_means = probe(model, ids.numpy(), batch_size=2, device=CPU).arrays()[f"gate_{name[:2]}_mean"]
    for layer, gate in enumerate(gates):
        applied = ratios[str(layer)]  # (B, T, H, 1)
        torch.testing.assert_close(means[gate], applied.mean(dim=(0, 1), keepdim=True), atol=1e-5, rtol=1e-5)
        assert layer_means[layer] == pytest.approx(applied.mean().item(), abs=1e-5)
