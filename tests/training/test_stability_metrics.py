"""What is watched while a model trains: the right numbers, and not a bit of training changed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from gatebench.config import RunConfig
from gatebench.model.build import build_run_model
from gatebench.model.kernels import attention_map, masked_scores
from gatebench.recipes import make_run
from gatebench.training.watch import WATCHED, largest_logit, sizes_of
from tests.training.test_moe_training import MOE
from tests.training.tiny_run import RunTiny, assert_same_result, rows_of


def watched(directory: Path) -> dict[int, dict[str, float]]:
    """The measured rows, by step."""
    return {row["step"]: row for row in rows_of(directory) if row["attn_logit_max"] is not None}


@pytest.mark.parametrize("at_once", [1, 200, 1 << 24])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(12, 12), (5, 12)])
def test_largest_logit_is_that_of_the_whole_map(at_once: int, n_queries: int, n_keys: int) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 4, n_queries, 8), torch.randn(2, 2, n_keys, 8)
    whole = masked_scores(q, k)
    assert largest_logit(q, k, at_once).item() == pytest.approx(whole.max().item(), rel=1e-6)


def test_keys_after_the_query_do_not_count() -> None:
    q, k = torch.ones(1, 1, 3, 4), torch.tensor([1.0, 2.0, 5.0])[None, None, :, None].expand(1, 1, 3, 4)
    assert largest_logit(q, k).item() == 4 * 5 / math.sqrt(4)
    assert largest_logit(q[:, :, :2], k[:, :, :2]).item() == 4 * 2 / math.sqrt(4)
    assert attention_map(q, k)[0, 0, 1, 2] == 0


def test_sizes_are_those_of_the_forward_pass(tiny_recipe: str) -> None:
    config: RunConfig = make_run(tiny_recipe, "g1_headwise", 0, ())
    model = build_run_model(config)
    ids = torch.arange(64).reshape(2, 32)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.g1.gates[0].proj.weight.zero_()
        for block in model.blocks:  # adds nothing to the residual stream, which stays the embedding
            block.attn.o_proj.weight.zero_()
            block.ffn.down_proj.weight.zero_()
        logit, gate, activation = sizes_of(model, ids)
    assert gate.item() == 0.0
    assert activation.item() == model.embed.weight[:64].abs().max().item()
    # QK-norm bounds every logit by √D; equal unit vectors at distance 0 reach it: cos 0 for each token with itself
    assert 0 < logit.item() <= math.sqrt(config.model.head_dim) + 1e-5


def test_watching_changes_nothing(tmp_path: Path, reference: Path, run_tiny: RunTiny) -> None:
    run_tiny(tmp_path / "watched", "train.watch_every=5")
    rows = watched(tmp_path / "watched")
    assert list(rows) == [1, 5, 10, 15, 20]
    for row in rows.values():
        assert all(row[name] > 0 for name in WATCHED)
        assert row["update_ratio"] <= row["update_ratio_max"]
    assert all(set(WATCHED) <= set(row) for row in rows_of(tmp_path / "watched"))
    assert not set(WATCHED) & set(rows_of(reference)[0])
    summary = tmp_path / "watched" / "summary.json"
    content = json.loads(summary.read_text(encoding="utf-8"))
    assert content["attn_logit_max"] == max(row["attn_logit_max"] for row in rows.values())
    for name in WATCHED:
        del content[name]
    content["overrides"] = []
    summary.write_text(json.dumps(content), encoding="utf-8")
    assert_same_result(tmp_path / "watched", reference)


def test_update_ratio_is_the_change_over_the_weights(tmp_path: Path, run_tiny: RunTiny) -> None:
    """AdamW's first step moves every weight by the LR: of a matrix with standard deviation s that is LR / s of it."""
    settings = ("train.watch_every=1", "train.steps=2", "optim.warmup_steps=0", "optim.weight_decay=0", "optim.lr=1e-3")
    run_tiny(tmp_path / "run", *settings, variant="baseline")
    first = watched(tmp_path / "run")[1]
    assert first["update_ratio_max"] == pytest.approx(1e-3 / 0.02, rel=0.05)
    assert 0 < first["update_ratio"] <= first["update_ratio_max"]
    assert first["gate_logit_max"] is None


def test_watching_experts_adds_nothing_to_their_loads(tmp_path: Path, run_tiny: RunTiny) -> None:
    settings = (*MOE, "train.micro_batch_size=4", "train.steps=12")
    run_tiny(tmp_path / "watched", *settings, "train.watch_every=5", variant="baseline")
    run_tiny(tmp_path / "alone", *settings, variant="baseline")
    ours, theirs = rows_of(tmp_path / "watched"), rows_of(tmp_path / "alone")
    for column in ("loss", "grad_norm", "load_balancing_loss", "max_load"):
        assert [row[column] for row in ours] == [row[column] for row in theirs], column


@pytest.mark.slow
def test_compiled_blocks_are_watched_too(tmp_path: Path, run_tiny: RunTiny) -> None:
    settings = ("train.watch_every=5", "train.steps=6")
    run_tiny(tmp_path / "eager", *settings)
    run_tiny(tmp_path / "compiled", *settings, "train.compile=on")
    eager, compiled = watched(tmp_path / "eager"), watched(tmp_path / "compiled")
    for step in (1, 5):
        for name in WATCHED:
            assert compiled[step][name] == pytest.approx(eager[step][name], rel=1e-2), name
