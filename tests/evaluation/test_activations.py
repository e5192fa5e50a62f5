"""Massive activations, |SDPA output| and value norms, against values planted in hand-made models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gatebench.evaluation.probes.activations import QUANTITIES, ActivationStats, SdpaOutputStats, ValueNorms
from gatebench.evaluation.probes.probe import ProbeResult, probe
from gatebench.model.transformer import Transformer
from tests.model.shapes import EVERY_VARIANT, build, token_ids

CPU = torch.device("cpu")


def measured(model: Transformer, ids: Any = None, batch_size: int = 2) -> ProbeResult:
    return probe(model, token_ids(3, 12).numpy() if ids is None else ids, batch_size=batch_size, device=CPU)


def stats_of(values: Any) -> dict[str, Any]:
    """The figures of one layer's residual stream."""
    stats = ActivationStats(3)
    for place in range(4):
        stats.add(0, place, torch.as_tensor(values, dtype=torch.float32))
    return {name: array[0] if array.ndim == 1 else array[0, -1] for name, array in stats.arrays().items()}


def test_top_three_and_median_of_one_window() -> None:
    """|h| = 1 .. 9 (signs do not count): 9, 8, 7, and 5 in the middle."""
    found = stats_of(np.array([1, -2, 3, -4, 5, -6, 7, -8, 9.0]).reshape(1, 3, 3))
    assert found["activation_top3"].tolist() == [9, 8, 7]
    assert (found["activation_max"], found["activation_median"]) == (9, 5)
    assert found["activation_ratio"] == pytest.approx(1.8)


def test_windows_are_averaged_and_the_maximum_is_over_all() -> None:
    """Largest 10 and 30, medians 1 and 2: means 20 and 1.5, ratio (10 + 15) / 2, maximum 30."""
    windows = np.full((2, 3, 3), 1.0)
    windows[1] = 2.0
    windows[0, 0, 0], windows[1, 2, 1] = 10.0, -30.0
    found = stats_of(windows)
    assert found["activation_top3"].tolist() == [20, 1.5, 1.5]
    assert (found["activation_max"], found["activation_median"], found["activation_ratio"]) == (30, 1.5, 12.5)
    assert found["activation_at_first"] == 0.5  # the largest stands at the first token in one window of two


@pytest.mark.parametrize(
    ("largest", "background", "massive"),
    [(101.0, 0.1, 1), (99.0, 0.01, 0), (150.0, 0.2, 0), (250.0, 0.2, 1)],
)
def test_massive_is_over_100_and_a_thousand_times_the_median(largest: float, background: float, massive: int) -> None:
    """99 is too small in itself; 150 is 750 medians of 0.2."""
    window = np.full((1, 4, 4), background)
    window[0, 1, 1] = largest
    assert stats_of(window)["massive_count"] == massive


def planted() -> Transformer:
    """Attention writes 2 into channel 3 and the FFN -5 into channel 4, on embeddings of 1, in both layers alike."""
    model = build("baseline", qkv_bias=True)
    with torch.no_grad():
        model.embed.weight.fill_(1.0)
        for block in model.blocks:
            torch.nn.init.zeros_(block.attn.o_proj.weight)
            block.attn.o_proj.bias[3] = 2.0
            torch.nn.init.zeros_(block.ffn.gate_proj.weight)
            torch.nn.init.zeros_(block.ffn.down_proj.weight)
            block.ffn.register_forward_hook(lambda module, args, output: output + torch.eye(24)[4] * -5.0)
    return model


def test_the_four_quantities_of_figure_6_are_what_each_sublayer_writes_and_leaves() -> None:
    """Attention 2 and 2; residual after it 3 and 5; FFN 5 and 5; residual after it 4 and 9."""
    arrays = measured(planted()).arrays()
    assert QUANTITIES == ("attn_output", "attn_residual", "ffn_output", "ffn_residual")
    assert arrays["activation_max"].tolist() == [[2, 3, 5, 4], [2, 5, 5, 9]]
    assert arrays["max_activation"].tolist() == [4, 9]
    assert arrays["activation_median"].tolist() == [[0, 1, 0, 1], [0, 1, 0, 1]]


def test_m_act_and_the_ratio_of_that_model() -> None:
    result = measured(planted())
    assert result.summary()["m_act"] == 6.5
    details = result.flat()
    assert (details["massive_ratio"], details["massive_ratio_layer"], details["massive_layers"]) == (9.0, 2, 0)


# --- SDPA output before and after the gate (Figures 4 and 5)


def test_means_and_fractions_of_made_up_outputs() -> None:
    stats = SdpaOutputStats(1)
    before = torch.tensor([0.5, -0.02, 0.005, -0.0005]).view(1, 1, 1, 4)
    stats.add(0, "before", before)
    stats.add(0, "after", before * 0.1)
    arrays = stats.arrays()
    assert arrays["sdpa_abs_before"][0] == pytest.approx(0.5255 / 4)
    assert arrays["sdpa_below_before"][0].tolist() == [0.5, 0.25]  # below 1e-2: two; below 1e-3: one
    assert arrays["sdpa_below_after"][0].tolist() == [0.75, 0.5]
    assert "sdpa_abs_mean_gate" not in arrays


