"""`gatebench list` and `gatebench show` as a user calls them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gatebench import variants
from gatebench.paths import project_root
from tests.cli.commands import Command

call = Command(columns=200)
json_of, refusal = call.json, call.refusal


# --- list


def test_list_shows_every_registered_variant() -> None:
    result = call("list")
    assert result.exit_code == 0
    first_words = [line.split()[0] for line in result.stdout.splitlines() if line[1:2].strip()]
    assert first_words[2:] == list(variants.registry())  # below the head and its rule
    assert f"{len(variants.registry())} variants" in result.stderr


def test_list_says_why_anyone_would_run_each() -> None:
    assert all(entry["reason"] and "\n" not in entry["reason"] for entry in json_of("list"))
    (line,) = [line for line in call("list", "--pattern", "g1_headwise").stdout.splitlines() if line.startswith(" g1")]
    assert "one score per head: most of the gain for almost no parameters" in line


def test_list_of_a_table_keeps_the_papers_order() -> None:
    listed = json_of("list", "--table", "4")
    assert [entry["name"] for entry in listed] == [
        "baseline",
        "g1_elementwise",
        "g1_headwise",
        "g1_elementwise_shared",
        "g2_elementwise",
        "g1_elementwise_input_independent",
        "g1_elementwise_ns_sigmoid",
    ]
    assert [entry["tables"]["4"] for entry in listed] == [1, 2, 3, 4, 5, 6, 7]


def test_list_tells_what_each_variant_is() -> None:
    (entry,) = json_of("list", "--pattern", "g1_additive_silu")
    assert entry == {
        "name": "g1_elementwise_additive_silu",
        "label": "SDPA Additive G1",
        "group": "mode",
        "reason": "adds instead of multiplying: non-linear, but cannot close",
        "aliases": ["g1_additive_silu"],
        "tables": {"1": 14, "3": 4},
        "gates": [
            {
                "name": "g1_elementwise_additive_silu",
                "position": "G1",
                "site": "SDPA output",
                "equation": "Y_h' = Y_h + SiLU(X W_θ,h)",
                "score_shape": "n x q x dk",
            }
        ],
        "design": {},
        "overrides": {},
    }
    assert "Y_h' = Y_h + SiLU(X W_θ,h)" in call("list", "--table", "3").stdout


def test_list_by_pattern_and_table() -> None:
    assert [entry["name"] for entry in json_of("list", "--pattern", "g2*", "--table", "1")] == [
        "g2_elementwise",
        "g2_headwise",
        "g2_elementwise_shared",
    ]
    assert len(json_of("list", "--pattern", "group:factorial")) == 68


def test_list_refuses_what_names_nothing() -> None:
    assert "table '9': no variant stands in it; legal: 1, 2, 3" in refusal("list", "--table", "9")
    assert "pattern 'g9*': matches no registered variant" in refusal("list", "--pattern", "g9*")
    assert "--pattern g5*: names nothing in table 4" in refusal("list", "--pattern", "g5*", "--table", "4")


# --- show


def test_show_counts_under_the_recipe() -> None:
    facts = json_of("show", "g1_headwise", "--set", "model.d_model=512", "--set", "model.n_heads=8", "--set",
                    "model.n_kv_heads=8", "--set", "model.head_dim=64", "--set", "model.n_layers=12")  # fmt: skip
    counts = facts["parameters"]
    assert counts["added"] == counts["total"] - counts["baseline"] == 49_152
    assert counts["added_per_layer"] == counts["per_layer"]["g1_headwise"] == 4_096
    assert counts["added_share"] == pytest.approx(49_152 / counts["baseline"])
    assert facts["model"]["n_heads"] == 8
    assert facts["recipe"] == "quick"
    added_flops = facts["train_flops_per_token"] - facts["train_flops_per_token_baseline"]
    assert added_flops == 6 * 49_152  # two a multiply-add, three passes
    assert facts["gates"][0]["site"] == "SDPA output"


def test_show_under_parameter_matching_tells_ffn_and_residual() -> None:
    shape = ["model.n_layers=28", "model.d_model=2048", "model.n_heads=16", "model.n_kv_heads=8", "model.head_dim=128"]
    overrides = [*shape, "model.ffn_dim=6144", "model.vocab_size=151936", "param_match=ffn"]
    words = [word for override in overrides for word in ("--set", override)]
    facts = json_of("show", "g1_elementwise", *words)
    assert (facts["ffn_dim"], facts["ffn_dim_baseline"]) == (5461, 6144)
    # 28 x (2048 x 2048 - 683 x 3 x 2048) = -57,344: a third of an FFN unit is missing
    assert facts["parameters"]["added"] == -57_344
    assert "param_match=ffn leaves a residual of -57,344 parameters (an FFN unit is 172,032)" in facts["notes"]
    assert "ffn_dim 6144 -> 5461" in call("show", "g1_elementwise", *words).stdout


def test_show_under_parameter_matching_counts_a_unit_in_every_expert() -> None:
    facts = json_of("show", "kv_heads_x2", "--recipe", "moe_tiny", "--set", "param_match=ffn")
    # 4 x (16,384 - 32 experts x 3 x 128)
    assert "param_match=ffn leaves a residual of +16,384 parameters (an FFN unit is 49,152)" in facts["notes"]


def test_show_tells_what_a_design_does_and_costs() -> None:
    facts = json_of("show", "softpick+clip300+g1_headwise")
    assert list(facts["design"]) == ["clip300", "softpick"]
    assert facts["design"]["clip300"] == "h' = h + clamp(f(N(h)), ±300) for attention and FFN"
    assert any(note.startswith("softpick: no fused kernel") for note in facts["notes"])
    text = call("show", "sandwich_norm").stdout
    assert "sandwich_norm\n    h' = h + N₂(f(N₁(h))) for attention and FFN" in text


def test_show_of_a_mixture_tells_experts_and_active_parameters() -> None:
    facts = json_of("show", "experts_plus4", "--recipe", "moe_tiny")
    assert (facts["model"]["n_experts"], facts["overrides"]) == (33, {"moe.n_experts": "x 1.03125"})
    assert "moe.n_experts: 32 -> 33" in facts["notes"]
    counts, model = facts["parameters"], facts["model"]
    one_expert = 3 * model["d_model"] * model["expert_dim"]
    idle = model["n_layers"] * (model["n_experts"] - model["top_k"]) * one_expert
    assert counts["active"] == counts["total"] - idle
    assert f"({counts['active']:,} active)" in call("show", "experts_plus4", "--recipe", "moe_tiny").stdout
    assert json_of("show", "baseline")["parameters"]["active"] == json_of("show", "baseline")["parameters"]["total"]


def test_show_gives_the_papers_numbers() -> None:
    rows = {(row["table"], row["row"]): row for row in json_of("show", "g1_input_independent")["paper"]}
    assert list(rows) == [(4, 6)]
    assert (rows[4, 6]["avg_ppl"], rows[4, 6]["f_attn"], rows[4, 6]["m_act"]) == ("5.917", "0.364", "471")
    text = call("show", "g1_headwise").stdout
    assert [number for number in ("5.792", "7.370", "0.073") if number not in text] == []  # Tables 1, 2, 4


def test_show_prints_equation_site_reason_and_cost() -> None:
    text = call("show", "g3_headwise").stdout
    for words in (
        "K_h' = K_h ⊙ σ(X W_θ,h)",
        "G3, key (after QK-norm, before RoPE)",
        "score: n x k",
        "under recipe quick",
        "g3_headwise",
    ):
        assert words in text
    assert "one score per head" in call("show", "g1_headwise").stdout


@pytest.mark.parametrize(
    ("name", "overrides", "note"),
    [
        ("g2_elementwise_shared", ["model.n_kv_heads=1"], "shared equals specific here: n_kv_heads=1"),
        ("g1_headwise_shared", ["model.n_heads=1", "model.n_kv_heads=1"], "shared equals specific here: n_heads=1"),
        ("kv_heads_x2", ["model.n_heads=4", "model.n_kv_heads=2"], "n_kv_heads: 2 -> 4"),
        ("g3_rmsnorm", [], "acts after QK-norm"),
        ("g1_headwise_relu", ["model.gate_init_std=0"], "gives ReLU a zero gradient"),
        ("g1_elementwise", [], "15A2B mixture of experts"),
        ("g1_headwise_silu_input_independent+g2_headwise_silu_input_independent", [], "no gradient ever moves them"),
        ("g3_headwise_tanh+g4_headwise_silu", ["model.gate_init_std=0"], "no gradient ever moves them"),
    ],
)
def test_show_notes_what_a_reader_should_know(name: str, overrides: list[str], note: str) -> None:
    words = [word for override in overrides for word in ("--set", override)]
    assert note in "\n".join(json_of("show", name, *words)["notes"])


def test_show_has_no_sharing_note_where_heads_differ() -> None:
    overrides = ["--set", "model.n_heads=4", "--set", "model.n_kv_heads=2"]
    assert not any("shared" in note for note in json_of("show", "g2_elementwise_shared", *overrides)["notes"])


@pytest.mark.parametrize("name", ["g1_elementwise_tanh", "g1_headwise+g2_headwise", "kv_heads_x2+g1_headwise"])
def test_show_takes_any_name_of_the_grammar(name: str) -> None:
    assert json_of("show", name)["name"] == name
    assert call("show", name).exit_code == 0


@pytest.mark.parametrize(
    "name", ["baseline", "kv_heads_x2", "q_heads_x1p5", "g1_rmsnorm", "g1_silu_only", "g5_elementwise"]
)
def test_show_prints_every_kind(name: str) -> None:
    overrides = ["--set", "model.n_heads=4", "--set", "model.n_kv_heads=2"]
    text = call("show", name, *overrides).stdout
    assert text.startswith(name)
    assert "parameters per layer" in text


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["show", "g1_hedwise"], "gatebench: variant 'g1_hedwise': unknown; did you mean g1_headwise"),
        (["show", "g1_headwise", "--recipe", "quik"], "gatebench: recipe 'quik': not found; did you mean quick?"),
        (
            ["show", "g1_headwise", "--set", "model.nheads=2"],
            "gatebench: recipe 'quick': key 'model.nheads' is",
        ),
        (["list", "--table", "9"], "gatebench: table '9': no variant stands in it; legal: 1, 2, 3"),
    ],
)
def test_bad_input_is_one_line_on_standard_error_and_status_2(words: list[str], line: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gatebench", *words], cwd=project_root(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


def test_list_and_show_need_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')\n", encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(project_root())])}
    for words in (["list", "--table", "1"], ["show", "g1_headwise"]):
        done = subprocess.run([sys.executable, "-m", "gatebench", *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "g1_headwise" in done.stdout
