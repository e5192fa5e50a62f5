"""The factor analysis: planted effects come back, and no others."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gatebench.errors import UserError
from gatebench.gatespec import factorial
from gatebench.report.analysis import factors
from gatebench.report.figures import factors_figure
from gatebench.report.read import results
from gatebench.report.tables import factors_table
from tests.report.synthetic_runs import diverged, summary

POSITION = {"g1": -3.0, "g2": -1.0, "g3": 1.0, "g4": 1.0, "g5": 2.0}


def grid(noise: float = 0.2, n_seeds: int = 3, left_out: tuple[str, ...] = ()) -> pd.DataFrame:
    """Every gate of the factorial: percent effects on ln(Avg PPL) as stated in the tests below, and a baseline."""
    rng = np.random.default_rng(0)
    rows = [summary("baseline", seed, 150.0) for seed in range(n_seeds)]
    for gate in factorial():
        for seed in range(n_seeds):
            percent = 100 * math.log(150) + POSITION[gate.position] + 2.0 * seed + rng.normal(0, noise)
            if gate.position != "g5":
                percent += -1.0 * (gate.granularity == "elementwise") + 1.5 * gate.shared
                percent += 2.0 * (gate.position == "g1" and gate.shared)
            percent += 0.5 * (gate.mode == "additive")
            row = summary(gate.name, seed, math.exp(percent / 100))
            rows.append(diverged(gate.name, seed, 9) if gate.name in left_out else row)
    return results.as_frame(rows)


@pytest.fixture(scope="module")
def found() -> factors.FactorAnalysis:
    return factors.analyse(grid())


def effect(analysis: factors.FactorAnalysis, factor: str, start: str) -> factors.Effect:
    (one,) = (e for e in analysis.effects if e.factor == factor and e.level.startswith(start))
    return one


def test_planted_effects_are_within_their_intervals_and_resolved(found: factors.FactorAnalysis) -> None:
    # Over G1 to G4 granularity takes 0.5 off and sharing adds 0.75 + 0.25 (on average over positions) to a position's
    # level, and another 0.75 to G1's; G5 has none of it. Mean of (-3, -1, 1, 1, 2) is 0.
    planted = {
        ("granularity", "elementwise"): -1.0,
        ("sharing", "shared"): 2.0,
        ("mode", "additive"): 0.5,
        ("position x sharing", "shared at g1"): 1.5,
        ("position x sharing", "shared at g2"): -0.5,
    }
    for (factor, level), value in planted.items():
        one = effect(found, factor, level)
        assert one.low < value < one.high and one.resolved, (factor, level, one)


def test_what_was_not_planted_is_not_found(found: factors.FactorAnalysis) -> None:
    planted = {"position", "granularity", "sharing", "mode", "position x sharing"}
    assert [e.factor for e in found.effects if e.resolved and e.factor not in planted] == []
    assert not effect(found, "activation", "silu").resolved


def test_seeds_are_blocks_and_the_residual_is_the_noise(found: factors.FactorAnalysis) -> None:
    assert found.residual_percent == pytest.approx(0.2, rel=0.15)
    assert (found.n_runs, found.n_variants, found.n_left_out) == (204, 68, 0)
    # 204 runs less 1 + 2 seeds + 4 positions + 4 factors + 3 + 3 + 4 + 4 with the position + 6 pairs = 31.
    assert found.degrees == 204 - 31


def test_the_effects_of_a_factor_over_positions_add_up_to_zero(found: factors.FactorAnalysis) -> None:
    for factor in ("position", *(f"position x {name}" for name in factors.TWO_LEVELS)):
        assert sum(e.percent for e in found.effects if e.factor == factor) == pytest.approx(0, abs=1e-9)


def test_a_diverged_gate_is_left_out_and_said(tmp_path: Path) -> None:
    found = factors.analyse(grid(left_out=("g3_headwise",)))
    assert found.n_left_out == 3 and "3 diverged" in factors_table.document(found).to_markdown()


def test_a_gate_with_a_temperature_is_no_cell_of_the_factorial() -> None:
    names = ["baseline", "g1_headwise", "g1_headwise_temp2", "g1_headwise_floor0p1", "g1_headwise_from_key"]
    assert list(factors.factorial_gates(names)) == ["g1_headwise"]


def test_an_untrained_gate_is_left_out() -> None:
    frame = grid()
    frame.loc[frame["variant"] == "g3_headwise", "final_train_loss"] = 0.99 * math.log(4096)
    assert factors.analyse(frame).n_left_out == 3


def test_a_grid_half_finished_has_no_analysis_yet() -> None:
    frame = grid()
    one_of_g5 = frame[~frame["variant"].str.startswith("g5_") | (frame["variant"] == "g5_elementwise")]
    assert not factors.is_factorial(one_of_g5)  # mode at G5 was not run
    with pytest.raises(UserError, match="runs of 65 gates do not determine 31 numbers"):
        factors.analyse(one_of_g5)
    assert factors.is_factorial(frame)


def test_pure_noise_resolves_next_to_nothing() -> None:
    rng = np.random.default_rng(1)
    rows = [summary(g.name, s, 150 * math.exp(rng.normal(0, 0.01))) for g in factorial() for s in range(3)]
    assert sum(e.resolved for e in factors.analyse(results.as_frame(rows)).effects) == 0


def test_too_few_gates_are_refused() -> None:
    frame = results.as_frame([summary(name, 0, 150.0) for name in ("baseline", "g1_headwise", "g2_headwise")])
    assert not factors.is_factorial(frame)
    with pytest.raises(UserError, match="factors: 2 gates of the factorial have runs; legal: 12 or more"):
        factors.analyse(frame)


def test_the_files_are_the_same_twice(found: factors.FactorAnalysis, tmp_path: Path) -> None:
    first, second = (
        factors_table.document(found).write(folder) + factors_figure.write(found, folder)
        for folder in (tmp_path / "a", tmp_path / "b")
    )
    suffixes = ("md", "csv", "json", "tex", "html", "png", "pdf", "svg")
    assert [path.name for path in first] == [f"factors.{suffix}" for suffix in suffixes]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
