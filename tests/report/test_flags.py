"""Every flag: what raises it, whether it blocks, and what it says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gatebench.report.analysis.flags import comparison_flags, flag_text, saturated_gates
from gatebench.report.read.probe_files import ProbedRun
from gatebench.report.tables import destination_table
from tests.report.synthetic_runs import diverged, summary


def runs(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame.from_records(list(rows))


BASE = summary("baseline", 0, 168.3)


def flags_of(**changes: Any) -> dict[str, tuple[bool, str]]:
    """Flags of one g1_headwise run with these changes, by code, without the one about parameters."""
    found = comparison_flags(runs(BASE), runs(summary("g1_headwise", 0, 151.8, **changes)), "g1_headwise")
    return {flag.code: (flag.blocking, flag_text(flag)) for flag in found if flag.code != "unequal_parameters"}


def test_two_sound_runs_have_no_flag() -> None:
    assert flags_of() == {}


@pytest.mark.parametrize(
    ("changes", "code", "blocking", "words"),
    [
        ({"curve_hash": BASE["curve_hash"]}, "dead_knob", True, "to the last bit"),
        ({"final_train_loss": 7.49}, "untrained", True, "7.490 is above 0.9 ln(4,096) = 7.486"),
        ({"tokens": 4_000_000}, "unequal_tokens", True, "saw 4,000,000 tokens, the baseline 4,915,200"),
        ({"data_hash": "other"}, "unequal_order", True, "different order"),
        ({"corpus_fingerprint": "beef"}, "other_corpus", True, "beef against c0ffee"),
        ({"eval_tokens/code": 9}, "unequal_evaluation", True, "eval_tokens/code"),
        ({"bos": False}, "unequal_evaluation", True, "(bos)"),
        ({"git_commit": "f" * 40}, "other_code", False, "fffffffff against 012345678"),
        ({"git_dirty": True}, "dirty_tree", False, "uncommitted"),
        ({"precision": "bf16"}, "other_settings", False, "precision bf16 against fp32"),
        ({"threads": 2}, "other_settings", False, "threads 2 against 1"),
    ],
)
def test_one_fault_is_one_flag(changes: dict[str, Any], code: str, blocking: bool, words: str) -> None:
    found = flags_of(**changes)
    assert list(found) == [code]
    assert found[code][0] is blocking
    assert words in found[code][1]


def test_a_reference_other_than_the_baseline_has_its_name() -> None:
    row = summary("g1_elementwise", 0, 144.4, tokens=4_000_000)
    found = comparison_flags(runs(summary("g2_elementwise", 0, 150.0)), runs(row), "g1_elementwise")
    assert "g1_elementwise saw 4,000,000 tokens, g2_elementwise 4,915,200 (seed 0)" in map(flag_text, found)
    assert not any("the baseline" in flag.text for flag in found)


def test_the_loss_that_still_counts_as_trained() -> None:
    assert flags_of(final_train_loss=0.9 * math.log(4096) - 1e-6) == {}


def test_parameters_that_differ_are_told_with_number_and_share() -> None:
    (flag,) = comparison_flags(runs(BASE), runs(summary("g1_elementwise", 0, 144.4)), "g1_elementwise")
    assert (flag.code, flag.blocking) == ("unequal_parameters", False)
    assert flag_text(flag) == (
        "g1_elementwise has +147,456 parameters against the baseline (+6.2 %), not matched (param_match none)"
    )


def test_a_residual_of_matching_is_told() -> None:
    row = summary("g1_elementwise", 0, 144.4, param_match="ffn", n_params=BASE["n_params"] - 24)
    (flag,) = comparison_flags(runs(BASE), runs(row), "g1_elementwise")
    assert "-24 parameters" in flag.text and "left over by param_match ffn" in flag.text


def test_a_diverged_run_blocks_and_says_where() -> None:
    found = comparison_flags(runs(BASE), runs(diverged("g1_headwise", 0, 1037)), "g1_headwise")
    assert [(f.code, flag_text(f)) for f in found if f.blocking] == [
        ("diverged", "g1_headwise diverged at step 1,037 (seed 0)")
    ]


def test_an_untrained_baseline_blocks_too() -> None:
    base = summary("baseline", 0, 168.3, final_train_loss=8.3)
    found = comparison_flags(runs(base), runs(summary("g1_headwise", 0, 151.8)), "g1_headwise")
    assert [f.code for f in found if f.blocking] == ["untrained"]


def test_a_seed_without_a_baseline_blocks_and_one_without_a_variant_does_not() -> None:
    ours = runs(summary("g1_headwise", 0, 151.8), summary("g1_headwise", 1, 151.3))
    theirs = runs(BASE, summary("baseline", 2, 170.0))
    found = {f.code: (f.blocking, f.seeds) for f in comparison_flags(theirs, ours, "g1_headwise")}
    assert found["baseline_missing"] == (True, (1,))
    assert found["variant_missing"] == (False, (2,))


def test_one_curve_at_two_seeds_is_no_second_sample() -> None:
    theirs = runs(summary("baseline", 0, 168.3, curve_hash="x"), summary("baseline", 1, 168.3, curve_hash="x"))
    ours = runs(summary("g1_headwise", 0, 151.8), summary("g1_headwise", 1, 151.3))
    found = [f for f in comparison_flags(theirs, ours, "g1_headwise") if f.blocking]
    assert [(f.code, f.seeds) for f in found] == [("repeated_curve", (0, 1))]


def test_one_fault_at_several_seeds_is_told_once() -> None:
    theirs = runs(*(summary("baseline", seed, 168.3) for seed in (0, 1)))
    ours = runs(*(summary("g1_headwise", seed, 151.8, precision="bf16") for seed in (0, 1)))
    texts = [flag_text(f) for f in comparison_flags(theirs, ours, "g1_headwise") if f.code == "other_settings"]
    assert len(texts) == 1 and texts[0].endswith("(seeds 0, 1)")


def probed(variant: str, at_end: float, logit: float) -> ProbedRun:
    """Two layers of two heads that are as they should be, but for the second head of the first layer."""
    usual = {"mean": np.full((2, 2), 0.45), "at_end": np.full((2, 2), 0.05), "abs_logit": np.full((2, 2), 1.2)}
    for name, value in {"mean": 0.30, "at_end": at_end, "abs_logit": logit}.items():
        usual[name][0, 1] = value
    arrays = {f"gate_g1_head_{name}": values for name, values in usual.items()}
    return ProbedRun("x", variant, 3, {}, {**arrays, "gate_g1_mean": np.full(2, 0.4)})


def test_a_saturated_gate_is_named_by_layer_and_head_and_blocks_nothing() -> None:
    (flag,) = saturated_gates(probed("g1_headwise", 0.55, 16.0))
    assert (flag.code, flag.blocking, flag.seeds) == ("saturated_gate", False, (3,))
    assert flag_text(flag) == (
        "g1_headwise: gate g1 of layer 1, head 2 is saturated: mean |pre-activation| 16.0, 55% of its scores below 0.1 "
        "or above 0.9, mean score 0.30 (seed 3)"
    )


@pytest.mark.parametrize(
    ("variant", "at_end", "logit"),
    [("g1_headwise", 0.55, 7.9), ("g1_headwise", 0.49, 16.0), ("g1_headwise_tanh", 0.55, 16.0)],
)
def test_what_is_no_saturated_gate(variant: str, at_end: float, logit: float) -> None:
    """A small logit is sparse and still learns; few ends are outliers; 0.1 and 0.9 are no ends of a tanh."""
    assert saturated_gates(probed(variant, at_end, logit)) == []


def test_a_saturated_gate_is_in_every_form_of_the_table_of_a_probe() -> None:
    flag = saturated_gates(probed("g1_headwise", 0.55, 16.0))
    summary = {"corpus": "made_up", "bos": True, "seq_len": 8, "probe_tokens": 64}
    document = destination_table.document([], [ProbedRun("x", "g1_headwise", 3, summary, {})], flag)
    for form in (document.to_markdown(), document.to_latex(), document.to_html()):
        assert "layer 1, head 2 is saturated" in form
