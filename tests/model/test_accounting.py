"""Parameters, FLOPs and parameter matching, with the paper's own figures."""

from __future__ import annotations

import csv

import pytest
import torch

from gatebench import variants
from gatebench.config import ModelConfig
from gatebench.errors import UserError
from gatebench.model import accounting
from gatebench.model.accounting import account, match, total_params
from gatebench.model.transformer import Transformer
from gatebench.paths import project_root
from gatebench.recipes import make_run
from tests.model.shapes import TINY, shape

TABLE_1 = ModelConfig(n_layers=24, d_model=2048, n_heads=32, n_kv_heads=4, head_dim=128, ffn_dim=768, vocab_size=151936)
DENSE_28L = ModelConfig(
    n_layers=28, d_model=2048, n_heads=16, n_kv_heads=8, head_dim=128, ffn_dim=6144, vocab_size=151936
)
DENSE_48L = ModelConfig(
    n_layers=48, d_model=1536, n_heads=16, n_kv_heads=8, head_dim=128, ffn_dim=4608, vocab_size=151936
)
BASELINE = variants.get("baseline")


def added(config: ModelConfig, name: str) -> int:
    return total_params(shape(name, config), variants.get(name)) - total_params(config, BASELINE)


def built(config: ModelConfig, name: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(shape(name, config), variants.get(name)).parameters())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("g1_elementwise", 201_326_592),
        ("g1_elementwise_shared", 201_326_592),
        ("g1_elementwise_additive_silu", 201_326_592),
        ("g4_elementwise", 201_326_592),
        ("g1_headwise", 1_572_864),
        ("g2_elementwise", 25_165_824),
        ("g2_elementwise_shared", 25_165_824),
        ("g3_elementwise", 25_165_824),
        ("g2_headwise", 196_608),
        ("g5_elementwise", 100_663_296),
        ("kv_heads_x2", 50_331_648),
        ("q_heads_x1p5", 201_326_592),
        ("g1_elementwise_input_independent", 24 * 32 * 128),
        ("g1_rmsnorm", 24 * 32 * 128),
        ("g1_silu_only", 0),
    ],
)
def test_added_parameters_of_table_1(name: str, expected: int) -> None:
    assert added(TABLE_1, name) == expected