def test_without_the_gates_scores_there_is_no_control() -> None:
    ids = token_ids(3, 12).numpy()
    found = probe(build("g1_headwise"), ids, batch_size=2, device=CPU, probes=(SdpaOutputStats,)).flat()
    assert found["sdpa_abs_mean_gate"] is None and found["sdpa_abs_after"] < found["sdpa_abs_before"]
    assert "m_act" not in found


def half_closed() -> Transformer:
    """Values of 1 everywhere, so that SDPA gives 1; headwise gates of 0 and 0.6 on two heads each."""
    model = build("g1_headwise", qkv_bias=True)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.v_proj.weight)
        torch.nn.init.ones_(block.attn.v_proj.bias)
        gate = block.attn.g1.gates[0]
        torch.nn.init.zeros_(gate.proj.weight)
        gate.proj.bias.data = torch.tensor([-200.0, -200.0, 0.405465, 0.405465])
    return model


def test_the_control_has_the_gates_scale_and_none_of_its_sparsity() -> None:
    """SDPA output 1; gates 0 and 0.6, mean 0.3. After: mean 0.3, half below 1e-2. Times the mean: 0.3, none below."""
    result = measured(half_closed())
    details, summary = result.flat(), result.summary()
    assert (summary["gate_mean"], summary["gate_closed"]) == (pytest.approx(0.3, abs=1e-6), 0.5)
    assert details["sdpa_abs_before"] == pytest.approx(1.0)
    assert details["sdpa_abs_after"] == pytest.approx(0.3, abs=1e-6)
    assert details["sdpa_abs_mean_gate"] == pytest.approx(0.3, abs=1e-6)
    below = [details[f"sdpa_below_{stage}_1e-02"] for stage in ("before", "after", "mean_gate")]
    assert below == [0.0, 0.5, 0.0]


def test_an_additive_control_adds_the_mean() -> None:
    """SDPA output 1, scores SiLU(200) = 200 and SiLU(-200) = 0: 101 on average either way."""
    model = half_closed_additive()
    details = measured(model).flat()
    assert details["sdpa_abs_after"] == pytest.approx(101.0) and details["sdpa_abs_mean_gate"] == pytest.approx(101.0)


def half_closed_additive() -> Transformer:
    model = build("g1_headwise_additive_silu", qkv_bias=True)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.v_proj.weight)
        torch.nn.init.ones_(block.attn.v_proj.bias)
        gate = block.attn.g1.gates[0]
        torch.nn.init.zeros_(gate.proj.weight)
        gate.proj.bias.data = torch.tensor([200.0, 200.0, -200.0, -200.0])
    return model


def test_without_a_gate_before_is_after_and_there_is_no_control() -> None:
    details = measured(build("baseline")).flat()
    assert details["sdpa_abs_before"] == details["sdpa_abs_after"]
    assert details["sdpa_abs_mean_gate"] is None and details["sdpa_below_mean_gate_1e-03"] is None


# --- values


def test_value_norms_of_made_up_values() -> None:
    """First token (3, 4): 5; the others 1 and 3: 2. Halved by a gate: 2.5 and 1."""
    raw = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, -3.0]]).view(1, 3, 1, 2)
    norms = ValueNorms(3)
    norms.add(0, raw, raw / 2, torch.zeros(raw.shape[:2], dtype=torch.bool))
    arrays = {name: float(array[0, 0]) for name, array in norms.arrays().items()}
    assert arrays == {
        "value_norm_raw_first": 5.0,
        "value_norm_raw_rest": 2.0,
        "value_norm_first": 2.5,
        "value_norm_rest": 1.0,
    }


def test_a_gate_at_g2_stands_between_raw_and_gated_values() -> None:
    """Values of ones over 8 dimensions: norm sqrt 8; G2 at sigmoid(0) halves it."""
    model = build("g2_headwise", qkv_bias=True)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.v_proj.weight)
        torch.nn.init.ones_(block.attn.v_proj.bias)
        torch.nn.init.zeros_(block.attn.g2.gates[0].proj.weight)
    arrays = measured(model).arrays()
    np.testing.assert_allclose(arrays["value_norm_raw_first"], np.full((2, 2), 8**0.5), rtol=1e-6)
    np.testing.assert_allclose(arrays["value_norm_rest"], np.full((2, 2), 8**0.5 / 2), rtol=1e-6)


# --- everywhere


@pytest.mark.parametrize("name", EVERY_VARIANT)
def test_no_batch_size_moves_a_figure(name: str) -> None:
    model = build(name)
    whole, single = measured(model, batch_size=3), measured(model, batch_size=1)
    for key, values in whole.arrays().items():
        np.testing.assert_allclose(values, single.arrays()[key], rtol=1e-4, atol=1e-5, err_msg=key)
