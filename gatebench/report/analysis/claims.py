"""The paper's claims, each with the tests that bear on it, and their verdicts from what `results/` holds.

A claim is a list of tests. Each is made in every study named, under every setting, whose runs have what it needs; Holm
adjusts the p values of all tests of the claim together. The rule:

- *contradicted*: some test is resolved (adjusted p below 0.05) against the claim;
- *supported*: none is, and every test is resolved in favour of it in some study;
- *not tested*: no run bears on it;
- *not resolvable*: anything else.

A verdict is about the scale of the runs that gave it, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from gatebench.paths import project_root
from gatebench.recipes import settings_of_text
from gatebench.report.analysis.claim_tests import (
    AtHighestRate,
    ClaimTest,
    Compare,
    Found,
    Ranks,
    Same,
    Sensitivity,
    Sink,
    Speed,
)
from gatebench.report.analysis.lr_curves import LEARNING_RATE
from gatebench.report.analysis.stats import ALPHA, holm
from gatebench.report.read import committed_frames as compact
from gatebench.report.text import scale

ClaimVerdict = Literal["supported", "contradicted", "not resolvable", "not tested"]
Outcome = Literal["for", "against", "not resolved"]

EL, HW = "g1_elementwise", "g1_headwise"
GRID = ("table1", "factorial", "full_grid")
SINKS = ("sinks", "sinks_two_heads", "table4")
FLOORS = (EL, *(f"{EL}_{word}" for word in ("floor0p1", "floor0p25", "ns_sigmoid", "floor0p75", "floor0p9")))


@dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    id: str
    section: str
    text: str
    paper: str
    """The paper's evidence."""
    studies: tuple[str, ...]
    """Studies (files of `ablations/`) that test it."""
    tests: tuple[ClaimTest, ...]


@dataclass(frozen=True)
class Evidence:
    """One test of a claim in the runs of one study and setting."""

    test: ClaimTest
    study: str
    setting: str
    file: str
    """Relative to the project."""
    text: str
    p: float
    p_adjusted: float
    outcome: Outcome


@dataclass(frozen=True)
class ClaimResult:
    """A claim with what was found about it."""

    claim: Claim
    verdict: ClaimVerdict
    evidence: tuple[Evidence, ...]
    scales: tuple[str, ...]
    """Of the studies that gave evidence."""

    @property
    def missing(self) -> tuple[str, ...]:
        """What the tests expect that no run bears on."""
        tested = {item.test for item in self.evidence}
        return tuple(test.text for test in self.claim.tests if test not in tested)


def _lower(*variants: str, than: str = "baseline") -> tuple[Compare, ...]:
    return tuple(Compare("avg_ppl", name, than) for name in variants)