def test_added_parameters_round_to_the_papers_column() -> None:
    with (project_root() / "results/paper/table1_gating_variants.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["variant"] != "experts_plus4"]
    assert len(rows) == 14
    for row in rows:
        printed = float(row["added_param_m"])
        assert added(TABLE_1, row["variant"]) / 1e6 == pytest.approx(printed, abs=0.7 if printed > 2 else 0.05), row


@pytest.mark.parametrize(("name", "expected"), [("g1_headwise", 49_152), ("g1_elementwise", 3_145_728)])
def test_the_column_is_the_difference_in_numel(name: str, expected: int) -> None:
    # A static scalar per head would add 96 (parameter-golf#430); the formula must follow the module (#1565).
    config = ModelConfig(n_layers=12, d_model=512, n_heads=8, n_kv_heads=8, head_dim=64, ffn_dim=64, vocab_size=64)
    assert built(config, name) - built(config, "baseline") == expected
    assert added(config, name) == expected


@pytest.mark.parametrize(
    ("config", "expected"), [(DENSE_28L, 1_720_574_976), (DENSE_48L, 1_705_735_680)], ids=["28L", "48L"]
)
def test_totals_of_the_papers_dense_models(config: ModelConfig, expected: int) -> None:
    # definitions: 1.721 B and 1.706 B at a vocabulary of 151,936; transformers' Qwen3-1.7B has 1,720,574,976.
    assert total_params(config, BASELINE) == built(config, "baseline") == expected


def test_layer_breakdown_by_hand() -> None:
    # d_model 24, 4 query heads and 2 KV heads of 8, ffn_dim 20
    assert accounting.layer_breakdown(TINY, variants.get("g1_headwise+g2_elementwise")) == {
        "q_proj": 24 * 32,
        "k_proj": 24 * 16,
        "v_proj": 24 * 16,
        "o_proj": 32 * 24,
        "qk_norm": 16,
        "ffn": 3 * 24 * 20,
        "norms": 48,
        "g1_headwise": 24 * 4,
        "g2_elementwise": 24 * 16,
    }


def test_flops_by_hand() -> None:
    # Per layer: 24 x (32 + 16 + 16) + 32 x 24 + 3 x 24 x 20 weights, 2 x 10 x 32 products over 10 keys; head: 24 x 61.
    expected = 2 * (2 * (24 * 64 + 768 + 1440 + 640) + 24 * 61)
    assert accounting.forward_flops_per_token(TINY, BASELINE, seq_len=10) == expected == 20_464
    assert accounting.train_flops_per_token(TINY, BASELINE, seq_len=10) == 3 * expected
    headwise = accounting.forward_flops_per_token(TINY, variants.get("g1_headwise"), seq_len=10)
    assert headwise - expected == 2 * 2 * 24 * 4


def match_ffn(config: ModelConfig, variant: variants.Variant, target: int) -> ModelConfig:
    return match(config, lambda model: total_params(model, variant), target, "adds {:,} parameters")


@pytest.mark.parametrize(
    ("config", "name", "ffn_dim"),
    [
        (DENSE_28L, "g1_elementwise", 5461),  # 6144 - 2048 / 3 = 5461.3
        (DENSE_48L, "g1_elementwise", 3925),  # 4608 - 2048 / 3 = 3925.3
        (DENSE_28L, "g1_headwise", 6139),  # 6144 - 16 / 3 = 6138.7
        (DENSE_28L, "baseline", 6144),
        (DENSE_28L, "g1_silu_only", 6144),
    ],
)
def test_parameter_matching_narrows_the_ffn(config: ModelConfig, name: str, ffn_dim: int) -> None:
    assert match_ffn(config, variants.get(name), total_params(config, BASELINE)).ffn_dim == ffn_dim


def test_parameter_matching_widens_the_ffn_where_a_variant_is_smaller() -> None:
    target = total_params(TINY, BASELINE)
    fewer_heads = TINY.model_copy(update={"n_heads": 2})  # saves 2 x 16 x 24 a layer: 768 / 72 = 10.67 units
    assert match_ffn(fewer_heads, BASELINE, target).ffn_dim == 31


def test_parameter_matching_breaks_ties_towards_the_smaller_model() -> None:
    unit = 3 * TINY.d_model * TINY.n_layers
    assert match_ffn(TINY, BASELINE, total_params(TINY, BASELINE) + unit // 2).ffn_dim == 20
    assert match_ffn(TINY, BASELINE, total_params(TINY, BASELINE) + unit // 2 + 1).ffn_dim == 21


@pytest.mark.parametrize("name", variants.registry())
def test_the_residual_of_parameter_matching_is_at_most_half_an_ffn_unit(name: str) -> None:
    experts = any(key.startswith("moe.") for key in variants.get(name).ratios)
    recipe, width = ("moe_tiny", "model.moe.expert_dim=88") if experts else ("quick", "model.ffn_dim=768")
    costs = account(make_run(recipe, name, 0, ["param_match=ffn", width]))
    unit = 3 * costs.model.d_model * costs.model.n_layers * (costs.model.moe.n_experts if costs.model.moe else 1)
    assert abs(costs.added) <= unit / 2
    assert costs.n_params == costs.n_params_baseline + costs.added == built_final(costs.model, name)


@pytest.mark.parametrize("name", variants.registry())
def test_the_residual_of_flop_matching_is_at_most_half_an_ffn_unit(name: str) -> None:
    experts = any(key.startswith("moe.") for key in variants.get(name).ratios)
    recipe, width = ("moe_tiny", "model.moe.expert_dim=88") if experts else ("quick", "model.ffn_dim=768")
    costs = account(make_run(recipe, name, 0, ["param_match=flops", width]))
    active = costs.model.moe.top_k if costs.model.moe else 1
    unit = 18 * costs.model.d_model * costs.model.n_layers * active  # 3 matrices, 2 FLOPs a weight, 3 passes
    residual = costs.flops_per_token - costs.flops_per_token_baseline
    assert abs(residual) <= unit / 2 * 1.02 + 3  # registers pass through the FFN, too; shares are rounded down


def test_flops_are_matched_where_parameters_would_be_others() -> None:
    """Half as many query heads again cost FLOPs in the T x T map that no parameter shows."""
    by_params, by_flops = (
        account(make_run("quick", "q_heads_x1p5", 0, [f"param_match={m}"])) for m in ("ffn", "flops")
    )
    assert by_flops.model.ffn_dim < by_params.model.ffn_dim < make_run("quick", "baseline").model.ffn_dim
    assert by_flops.added < -5_000 and abs(by_params.added) <= 3 * 128 * 4 / 2


def built_final(config: ModelConfig, name: str) -> int:
    """Return numel of the model whose shape is final."""
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(config, variants.get(name)).parameters())


def test_without_matching_the_ffn_stays() -> None:
    shape = ["model.n_layers=3", "model.d_model=64", "model.n_heads=4", "model.n_kv_heads=2"]
    costs = account(make_run("quick", "g1_headwise", 0, shape))
    assert costs.model.ffn_dim == make_run("quick", "baseline").model.ffn_dim
    assert costs.added == 3 * 64 * 4


def test_a_gate_larger_than_the_ffn_cannot_be_matched() -> None:
    with pytest.raises(UserError) as error:
        match_ffn(TABLE_1, variants.get("g1_elementwise+g4_elementwise"), total_params(TABLE_1, BASELINE))
    message = str(error.value)
    assert "\n" not in message
    assert "adds 402,653,184 parameters" in message
    assert "ffn_dim=768" in message
    assert "legal: param_match=none or a larger ffn_dim" in message


@pytest.mark.parametrize(
    ("name", "n_heads", "n_kv_heads"),
    [("kv_heads_x2", 32, 8), ("q_heads_x1p5", 48, 4), ("kv_heads_x2+q_heads_x1p5", 48, 8), ("g1_headwise", 32, 4)],
)
def test_ratios_give_the_papers_head_counts(name: str, n_heads: int, n_kv_heads: int) -> None:
    final = shape(name, TABLE_1)
    assert (final.n_heads, final.n_kv_heads) == (n_heads, n_kv_heads)
