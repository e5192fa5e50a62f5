"""Names of runs, as they were recorded: an existing run is found again whatever the code becomes."""

from __future__ import annotations

import pytest

from gatebench.identity import BEFORE
from gatebench.recipes import make_run, run_from_yaml, to_yaml
from gatebench.training.extension import Extension, extended

RECORDED: list[tuple[str, str, int, list[str], str]] = [
    ("quick", "baseline", 0, [], "quick/baseline-s0-92432aca"),
    (
        *("quick", "g1_headwise", 3, ["optim.lr=3e-3", "data.mixture={english: 0.75, code: 0.25}"]),
        "quick/g1_headwise-s3-fd49a7d3",
    ),
    (
        *("quick", "g1_elementwise_additive_silu+clip300", 1, ["param_match=ffn", "model.qkv_bias=true"]),
        "quick/clip300+g1_elementwise_additive_silu-s1-2c45240a",
    ),
    (
        *("sink_lab", "softmax1+g1_elementwise_rank8", 2, ["data.synthetic={seed: 5}", "model.context_length=64"]),
        "sink_lab/softmax1+g1_elementwise_rank8-s2-fe3e5fee",
    ),
    (
        *("quick", "sigmoid_attention", 0),
        [
            "model.rope_scaling={factor: 4, original_max_position_embeddings: 256}",
            *("train.recompute=true", "train.watch_every=5", "train.snapshot_every=10"),
        ],
        "quick/sigmoid_attention-s0-12d18299",
    ),
    (
        *("quick", "registers4", 7, ["data.retrieval={share: 0.25, shortest: 64}"]),
        "quick/registers4-s7-46ae018a",
    ),
    (
        *("dense_190m", "switch_v_8top2", 0, ["param_match=flops", "train.devices=2"]),
        "dense_190m/switch_v_8top2-s0-ab994af4",
    ),
    (
        *("moe_15a2b", "g1_elementwise", 4, ["model.moe.lbl_scope=running", "train.loggers=[csv]"]),
        "moe_15a2b/g1_elementwise-s4-c19b9d90",
    ),
]
"""Recipe, variant, seed, settings, and the name below `results/runs` without a corpus."""


@pytest.mark.parametrize(("recipe", "variant", "seed", "overrides", "name"), RECORDED, ids=[r[-1] for r in RECORDED])
def test_a_run_keeps_its_name(recipe: str, variant: str, seed: int, overrides: list[str], name: str) -> None:
    config = make_run(recipe, variant, seed, overrides)
    assert config.run_name == name
    assert config.fingerprint == name.rpartition("-")[2]
    assert run_from_yaml(to_yaml(config), "config.yaml").run_name == name


def test_a_run_on_a_corpus_and_its_extension_keep_their_names() -> None:
    parent = make_run("quick", "g1_headwise").model_copy(update={"corpus_fingerprint": "0123456789abcdef"})
    assert parent.run_name == "quick/g1_headwise-s0-e243efb5"
    child = extended(parent, Extension(tokens=100_000, seq_len="4x", rope_theta=1e5))
    assert child.run_name == "quick/g1_headwise-s0-4a5c7079"


def test_a_value_that_is_what_it_was_before_its_key_existed_renames_no_run() -> None:
    plain = make_run("quick", "baseline")
    stated = make_run("quick", "baseline", 0, ["model.moe=null", "model.rope_scaling=null", "data.retrieval=null"])
    assert stated.fingerprint == plain.fingerprint
    assert make_run("quick", "baseline", 0, ["model.context_length=256"]).fingerprint != plain.fingerprint
    content = plain.model_dump()
    for key, value in BEFORE.items():  # a key that is not there would leave nothing out
        *section, name = key.split(".")
        assert (content[section[0]] if section else content)[name] == value