def _beats(*others: str) -> tuple[Compare, ...]:
    return tuple(Compare("avg_ppl", EL, other) for other in others)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "C1", "3.2.1", "A head-specific sigmoid gate at G1 lowers perplexity more than at any other position",
        "Table 1: 6.026 to 5.761; G2 5.820; G3, G4 and G5 5.981 to 6.017", GRID,
        _beats("baseline", *(f"g{n}_elementwise" for n in (2, 3, 4, 5))),
    ),
    Claim(
        "C2", "3.2.1", "The G1 gate beats spending as many parameters on KV heads or query heads",
        "Table 1, rows 2 to 4: 5.953 to 5.979", ("table1", "table1_matched", "full_grid"),
        _beats("kv_heads_x2", "q_heads_x1p5"),
    ),
    Claim(
        "C3", "3.2.1", "Head-specific scores matter more than granularity: headwise keeps the gain, sharing loses some",
        "Table 1, rows 10 to 13", GRID,
        (
            *_lower(HW, "g2_headwise"),
            *_lower(HW, than=f"{EL}_shared"),
            *_lower("g2_headwise", than="g2_elementwise_shared"),
        ),
    ),
    Claim(
        "C4", "3.2.1", "Multiplying beats adding, and the sigmoid beats SiLU",
        "Table 1, rows 14 and 15", GRID, _beats(f"{EL}_additive_silu", f"{EL}_silu"),
    ),
    Claim(
        "C5", "4.1", "Any non-linearity between value and output projection helps, and a gate after both cannot",
        "Table 3", ("table3", *GRID),
        (*_lower(EL, "g2_elementwise", f"{EL}_additive_silu", "g1_rmsnorm", "g1_silu_only"), *_beats("g5_elementwise")),
    ),
    Claim(
        "C6", "4.2, 4.3", "Effective gates are sparse by input: the mean score ranks sinks and massive activations",
        "Table 4: rank correlation 1.0 over six rows", (*SINKS, "floors"),
        (
            Ranks("gate_mean", "first_token_share"), Ranks("gate_mean", "m_act"),
            Ranks("gate_mean", "first_token_share", FLOORS),
        ),
    ),
    Claim(
        "C7", "4.2", "Query-dependence matters: scores at G1 are sparser than at G2 and work better",
        "Table 4, rows 2, 5 and 6", (*SINKS, *GRID, "sources"),
        (Compare("gate_mean", EL, "g2_elementwise"), *_beats("g2_elementwise", f"{EL}_from_key", f"{EL}_from_value")),
    ),
    Claim(
        "C8", "4.3", "A gate at G1 removes the attention sink; at G2, shared, or without sparsity it does not",
        "first-token share 0.467 to 0.048; 0.297, 0.301 and 0.451", SINKS,
        (
            Sink(EL, there=False), Sink(HW, there=False), Sink("g2_elementwise", there=True),
            Sink(f"{EL}_shared", there=True, unlike=EL), Sink(f"{EL}_ns_sigmoid", there=True),
        ),
    ),
    Claim(
        "C9", "4.3", "Massive activations are not necessary for sinks",
        "Table 4, row 5: M-Act 125 with a first-token share of 0.297", SINKS,
        (Compare("m_act", "g2_elementwise"), Sink("g2_elementwise", there=True)),
    ),
    Claim(
        "C10", "3.2.2", "Gates tolerate larger learning rates",
        "Table 2, rows 6 and 10 to 14; loss curves", ("table2", "lr_sensitivity"),
        (Sensitivity(EL), Sensitivity(HW)),
    ),
    Claim(
        "C11", "3.2.2, A.6", "Sandwich norm restores convergence at a large learning rate; clipping does not",
        "Table 2, row 7; clipping at 300 and 100", ("table2", "lr_sensitivity"),
        (AtHighestRate("sandwich_norm", "baseline"), AtHighestRate(EL, "clip300"), AtHighestRate(EL, "clip100")),
    ),
    Claim(
        "C12", "4.4", "Beyond the trained length gates help much more than within it",
        "Table 5: +0.3 to 1.7 within it; +35 at 32k and +27 at 128k after YaRN", ("table5",),
        (
            Compare("ruler_yarn/4x", EL, expected="higher"),  # the paper's 128k, after training at 32k
            Compare("ruler_yarn/1x", EL, expected="higher"),
            Compare("ruler_yarn/1x", EL, expected="higher", minus="ruler/1x"),
        ),
    ),
    Claim(
        "C13", "4.4", "Losing the sink is why extension works: rivals that lose it without a gate extend as well",
        "none; the paper's hypothesis", ("table5", "rivals"),
        (
            Sink("softmax1", there=False), Compare("ruler_yarn/4x", "softmax1", expected="higher"),
            Sink("sink_logits", there=False), Compare("ruler_yarn/4x", "sink_logits", expected="higher"),
        ),
    ),
    Claim(
        "C14", "A.7", "A gate added in continued training neither removes the sink nor helps",
        "text only", ("continued",), (Sink(HW, there=True), Same("avg_ppl", HW, 0.01)),
    ),
    Claim(
        "C15", "3.1", "Gates cost under 2 % of the training time",
        "text only", ("table1", "table1_matched"), (Speed(HW, 0.98), Speed(EL, 0.98)),
    ),
    Claim(
        "C16", "A.1", "What switch heads gain is mostly the gate: one value expert is as good as any",
        "Table 6: 1top1 is best", ("table6",),
        tuple(
            Compare("avg_ppl", "switch_v_1top1", f"switch_{word}")
            for word in ("kv_8top8", "kv_4top4", "v_4top4", "v_8top2")
        ),
    ),
)  # fmt: skip


