"""Where attention goes, against values worked out by hand and against the explicit map."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_model
from torch import Tensor

from gatebench.evaluation.probes import destinations as module
from gatebench.evaluation.probes.destinations import DESTINATIONS, DestinationStats, destinations, skipped_queries
from gatebench.evaluation.probes.probe import ProbeResult, probe
from gatebench.model.build import build_run_model
from gatebench.model.kernels import attention_map
from gatebench.model.transformer import Transformer
from gatebench.recipes import run_from_yaml
from tests.model.shapes import build, token_ids

CPU = torch.device("cpu")


def measured(model: Transformer, ids: Any, triggers: Any = None, batch_size: int = 2) -> ProbeResult:
    return probe(model, ids, batch_size=batch_size, device=CPU, triggers=triggers)


def looking_evenly(name: str = "baseline", **changes: object) -> Transformer:
    """A model whose queries are zero, so that its attention is uniform."""
    model = build(name, **changes)
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.q_proj.weight)
    return model


def random_triggers(ids: Any, share: float = 0.2) -> Any:
    """Some triggers, among them a first token, and two in a row."""
    marked = np.random.default_rng(0).random(ids.shape) < share
    marked[0, :2] = True
    marked[-1, 20:22] = True
    return marked


def by_hand(maps: Any, triggers: Any, start: int) -> dict[str, Any]:
    """(H, 6) and (H,) of `maps` (N, H, T, T), key by key."""
    found: dict[str, Any] = {}
    for queries, wanted in (("idle", False), ("trigger", True)):
        shares, entropies = [], []
        for n, i in zip(*np.nonzero(triggers == wanted), strict=True):
            if i < start:
                continue
            row = maps[n, :, i, : i + 1]
            share = np.zeros((row.shape[0], 6))
            for j in range(i + 1):
                kinds = (j == 0, j == i, j == i - 1, triggers[n, j], True)
                share[:, kinds.index(True)] += row[:, j]
            shares.append(share)
            entropies.append(-(row * np.log(row)).sum(axis=-1))
        found[queries], found[f"{queries}_entropy"] = np.mean(shares, axis=0), np.mean(entropies, axis=0)
    return found


# --- hand-made rows


def test_a_key_counts_for_the_first_of_its_kinds() -> None:
    """Query 2 of 3: 0.5 on the first token, a trigger; 0.2 on the one before, a trigger; 0.3 on itself."""
    row = torch.tensor([0.5, 0.2, 0.3]).view(1, 1, 1, 3)
    shares = destinations(row, torch.tensor([[True, True, False]]), start=2)
    assert shares.flatten().tolist() == pytest.approx([0.5, 0.3, 0.2, 0.0, 0.0, 0.0], abs=1e-6)


def test_the_token_before_query_1_is_the_first() -> None:
    rows = torch.tensor([[0.4, 0.6, 0.0], [0.1, 0.2, 0.7]]).view(1, 1, 2, 3)
    shares = destinations(rows, torch.zeros(1, 3, dtype=torch.bool), start=1)
    np.testing.assert_allclose(shares[0, 0], [[0.4, 0.6, 0, 0, 0, 0], [0.1, 0.7, 0.2, 0, 0, 0]], atol=1e-6)


def test_other_triggers_and_the_rest() -> None:
    """Query 5 is a trigger as are keys 0, 2 and 4: only key 2 counts as one. 0.05 goes to no token."""
    row = torch.tensor([0.1, 0.0, 0.25, 0.15, 0.2, 0.25]).view(1, 1, 1, 6)
    shares = destinations(row, torch.tensor([[True, False, True, False, True, True]]), start=5)
    assert dict(zip(DESTINATIONS, shares.flatten().tolist(), strict=True)) == pytest.approx(
        {"first": 0.1, "self": 0.25, "previous": 0.2, "trigger": 0.25, "rest": 0.15, "none": 0.05}, abs=1e-6
    )


@pytest.mark.parametrize(("length", "skipped"), [(2, 1), (8, 1), (64, 8), (256, 32), (4096, 32)])
def test_the_first_queries_are_left_out(length: int, skipped: int) -> None:
    assert skipped_queries(length) == skipped


# --- uniform attention


def test_uniform_attention_pays_every_key_alike() -> None:
    """T = 16: queries 2 .. 15 see 3 .. 16 keys, so each kind gets its number over that; entropy is the log of it."""
    keys = np.arange(3, 17)
    result = measured(looking_evenly(), token_ids(2, 16).numpy())
    details = result.flat()
    for name in ("first", "self", "previous"):
        assert details[f"attention_idle_{name}"] == pytest.approx((1 / keys).mean(), abs=1e-6)
    assert details["attention_idle_rest"] == pytest.approx((1 - 3 / keys).mean(), abs=1e-6)
    assert details["attention_idle_entropy"] == pytest.approx(np.log(keys).mean(), abs=1e-5)


def test_uniform_attention_on_triggers_is_their_share_of_the_keys() -> None:
    """Every fourth token is a trigger: query 7 (a trigger) sees 3 as another one; query 6 (idle) sees 3."""
    ids = token_ids(1, 8).numpy()
    triggers = np.array([[False, False, False, True, False, False, False, True]])
    details = measured(looking_evenly(), ids, triggers).flat()
    # Of the idle queries 1, 2, 4, 5, 6 only the last two see trigger 3 elsewhere than at the token before.
    assert details["attention_idle_trigger"] == pytest.approx((1 / 6 + 1 / 7) / 5, abs=1e-6)
    assert details["attention_trigger_trigger"] == pytest.approx((0 + 1 / 8) / 2, abs=1e-6)
    assert details["attention_trigger_entropy"] == pytest.approx((math.log(4) + math.log(8)) / 2, abs=1e-6)


def test_text_has_no_trigger_columns() -> None:
    result = measured(build("baseline"), token_ids(2, 16).numpy())
    details, arrays = result.flat(), result.arrays()
    none = {key for key, value in details.items() if "trigger" in key}
    assert {details[key] for key in none} == {None}
    assert {"attention_idle_trigger", "attention_trigger_first", "norm_sdpa_trigger", "value_norm_trigger"} <= none
    assert not [name for name in arrays if "trigger" in name] and not arrays["attention_idle"][..., 3].any()


# --- against the explicit map


def check(model: Transformer, ids: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    maps: list[Tensor] = []
    handles = [
        block.attn.kernel.register_forward_pre_hook(lambda m, args: maps.append(attention_map(*args[:2])))
        for block in model.blocks
    ]
    with torch.no_grad():
        model(torch.from_numpy(ids))
    for handle in handles:
        handle.remove()
    monkeypatch.setattr(module, "BLOCK", 7)  # several blocks, and a last one that is not full
    triggers = random_triggers(ids)
    arrays = measured(model, ids, triggers).arrays()
    start = skipped_queries(ids.shape[1])
    for layer, explicit in enumerate(maps):
        expected = by_hand(explicit.double().numpy(), triggers, start)
        for queries in ("idle", "trigger"):
            np.testing.assert_allclose(arrays[f"attention_{queries}"][layer], expected[queries], atol=1e-5)
            entropy = arrays[f"attention_{queries}_entropy"][layer]
            np.testing.assert_allclose(entropy, expected[f"{queries}_entropy"], atol=1e-4)
            np.testing.assert_allclose(arrays[f"attention_{queries}"][layer].sum(axis=-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax1", "forgetting", "differential"])
def test_other_kernels_are_read_through_their_own_shares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block as in one piece; what goes to no token is what a row lacks."""
    model, ids = build(name), token_ids(2, 40).numpy()
    whole = measured(model, ids).arrays()["attention_idle"]
    monkeypatch.setattr(module, "BLOCK", 7)
    np.testing.assert_allclose(measured(model, ids).arrays()["attention_idle"], whole, atol=1e-6)
    np.testing.assert_allclose(whole.sum(axis=-1), 1.0, atol=1e-6)
    lost = whole[..., DESTINATIONS.index("none")]
    assert (lost > 1e-3).all() if name == "softmax1" else (abs(lost) < 1e-6).all()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_shares_and_entropy_equal_those_of_the_explicit_map(kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(build("g3_headwise", n_kv_heads=kv_heads), token_ids(3, 40).numpy(), monkeypatch)


def test_those_of_a_trained_model_equal_the_explicit_map(reference: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_run_model(run_from_yaml((reference / "config.yaml").read_text(encoding="utf-8"), "config.yaml"))
    load_model(model, reference / "checkpoints" / "model.safetensors")
    check(model.eval(), token_ids(3, 70, vocab_size=512).numpy(), monkeypatch)


def test_the_batch_size_moves_nothing() -> None:
    model, ids = build("g1_headwise"), token_ids(5, 24).numpy()
    one, all_at_once = (measured(model, ids, random_triggers(ids), batch_size=n).arrays() for n in (1, 5))
    for name in [name for name in one if name.startswith(("attention_", "norm_", "value_norm_"))]:
        np.testing.assert_allclose(one[name], all_at_once[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_attention_rows_are_read_over_the_first_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for 48 tokens, two windows of 24: what stands in the third has no influence. Norms read all."""
    monkeypatch.setattr(module, "MAX_TOKENS", 48)
    model, ids = build("baseline"), token_ids(3, 24).numpy()
    two, three = measured(model, ids[:2]).arrays(), measured(model, ids).arrays()
    np.testing.assert_allclose(two["attention_idle"], three["attention_idle"], atol=1e-7)
    assert np.abs(two["norm_sdpa_idle"] - three["norm_sdpa_idle"]).max() > 1e-4


# --- outputs and values


def test_norms_of_made_up_outputs() -> None:
    """T = 8, query 0 left out. Two heads of 2: idle (3, 4) and 0, the trigger (0, 2) and (1, 0)."""
    output = torch.zeros(1, 8, 2, 2)
    output[0, :, 0] = torch.tensor([3.0, 4.0])
    triggers = torch.zeros(1, 8, dtype=torch.bool)
    triggers[0, 5] = True
    output[0, 5] = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    output[0, 0] = 100.0
    stats = DestinationStats(8)
    for stage in ("sdpa", "gated"):
        stats.add_output(0, stage, output, triggers)
    for stage in ("o_proj", "output"):
        stats.add_output(0, stage, output.flatten(2), triggers)
    q = k = torch.zeros(1, 2, 8, 2)
    stats.add_attention(0, build("baseline").blocks[0].attn.kernel, q, k, None, triggers)
    arrays = stats.arrays()
    assert arrays["norm_sdpa_idle"].tolist() == [[5.0, 0.0]] and arrays["norm_sdpa_trigger"].tolist() == [[2.0, 1.0]]
    assert arrays["norm_o_proj_idle"].tolist() == [5.0]
    assert arrays["norm_o_proj_trigger"].tolist() == pytest.approx([math.sqrt(5)])


def test_a_gate_at_half_halves_the_output_at_its_own_place() -> None:
    """Gates whose score is sigmoid(0) = 1/2, at G1 or at G5."""
    ids = token_ids(2, 16).numpy()
    triggers = random_triggers(ids)
    for name, before, after in (("g1_headwise", "sdpa", "gated"), ("g5_elementwise", "o_proj", "output")):
        model = build(name, gate_init_std=0.0)
        arrays = measured(model, ids, triggers).arrays()
        for queries in ("idle", "trigger"):
            ungated = arrays[f"norm_{before}_{queries}"]
            np.testing.assert_allclose(arrays[f"norm_{after}_{queries}"], ungated / 2, rtol=1e-5)
            assert ungated.min() > 0
    arrays = measured(build("baseline"), ids, triggers).arrays()
    np.testing.assert_array_equal(arrays["norm_sdpa_idle"], arrays["norm_gated_idle"])
    np.testing.assert_array_equal(arrays["norm_o_proj_idle"], arrays["norm_output_idle"])


def test_values_of_triggers_and_of_ordinary_tokens() -> None:
    """First token 5, a trigger 1, two ordinary tokens 3 and 2; a first token that is a trigger is the first."""
    from gatebench.evaluation.probes.activations import ValueNorms

    raw = torch.tensor([5.0, 1.0, 3.0, 2.0]).view(1, 4, 1, 1)
    for first_is_one in (False, True):
        norms = ValueNorms(4)
        norms.add(0, raw, raw, torch.tensor([[first_is_one, True, False, False]]))
        arrays = norms.arrays()
        assert [arrays[f"value_norm_{name}"][0, 0] for name in ("first", "trigger", "ordinary")] == [5.0, 1.0, 2.5]
