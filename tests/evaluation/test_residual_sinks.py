"""Residual sinks against the definition written out, and planted in numbers and in a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gatebench.evaluation.probes.probe import probe
from gatebench.evaluation.probes.residual_sinks import ResidualSinks
from tests.model.shapes import build, token_ids

CPU = torch.device("cpu")


def written_out(h: NDArray[np.float64]) -> dict[str, float]:
    """The figures of one layer, `h` (tokens, dimensions), a number at a time."""
    n_tokens, n_dims = h.shape
    large, share, kurtosis = [0.0] * n_dims, [0.0] * n_dims, 0.0
    for token in h:
        rms = math.sqrt(sum(x * x for x in token) / n_dims)
        mean = sum(token) / n_dims
        variance = sum((x - mean) ** 2 for x in token) / n_dims
        kurtosis += sum((x - mean) ** 4 for x in token) / n_dims / variance**2 / n_tokens
        for d, x in enumerate(token):
            large[d] += (abs(x) > 3 * rms) / n_tokens
            share[d] += x * x / sum(y * y for y in token) / n_tokens
    sinks = [d for d in range(n_dims) if large[d] >= 0.5]
    return {
        "residual_sinks": len(sinks),
        "residual_sink_share": sum(share[d] for d in sinks),
        "residual_kurtosis": kurtosis,
    }


def counted(*batches: Any) -> dict[str, float]:
    stats = ResidualSinks(batches[0].shape[1])
    stats.count("norm_weight_min", 0, 1.0, 1)
    for batch in batches:
        stats.add(0, torch.as_tensor(batch))
    return stats.summary()


@pytest.mark.parametrize("scale", [1.0, 6.0, 40.0])
def test_it_is_the_definition_to_1e_10(scale: float) -> None:
    h = np.random.default_rng(0).normal(size=(4, 9, 32))
    h[..., 5] *= scale
    h[::2, :, 11] *= scale
    found = counted(h[:1], h[1:])
    for key, value in written_out(h.reshape(-1, 32)).items():
        assert found[key] == pytest.approx(value, rel=1e-10, abs=1e-10), key


def test_a_dimension_planted_on_every_token_is_one_sink_and_one_on_some_tokens_is_none() -> None:
    """24 dimensions of 1, one of 50: 2,500 of 2,523 is its share. Dimension 7 is at 40 on one token of ten."""
    h = np.ones((2, 10, 24))
    h[..., 4] = 50.0
    found = counted(h)
    assert (found["residual_sinks"], found["residual_sink_share"]) == (1, pytest.approx(2500 / 2523))
    # one value of n apart: (n - 2 + 1 / (n - 1)) with n = 24
    assert found["residual_kurtosis"] == pytest.approx(22 + 1 / 23)
    h[:, 3, 7] = 40.0
    assert counted(h)["residual_sinks"] == 1


def test_half_of_all_tokens_is_enough_and_a_token_less_is_not() -> None:
    h = np.ones((1, 10, 24))
    h[0, :5, 4] = 50.0
    assert counted(h)["residual_sinks"] == 1
    h[0, 4, 4] = 1.0
    assert counted(h)["residual_sinks"] == 0 == counted(h)["residual_sink_share"]


def test_one_massive_token_hides_no_sink_of_the_others() -> None:
    """The layer's rms would be 289 with it; the token's own is 10 elsewhere."""
    h = np.ones((1, 50, 24))
    h[..., 4] = 50.0
    h[0, 0, 9] = 10_000.0
    assert counted(h)["residual_sinks"] == 1


def test_tokens_of_zeros_have_no_sink_and_give_numbers() -> None:
    nothing = dict.fromkeys(("residual_sinks", "residual_sink_share", "residual_kurtosis"), 0.0)
    assert counted(np.zeros((1, 3, 8))) == {**nothing, "norm_weight_min": 1.0}


def test_it_is_found_after_the_layer_of_a_model_that_makes_it() -> None:
    """Layer 2 adds 60 to channel 4 of every token; before that no dimension stands out."""
    model = build("baseline", qkv_bias=True)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.o_proj.weight)
        torch.nn.init.zeros_(block.ffn.down_proj.weight)
    with torch.no_grad():
        model.embed.weight.fill_(1.0)
        model.embed.weight[:, ::2] = -1.0
        model.blocks[1].attn.o_proj.bias[4] = 60.0
        model.blocks[0].ffn_norm.weight[3] = -0.125
    result = probe(model, token_ids(3, 12).numpy(), batch_size=2, device=CPU)
    arrays = result.arrays()
    assert arrays["residual_large"].shape == arrays["residual_norm_share"].shape == (2, 24)
    assert np.argwhere(arrays["residual_large"] >= 0.5).tolist() == [[1, 4]]
    assert arrays["residual_norm_share"][1, 4] == pytest.approx(59**2 / (59**2 + 23))
    assert arrays["norm_weight_min"].tolist() == [0.125, 1.0]
    summary = result.summary()
    assert (summary["residual_sinks"], summary["norm_weight_min"]) == (0.5, 0.125)  # one in two layers
    assert summary["residual_sink_share"] == pytest.approx(0.5 * 59**2 / (59**2 + 23))
    assert arrays["residual_kurtosis"][0] == pytest.approx(1.0)  # half at 1, half at -1


def test_the_batch_size_moves_nothing() -> None:
    ids = token_ids(5, 16).numpy()
    one, many = (probe(build("g1_headwise"), ids, batch_size=n, device=CPU, probes=(ResidualSinks,)) for n in (1, 5))
    assert one.flat() == pytest.approx(many.flat(), rel=1e-6)
