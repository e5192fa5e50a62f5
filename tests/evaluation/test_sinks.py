"""Shares of the first keys and the sink rate, against values worked out by hand and against the explicit map."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_model
from torch import Tensor

from gatebench.errors import UserError
from gatebench.evaluation.probes.hooks import method_replaced
from gatebench.evaluation.probes.probe import probe
from gatebench.evaluation.probes.sinks import (
    SinkStats,
    attention_maps,
    attention_to_first_keys,
    uniform_first_keys_share,
    uniform_first_token_share,
)
from gatebench.model.build import build_run_model
from gatebench.model.kernels import attention_map
from gatebench.model.transformer import Transformer
from gatebench.recipes import run_from_yaml
from tests.model.shapes import build, token_ids

CPU = torch.device("cpu")


def made_up(alphas: list[float], length: int = 8) -> Tensor:
    """(1, H, T, 1): every query of head h pays `alphas[h]` to the first key."""
    return torch.tensor(alphas)[None, :, None, None].expand(1, len(alphas), length, 1)


def arrays_of(attention: Tensor) -> dict[str, Any]:
    """Of one layer."""
    stats = SinkStats(attention.shape[2])
    stats.add(0, attention)
    return {name: array[0] for name, array in stats.arrays().items()}


def explicit_maps(model: Transformer, ids: Any) -> Any:
    """(L, N, H, T, T) in fp64."""
    maps: list[Tensor] = []

    def hook(module: Any, args: tuple[Any, ...]) -> None:
        maps.append(attention_map(*module.queries_keys(module.project(args[0]), *args[1:3])))

    handles = [block.attn.register_forward_pre_hook(hook) for block in model.blocks]
    with torch.no_grad():
        model(torch.from_numpy(ids))
    for handle in handles:
        handle.remove()
    return torch.stack(maps).double().numpy()


# --- hand-made heads


def test_one_head_of_four_on_the_first_key_is_a_mean_of_25_percent_and_a_rate_of_25_percent() -> None:
    stats = SinkStats(8)
    stats.add(0, made_up([1.0, 0.0, 0.0, 0.0]))
    arrays = stats.arrays()
    assert arrays["first_token_share"].mean() == pytest.approx(0.25) == arrays["sink_rate"].mean()
    assert stats.summary()["sink_rate"] == pytest.approx(0.25)


def test_all_heads_at_28_percent_are_a_mean_of_28_percent_and_no_sink() -> None:
    arrays = arrays_of(made_up([0.28] * 4))
    assert arrays["first_token_share"].mean() == pytest.approx(0.28) and arrays["sink_rate"].mean() == 0.0


def test_the_threshold_itself_is_no_sink() -> None:
    attention = torch.tensor([0.5, 0.25, 0.25, 0.2], dtype=torch.float64).view(1, 1, 4, 1)  # mean 0.3
    assert arrays_of(attention)["sink_alpha"][0, 0] == pytest.approx(0.3)
    assert arrays_of(attention)["sink_rate"][0, 0] == 0.0
    assert arrays_of(attention + 1e-9)["sink_rate"][0, 0] == 1.0


def test_the_rate_counts_windows_and_the_share_averages_them() -> None:
    """A window at 1 and one at 0: share one half, rate one half, though the mean head is over epsilon."""
    arrays = arrays_of(torch.cat((made_up([1.0]), made_up([0.0]))))
    assert arrays["first_token_share"][0] == 0.5 and arrays["sink_rate"][0, 0] == 0.5


def test_alpha_of_a_later_key_is_over_the_queries_that_can_see_it() -> None:
    """Key 2 of 3 tokens gets 0.4 and 0.6 from queries 2 and 3: alpha_2 = 0.5. Of all three queries it is a third."""
    attention = torch.tensor([[1.0, 0.0], [0.6, 0.4], [0.2, 0.6]]).double()[None, None]
    arrays = arrays_of(attention)
    assert arrays["sink_alpha"][0].tolist() == pytest.approx([0.6, 0.5])
    assert arrays["first_keys_share"][0].tolist() == pytest.approx([0.6, 0.6 + 1 / 3])


# --- floors


def test_uniform_attention_at_512_has_its_floor_and_no_sink() -> None:
    model = build("baseline")
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.q_proj.weight)
    result = probe(model, token_ids(1, 512).numpy(), batch_size=1, device=CPU)
    assert result.summary()["first_token_share"] == pytest.approx(0.01331, abs=5e-6)
    assert result.summary()["sink_rate"] == 0.0
    details = result.flat()
    assert details["first_token_share_64"] == pytest.approx(0.07413, abs=1e-5)
    assert details["first_token_floor_64"] == pytest.approx(0.07413, abs=1e-5)
    arrays = result.arrays()
    np.testing.assert_allclose(arrays["first_keys_share"], np.tile(arrays["first_keys_floor"], (2, 4, 1)), atol=1e-6)


def test_the_floor_of_several_keys() -> None:
    """T = 3: query 1 sees one key, query 2 two, query 3 three: 11/18 on the first, 8/9 on two, all on three."""
    assert uniform_first_keys_share(3, 3) == pytest.approx([11 / 18, 8 / 9, 1.0])
    assert uniform_first_keys_share(512, 1)[0] == pytest.approx(uniform_first_token_share(512))


# --- against the explicit map


@pytest.mark.parametrize("length", [5, 64, 70])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_every_figure_equals_that_of_the_explicit_map(kv_heads: int, length: int) -> None:
    """Random weights; 4 query heads on 1, 2 and 4 KV heads; below, at and above Gu et al.'s 64 tokens."""
    model, ids = build("baseline", n_kv_heads=kv_heads), token_ids(3, length).numpy()
    check(model, ids)


