"""The claims: every verdict from planted runs, and the rule that gives it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from gatebench.report.analysis.claim_tests import AtHighestRate, Compare, Ranks, Same, Sensitivity, Sink, Speed
from gatebench.report.analysis.claims import (
    CLAIMS,
    Claim,
    ClaimResult,
    ClaimVerdict,
    Evidence,
    evaluate,
    judge,
    verdict,
)
from gatebench.report.analysis.lr_curves import LEARNING_RATE
from gatebench.report.read import results
from gatebench.report.tables import claims_table
from gatebench.sweep.study import load_study
from tests.report.synthetic_runs import diverged, summary, uniform_floor

FLOOR = uniform_floor()
NOISE = (0.11, -0.07, 0.02, -0.06)


def frame(
    ppl: dict[str, float], *, n_seeds: int = 4, changes: Callable[[str, int], dict[str, Any]] = lambda name, seed: {}
) -> pd.DataFrame:
    """Runs of each variant at this Avg PPL plus a little that differs by seed and variant."""
    rows = []
    for index, (name, value) in enumerate(ppl.items()):
        for seed in range(n_seeds):
            noise = (1 + 0.13 * index) * NOISE[(seed + index) % 4] if index else 0.0
            rows.append(summary(name, seed, value + 2 * seed + noise, **changes(name, seed)))
    return results.as_frame(rows).assign(setting="")


def claim(name: str) -> Claim:
    return next(item for item in CLAIMS if item.id == name)


POSITIONS = {"baseline": 170.0, "g1_elementwise": 160.0, **{f"g{n}_elementwise": 168.0 for n in (2, 3, 4, 5)}}


@pytest.mark.parametrize(
    ("ppl", "n_seeds", "expected"),
    [
        (POSITIONS, 4, "supported"),
        ({**POSITIONS, "g3_elementwise": 150.0}, 4, "contradicted"),
        ({**POSITIONS, "g4_elementwise": 160.0}, 4, "not resolvable"),
        ({name: value for name, value in POSITIONS.items() if name != "g5_elementwise"}, 4, "not resolvable"),
        (POSITIONS, 1, "not resolvable"),
        ({"baseline": 170.0, "g1_headwise": 160.0}, 4, "not tested"),
    ],
    ids=["all better", "one worse", "one alike", "one missing", "one seed", "other variants"],
)
def test_every_verdict_of_a_claim_about_perplexity(ppl: dict[str, float], n_seeds: int, expected: ClaimVerdict) -> None:
    result = judge(claim("C1"), {"table1": frame(ppl, n_seeds=n_seeds)})
    assert result.verdict == expected


def test_without_results_no_claim_is_tested() -> None:
    found = evaluate({})
    assert [result.claim.id for result in found] == [f"C{n}" for n in range(1, len(CLAIMS) + 1)]
    assert {result.verdict for result in found} == {"not tested"}
    assert all(result.claim.studies and result.claim.tests for result in found)


def test_a_study_that_the_claim_does_not_name_is_no_evidence() -> None:
    assert judge(claim("C1"), {"table6": frame(POSITIONS)}).verdict == "not tested"


def test_a_flag_that_blocks_leaves_a_claim_unresolved() -> None:
    runs = frame(
        POSITIONS, changes=lambda name, seed: {"curve_hash": f"same{seed}"} if name != "g2_elementwise" else {}
    )
    result = judge(claim("C1"), {"table1": runs})
    assert result.verdict == "not resolvable"
    assert "the variant changed nothing" in result.evidence[0].text and math.isnan(result.evidence[0].p)


def sinks(excess: dict[str, float]) -> Callable[[str, int], dict[str, Any]]:
    def changes(name: str, seed: int) -> dict[str, Any]:
        value = excess[name] * (1 + 0.01 * NOISE[seed] * 10)
        return {"first_token_excess": value, "first_token_share": value * FLOOR}

    return changes


SINKS = {
    "baseline": 7.0, "g1_elementwise": 1.1, "g1_headwise": 1.3, "g2_elementwise": 5.0, "g1_elementwise_shared": 4.0,
    "g1_elementwise_ns_sigmoid": 6.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("excess", "expected"),
    [
        (SINKS, "supported"),
        ({**SINKS, "g1_elementwise": 6.5}, "contradicted"),
        ({**SINKS, "g2_elementwise": 1.0}, "contradicted"),
        ({**SINKS, "g1_headwise": 2.0}, "not resolvable"),
        ({**SINKS, "baseline": 1.2}, "not tested"),
    ],
    ids=["as in the paper", "G1 keeps it", "G2 loses it", "on the threshold", "no sink to remove"],
)
def test_every_verdict_of_the_claim_about_sinks(excess: dict[str, float], expected: ClaimVerdict) -> None:
    runs = frame(dict.fromkeys(excess, 150.0), changes=sinks(excess))
    assert judge(claim("C8"), {"sinks": runs}).verdict == expected


def test_a_shared_gate_that_is_the_specific_one_says_nothing_about_sharing() -> None:
    alike = {**SINKS, "g1_elementwise_shared": 1.1}  # the sink lab has one head

    def changes(name: str, seed: int) -> dict[str, Any]:
        twin = {"curve_hash": f"one{seed}"} if name in ("g1_elementwise", "g1_elementwise_shared") else {}
        return sinks(alike)(name, seed) | twin

    one_head = frame(dict.fromkeys(alike, 150.0), changes=changes)
    result = judge(claim("C8"), {"sinks": one_head})
    assert result.verdict == "not resolvable"
    (shared,) = (e for e in result.evidence if e.test.text.startswith("g1_elementwise_shared"))
    assert shared.text == "no test: here it is g1_elementwise to the last bit"
    assert judge(claim("C8"), {"sinks": frame(dict.fromkeys(alike, 150.0), changes=sinks(alike))}).verdict == (
        "contradicted"
    )
    two_heads = frame(dict.fromkeys(SINKS, 150.0), changes=sinks(SINKS))
    assert judge(claim("C8"), {"sinks": one_head, "sinks_two_heads": two_heads}).verdict == "supported"


def test_two_names_of_one_model_are_one_row_of_a_rank() -> None:
    gate = {"g1_headwise": 0.1, "g1_elementwise": 0.2, "g1_elementwise_shared": 0.2, "g2_headwise": 0.4}
    excess = {"baseline": 8.0, **{name: 1 + 6 * score for name, score in gate.items()}}

    def changes(name: str, seed: int) -> dict[str, Any]:
        twin = {"curve_hash": f"one{seed}"} if "elementwise" in name else {}
        return sinks(excess)(name, seed) | {"gate_mean": gate.get(name)} | twin

    found = Ranks("gate_mean", "first_token_share").run(frame(dict.fromkeys(excess, 150.0), changes=changes))
    assert found is not None and found.n == 3


def test_the_rank_of_six_variants_is_resolved_and_that_of_three_is_not() -> None:
    gate = {f"g1_elementwise_floor0p{n}": n / 10 for n in range(1, 7)}
    excess = {"baseline": 8.0, **{name: 1 + 6 * score for name, score in gate.items()}}

    def changes(name: str, seed: int) -> dict[str, Any]:
        return sinks(excess)(name, seed) | {"gate_mean": gate.get(name)}

    runs = frame(dict.fromkeys(excess, 150.0), changes=changes)
    found = Ranks("gate_mean", "first_token_share").run(runs)
    assert found is not None and found.n == 6 and found.agrees
    assert found.p == pytest.approx(2 / 720)  # of the 720 orders, the same and the reverse are as extreme
    three = Ranks("gate_mean", "first_token_share", tuple(list(gate)[:3])).run(runs)
    assert three is not None and three.p == pytest.approx(2 / 6)


def rates(losses: dict[str, dict[str, float | None]]) -> pd.DataFrame:
    """Runs at several learning rates; None is a run that diverged."""
    rows = []
    for index, (name, by_rate) in enumerate(losses.items()):
        for at, (rate, loss) in enumerate(by_rate.items()):
            for seed in range(4):
                noise = 0.01 * (1 + 0.13 * index) * NOISE[(seed + index + at) % 4]
                row = diverged(name, seed, 30) if loss is None else summary(name, seed, 150.0)
                row |= {
                    "overrides": f"optim.lr={rate}",
                    "setting": f"optim.lr={rate}",
                    "run": f"{name}-{rate}-{seed}",
                }
                row |= {} if loss is None else {"micro_ppl": math.exp(loss + noise)}
                rows.append(row)
    return results.as_frame(rows)


TABLE2: dict[str, dict[str, float | None]] = {
    "baseline": {"1e-3": 5.0, "3e-3": 5.1, "1e-2": None},
    "g1_elementwise": {"1e-3": 5.0, "3e-3": 4.9, "1e-2": 5.0},
    "g1_headwise": {"1e-3": 5.0, "3e-3": 4.95, "1e-2": 5.05},
    "sandwich_norm": {"1e-3": 5.0, "3e-3": 5.0, "1e-2": 5.2},
    "clip300": {"1e-3": 5.0, "3e-3": 5.1, "1e-2": None},
    "clip100": {"1e-3": 5.0, "3e-3": 5.1, "1e-2": 7.0},
}


def test_lr_sensitivity_is_wortsmans_with_divergence_as_the_uniform_loss() -> None:
    found = Sensitivity("g1_elementwise").run(rates(TABLE2))
    # baseline: mean(5, 5.1, ln 4096 = 8.3178) - 5 = 1.1393; gate: mean(5, 4.9, 5) - 4.9 = 0.0667.
    assert found is not None and found.agrees and found.n == 4
    assert found.text.startswith("0.0667 against 1.139")
    assert found.p < 1e-6


def test_claims_about_learning_rates() -> None:
    found = {result.claim.id: result for result in evaluate({"table2": rates(TABLE2)})}
    assert found["C10"].verdict == "supported" and found["C11"].verdict == "supported"
    reverse = {**TABLE2, "baseline": {"1e-3": 5.0, "3e-3": 4.99, "1e-2": 5.0}}
    assert judge(claim("C10"), {"table2": rates(reverse)}).verdict == "contradicted"
    assert AtHighestRate("sandwich_norm", "baseline").run(frame(POSITIONS)) is None


def test_the_documentation_names_the_studies_of_each_claim() -> None:
    page = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| C")]
    assert {row[0][2:]: row[2] for row in rows} == {item.id: ", ".join(item.studies) for item in CLAIMS}


def test_studies_of_learning_rates_name_one_in_every_setting() -> None:
    names = {name for item in CLAIMS if any(test.over_rates for test in item.tests) for name in item.studies}
    assert names == {"table2", "lr_sensitivity"}
    for combination in (found for name in names for found in load_study(name).combinations()):
        assert LEARNING_RATE in combination.settings


def test_a_small_difference_keeps_two_digits_of_its_interval() -> None:
    runs = frame({"baseline": 9.3, "g1_elementwise": 9.3})
    noise = [
        0.001 * NOISE[seed] * (name != "baseline") for name, seed in zip(runs["variant"], runs["seed"], strict=True)
    ]
    found = Compare("avg_ppl", "g1_elementwise").run(runs.assign(avg_ppl=[9.3 + value for value in noise]))
    # sd of the noise 0.0816, t(0.975, 3) = 3.182: half-width 0.000130
    assert found is not None
    assert found.text == "9.30000 against 9.30000, difference 0.00000 (95 % interval -0.00013 to 0.00013), 4 seeds"


def test_a_blocked_comparison_names_what_it_is_with() -> None:
    runs = frame({"g2_elementwise": 150.0, "g1_elementwise": 149.0}, changes=lambda name, seed: {"bos": name[1] == "1"})
    found = Compare("avg_ppl", "g1_elementwise", "g2_elementwise").run(runs)
    assert found is not None and math.isnan(found.p)
    assert found.text.startswith("no test: g1_elementwise and g2_elementwise were measured differently (bos)")


def test_equivalence_and_speed() -> None:
    runs = frame({"baseline": 150.0, "g1_headwise": 150.1, "g1_elementwise": 140.0})
    same, far = Same("avg_ppl", "g1_headwise", 0.01).run(runs), Same("avg_ppl", "g1_elementwise", 0.01).run(runs)
    assert same is not None and same.agrees and same.p < 0.001
    assert far is not None and not far.agrees and far.p < 0.001
    slow = frame(
        {"baseline": 150.0, "g1_headwise": 150.0},
        changes=lambda name, seed: {"tokens_per_s": 10_000.0 + 10 * seed - (500 + seed if name != "baseline" else 0)},
    )
    found = Speed("g1_headwise", 0.98).run(slow)
    assert (
        found is not None
        and not found.agrees
        and found.p < 0.001
        and found.text.startswith("share of the baseline's speed 0.950")
    )
    elsewhere = Speed("g1_headwise", 0.98).run(
        slow.assign(machine=["faster" if name == "baseline" else "slower" for name in slow["variant"]])
    )
    assert elsewhere is not None and math.isnan(elsewhere.p) and elsewhere.text.startswith("no test: other machines")


def test_a_change_between_conditions_is_a_difference_of_differences() -> None:
    def changes(name: str, seed: int) -> dict[str, Any]:
        gain = 35.0 if name != "baseline" else 0.0
        stretched = {f"ruler_yarn/{n}x": 38.0 + seed + gain + NOISE[seed] * (gain > 0) for n in (1, 4)}
        return {"ruler/1x": 79.5 + seed, **stretched}

    runs = frame({"baseline": 150.0, "g1_elementwise": 150.0}, changes=changes)
    found = Compare("ruler_yarn/1x", "g1_elementwise", expected="higher", minus="ruler/1x").run(runs)
    assert found is not None and found.agrees and found.p < 0.001
    assert judge(claim("C12"), {"table5": runs}).verdict == "supported"


def test_the_rule_needs_every_test_and_bears_no_contradiction() -> None:
    tests = (Compare("avg_ppl", "a"), Compare("avg_ppl", "b"))
    two = Claim("X", "0", "text", "paper", ("s",), tests)

    def evidence(*outcomes: tuple[int, Any]) -> list[Evidence]:
        return [Evidence(tests[i], "s", "", "f", "", 0.01, 0.01, outcome) for i, outcome in outcomes]

    assert verdict(two, evidence((0, "for"), (1, "for"), (1, "not resolved"))) == "supported"
    assert verdict(two, evidence((0, "for"))) == "not resolvable"
    assert verdict(two, evidence((0, "for"), (1, "for"), (1, "against"))) == "contradicted"
    assert verdict(two, []) == "not tested"


def test_tests_in_the_same_words_are_told_apart() -> None:
    tests = (Sink("g1_headwise", there=False), Sink("g1_headwise", there=False, unlike="g1_elementwise"))
    assert tests[0].text == tests[1].text
    two = Claim("X", "0", "text", "paper", ("s",), tests)
    evidence = (Evidence(tests[0], "s", "", "f", "", 0.01, 0.01, "for"),)
    assert verdict(two, evidence) == "not resolvable"
    assert ClaimResult(two, "not resolvable", evidence, ()).missing == (tests[1].text,)


def test_holm_is_over_all_tests_of_a_claim() -> None:
    result = judge(claim("C1"), {"table1": frame(POSITIONS)})
    assert len(result.evidence) == 5
    least = min(result.evidence, key=lambda item: item.p)
    assert least.p_adjusted == pytest.approx(5 * least.p)


def test_forms_name_files_verdicts_and_scale() -> None:
    found = claims_table.document(evaluate({"table1": frame(POSITIONS)}))
    text = found.to_markdown()
    assert "results/table1/runs.csv" in text and "table1: 2.38 M parameters, 4.92 M tokens, 4 seeds" in text
    data = json.loads(found.to_json())
    assert [item["claim"] for item in data["claims"]] == [f"C{n}" for n in range(1, len(CLAIMS) + 1)]
    assert (
        data["claims"][0]["verdict"] == "supported"
        and data["claims"][0]["evidence"][0]["file"] == "results/table1/runs.csv"
    )
    assert len(found.frame) >= 16


def test_a_sink_is_judged_only_with_the_baseline_beside_it() -> None:
    runs = frame({"g1_headwise": 150.0}, changes=sinks({"g1_headwise": 1.0}))
    assert Sink("g1_headwise", there=False).run(runs) is None