def evaluate(runs: Mapping[str, pd.DataFrame]) -> list[ClaimResult]:
    """Judge every claim by the runs of each study (frames of ``results.load`` with a column ``setting``)."""
    return [judge(claim, runs) for claim in CLAIMS]


def from_results() -> list[ClaimResult]:
    """Judge every claim by the compact frames below `results/`."""
    return evaluate(committed_runs())


def committed_runs() -> dict[str, pd.DataFrame]:
    """The compact frame of every study that a claim names and that has one."""
    found = {name: compact.read_runs(project_root() / "results" / name) for name in study_names()}
    return {name: frame for name, frame in found.items() if frame is not None and len(frame)}


def study_names() -> list[str]:
    """Every study that some claim names."""
    return list(dict.fromkeys(name for claim in CLAIMS for name in claim.studies))


def judge(claim: Claim, runs: Mapping[str, pd.DataFrame]) -> ClaimResult:
    """Make the claim's tests, adjust their p values together, and apply the rule."""
    made: list[tuple[ClaimTest, str, str, Found]] = []
    scales: list[str] = []
    for study in claim.studies:
        if study not in runs:
            continue
        before = len(made)
        for test in claim.tests:
            for setting, frame in _parts(runs[study], test):
                if (result := test.run(frame)) is not None:
                    made.append((test, study, setting, result))
        if len(made) > before:
            scales.append(_scale(study, runs[study]))
    if not made:
        return ClaimResult(claim, "not tested", (), ())
    adjusted = holm([result.p for *_, result in made])
    evidence = tuple(
        Evidence(
            test, study, setting, (Path("results") / study / compact.RUNS).as_posix(), result.text,
            result.p, p, _outcome(result.agrees, p),
        )
        for (test, study, setting, result), p in zip(made, adjusted, strict=True)
    )  # fmt: skip
    return ClaimResult(claim, verdict(claim, evidence), evidence, tuple(scales))


def verdict(claim: Claim, evidence: Sequence[Evidence]) -> ClaimVerdict:
    """The rule of this module."""
    if not evidence:
        return "not tested"
    if any(item.outcome == "against" for item in evidence):
        return "contradicted"
    supported = {item.test for item in evidence if item.outcome == "for"}
    return "supported" if supported.issuperset(claim.tests) else "not resolvable"


def _parts(frame: pd.DataFrame, test: ClaimTest) -> list[tuple[str, pd.DataFrame]]:
    """The runs under each setting; for a test over learning rates, those that differ in nothing else."""
    labels = frame["setting"]
    if test.over_rates:
        labels = frame["overrides"].map(lambda text: str(settings_of_text(text).without(LEARNING_RATE)))
    return [(str(label), frame[labels == label]) for label in dict.fromkeys(labels)]


def _outcome(agrees: bool, p_adjusted: float) -> Outcome:
    if math.isnan(p_adjusted) or not p_adjusted < ALPHA:
        return "not resolved"
    return "for" if agrees else "against"


def _scale(study: str, frame: pd.DataFrame) -> str:
    """`table1: 2.4 M parameters, 4.9 M tokens, 3 seeds`."""
    n = frame["seed"].nunique()
    sizes = sorted({scale(float(x)) for x in frame["n_params_baseline"].replace(0, pd.NA).dropna()})
    tokens = sorted({scale(float(x)) for x in frame["tokens"]})
    seeds = f"{n} seed{'s' if n != 1 else ''}"
    return f"{study}: {' or '.join(sizes) or '?'} parameters, {' or '.join(tokens)} tokens, {seeds}"