def test_every_figure_of_a_trained_model_equals_that_of_the_explicit_map(reference: Path) -> None:
    """2 layers, 4 query heads on 2 KV heads, G1 headwise, trained."""
    model = build_run_model(run_from_yaml((reference / "config.yaml").read_text(encoding="utf-8"), "config.yaml"))
    load_model(model, reference / "checkpoints" / "model.safetensors")
    check(model.eval(), token_ids(4, 96, vocab_size=512).numpy())


def check(model: Transformer, ids: Any) -> None:
    arrays = probe(model, ids, batch_size=2, device=CPU).arrays()
    maps, length = explicit_maps(model, ids), ids.shape[1]
    n_keys = min(8, length)
    assert arrays["sink_alpha"].shape == (2, 4, n_keys)

    def alphas(part: Any) -> Any:
        return np.stack([part[..., k:, k].mean(axis=-1) for k in range(n_keys)], axis=-1)  # (L, N, H, K)

    expected = alphas(maps)
    np.testing.assert_allclose(arrays["sink_alpha"], expected.mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(arrays["sink_rate"], (expected > 0.3).mean(axis=1), atol=1e-9)
    np.testing.assert_allclose(arrays["first_token_share"], maps[..., 0].mean(axis=(1, 3)), atol=1e-5)
    np.testing.assert_allclose(arrays["first_token_share_excl"], maps[..., 1:, 0].mean(axis=(1, 3)), atol=1e-5)
    together = np.cumsum(maps[..., :n_keys].mean(axis=(1, 3)), axis=-1)
    np.testing.assert_allclose(arrays["first_keys_share"], together, atol=1e-5)
    assert ("sink_rate_64" in arrays) == (length >= 64)
    if length >= 64:
        short = alphas(explicit_maps(model, ids[:, :64]))
        np.testing.assert_allclose(arrays["sink_alpha_64"], short.mean(axis=1), atol=1e-5)
        np.testing.assert_allclose(arrays["sink_rate_64"], (short > 0.3).mean(axis=1), atol=1e-9)


def test_the_streamed_keys_follow_the_models_own_attention() -> None:
    """A model whose attention is another function is probed through that function."""
    q = k = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(0))
    kernel = build("baseline").blocks[0].attn.kernel
    with method_replaced(kernel, "forward", lambda q, k, v, decay: torch.full_like(v, 0.5)):
        shares = attention_to_first_keys(q, k, kernel)
    assert shares.unique().tolist() == [0.5]


# --- attention maps


def test_maps_are_the_mean_over_windows_of_the_chosen_layers() -> None:
    model, ids = build("g1_headwise"), token_ids(3, 20).numpy()
    maps = attention_maps(model, ids, [1], device=CPU, length=12)
    assert maps.shape == (1, 4, 12, 12) and maps.dtype == np.float32
    np.testing.assert_allclose(maps[0], explicit_maps(model, ids)[1].mean(axis=0)[:, :12, :12], atol=1e-6)
    np.testing.assert_allclose(maps.sum(axis=-1), 1.0, atol=1e-5)
    assert not np.triu(maps, 1).any()


@pytest.mark.parametrize(
    ("layers", "length", "words"),
    [([2], 8, "layer 3: legal: 1 to 2"), ([0], 600, "600 tokens: legal: at most 512")],
)
def test_a_map_that_is_not_there_or_too_large_is_refused(layers: list[int], length: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        attention_maps(build("baseline"), token_ids(1, 700).numpy(), layers, device=CPU, length=length)


# --- memory

PEAK = """
import json, resource, sys
import torch
from gatebench.evaluation.probes.probe import probe
from tests.model.shapes import build, token_ids
torch.set_num_threads(1)
model = build("g1_headwise", n_layers=1)
probe(model, token_ids(1, 256).numpy(), batch_size=1, device=torch.device("cpu"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
probe(model, token_ids(1, int(sys.argv[1])).numpy(), batch_size=1, device=torch.device("cpu"))
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def peak_kib(length: int) -> int:
    """Growth of a process's peak memory over a probe of one window, 4 query heads on 2 KV heads of 8."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", PEAK, str(length)], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout))


@pytest.mark.slow
def test_peak_memory_is_linear_in_the_length() -> None:
    """From T=4,096 to 8,192 it at most doubles (and 20 %); one head's map alone would be 256 MiB more than 64 MiB."""
    short, long = peak_kib(4096), peak_kib(8192)
    assert long < 2.2 * short + 4096, (short, long)
    assert long < 64 * 1024, long
