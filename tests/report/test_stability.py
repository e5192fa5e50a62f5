"""Spikes, LR sensitivity, best and largest stable learning rates, fair tuning: against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest

from gatebench.report.analysis.lr_curves import LrCurve, against_baseline, lr_curves, lr_sensitivity, optimum
from gatebench.report.analysis.spikes import OLMO2, OLMO_CORE, RULES, SpikeRule, score, spike_indices, steps
from gatebench.report.read.results import as_frame
from gatebench.report.tables.fair_tuning_table import chosen_rates, fair_rows
from tests.report.synthetic_runs import diverged, summary

CEILING = math.log(4096)


def noisy_curve(n: int, seed: int = 0) -> np.ndarray:
    """A loss curve: a fall and noise without an outlier (uniform, so never beyond 1.8 sigma of a window)."""
    t = np.arange(n)
    return 4 + 4 * np.exp(-t / 200) + np.random.default_rng(seed).uniform(-0.1, 0.1, n)


@pytest.mark.parametrize("rule", RULES)
def test_injected_spikes_are_all_found_and_nothing_else(rule: SpikeRule) -> None:
    curve = noisy_curve(4000)
    assert not len(spike_indices(curve, rule))
    at = [1500, 1501, 2222, 3999]
    curve[at] += [3.0, 9.0, 3.0, 3.0]
    assert list(spike_indices(curve, rule)) == at


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "curve",
    [np.full(3000, 0.1), np.linspace(8, 3, 3000), 3 + 5 * np.exp(-np.arange(3000) / 300), noisy_curve(3000)],
    ids=["constant", "line", "exponential", "noisy"],
)
def test_smooth_curves_have_no_spike(rule: SpikeRule, curve: np.ndarray) -> None:
    assert not len(spike_indices(curve, rule))


def test_a_value_is_judged_by_the_window_before_it_without_itself() -> None:
    before = np.tile([1.0, 3.0], 64)  # mean 2, population sigma 1
    assert list(spike_indices([*before, 8.0], OLMO_CORE)) == []  # at 6 sigma: more is asked for
    assert list(spike_indices([*before, 8.001], OLMO_CORE)) == [128]
    assert list(spike_indices([*before[1:], 100.0], OLMO_CORE)) == []  # only 127 values before it
    long = np.tile([1.0, 3.0], 500)
    assert list(spike_indices([*long, 9.0], OLMO2)) == [1000]  # at least 7 sigma
    assert list(spike_indices([*long, 8.99], OLMO2)) == []
    assert list(spike_indices([*long, -5.0], OLMO2)) == [1000]  # two-sided
    assert list(spike_indices([*before, -50.0], OLMO_CORE)) == []  # above alone


def test_values_that_are_not_finite_are_passed_over() -> None:
    before = list(np.tile([1.0, 3.0], 64))
    curve = [*before[:64], math.nan, *before[64:], math.inf, 9.0]
    assert list(spike_indices(curve, OLMO_CORE)) == [130]


def test_score_is_the_share_of_steps_with_a_spike() -> None:
    frame = pd.DataFrame({"steps": [500, 500], "run_dir": ["", ""]})
    frame = frame.assign(**{"spikes_6s_128/loss": ["200 300", ""], "spikes_6s_128/grad_norm": ["300", "400.0"]})
    assert score(frame, OLMO_CORE, ["loss"]) == 2 / 1000
    assert score(frame, OLMO_CORE) == 3 / 1000  # steps 200 and 300 of the first run, 400 of the second
    assert math.isnan(score(frame.assign(**{"spikes_7s_1000/loss": ["", ""]}), OLMO2, ["loss"]))
    assert steps("12 30") == [12, 30] and steps(float("nan")) == [] and steps(12.0) == [12] and steps("") == []


def test_lr_sensitivity_of_a_table_by_hand() -> None:
    """Seed 0: mean of 4, 3, 5, 8 minus 3 = 2. Seed 1: mean of 4, 4, 4, 8 minus 4 = 1. Seed 2 lacks a rate."""
    losses = pd.DataFrame(
        [[4.0, 3.0, 5.0, 8.0], [4.0, 4.0, 4.0, 8.0], [4.0, math.nan, 4.0, 8.0]], columns=[1e-3, 1e-2, 1e-1, 1.0]
    )
    assert lr_sensitivity(losses).to_dict() == {0: 2.0, 1: 1.0}


def test_optimum_is_the_lowest_point_of_the_parabola_over_log_lr() -> None:
    rates = [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
    losses = pd.Series([2 + (math.log(r) - math.log(2e-3)) ** 2 for r in rates], rates)
    assert optimum(losses) == pytest.approx(2e-3, rel=1e-9)
    assert optimum(losses.loc[[3e-3, 1e-2, 3e-2]]) == 3e-3  # at the end of the range
    assert optimum(pd.Series([1.0, 1.0, 1.0], [1e-3, 1e-2, 1e-1])) == 1e-3


def run(variant: str, seed: int, lr: float, loss: float | None, **changes: object) -> dict[str, object]:
    """A run at a learning rate with this held-out loss; None is one that diverged at step 77."""
    row = diverged(variant, seed, 77) if loss is None else summary(variant, seed, math.exp(loss))
    ppl = {} if loss is None else {"micro_ppl": math.exp(loss)}
    return {**row, "run": f"{variant}-{seed}-{lr}", "overrides": f"optim.lr={lr}", **ppl, **changes}


def curves_of(losses: Mapping[str, Mapping[float, list[float | None]]]) -> list[LrCurve]:
    """Losses by variant and learning rate, a value a seed."""
    rows = [
        run(variant, seed, lr, loss)
        for variant, by_rate in losses.items()
        for lr, values in by_rate.items()
        for seed, loss in enumerate(values)
    ]
    return lr_curves(as_frame(rows), list(losses), {})


BASELINE: dict[float, list[float | None]] = {
    1e-3: [5.0, 5.1, 5.2],
    1e-2: [4.0, 4.1, 4.2],
    1e-1: [4.3, 4.4, 4.5],
    1.0: [6.0, None, 6.2],
}


def test_a_diverged_run_counts_as_ln_v_and_is_never_the_best() -> None:
    (curve,) = curves_of({"baseline": BASELINE})
    assert curve.ceiling == pytest.approx(CEILING)
    assert curve.diverged == {(1, 1.0)}
    assert curve.losses.at[1, 1.0] == pytest.approx(CEILING)
    assert curve.sensitivity[1] == pytest.approx((5.1 + 4.1 + 4.4 + CEILING) / 4 - 4.1)
    assert curve.best == 1e-2 and not curve.at_edge
    worse_than_nothing = curves_of({"baseline": {**BASELINE, 1.0: [11.0, 11.0, 11.0]}})[0]
    assert worse_than_nothing.losses.at[0, 1.0] == pytest.approx(CEILING)  # min(loss, loss_0)


def test_largest_stable_rate() -> None:
    """Training gains 4.2 to 4.3 nats at the best rate: losing 0.3 is stable, 0.5 is not, and neither is divergence."""
    (curve,) = curves_of({"baseline": BASELINE})
    assert curve.largest_stable == 1e-1
    assert curves_of({"baseline": {**BASELINE, 1e-1: [4.3, 4.6, 4.5]}})[0].largest_stable == 1e-2
    assert curves_of({"baseline": {**BASELINE, 1e-1: [4.3, None, 4.5]}})[0].largest_stable == 1e-2
    (broken,) = curves_of({"baseline": {1e-3: [8.0, 8.0], 1e-2: [4.0, None], 1e-1: [8.0, 8.0]}})
    assert math.isnan(broken.largest_stable)


def test_rates_that_one_variant_lacks_count_for_none() -> None:
    curves = curves_of({"baseline": BASELINE, "g1_headwise": {r: v for r, v in BASELINE.items() if r < 1}})
    assert [curve.rates for curve in curves] == [[1e-3, 1e-2, 1e-1]] * 2
    assert curves_of({"baseline": {1e-3: [5.0], 1e-2: [4.0]}}) == []


GATED: dict[float, list[float | None]] = {
    1e-3: [4.9, 5.02, 5.1],
    1e-2: [3.9, 4.02, 4.1],
    1e-1: [3.5, 3.62, 3.7],
    1.0: [5.0, 5.1, 5.3],
}


def test_the_baseline_is_the_other_side_of_every_difference() -> None:
    (found,) = against_baseline(curves_of({"baseline": BASELINE, "g1_headwise": GATED}), "baseline")
    assert found.sensitivity.mean == pytest.approx(
        np.mean([np.mean([g[s] for g in GATED.values()]) - GATED[1e-1][s] for s in range(3)])
        - np.mean([np.mean([b[s] or CEILING for b in BASELINE.values()]) - BASELINE[1e-2][s] for s in range(3)])
    )
    factor, low, high = found.shift
    assert 2 < low < factor < high < 8  # from about 2e-2 to about 1e-1


def test_fair_tuning_parts_add_up() -> None:
    rows = {
        (r.selection, r.kind): r for r in fair_rows(curves_of({"baseline": BASELINE, "g1_headwise": GATED}), "baseline")
    }
    for selection in ("other seeds", "same seeds"):
        both, own, tuning = (rows[selection, kind] for kind in ("baselines_best", "own_best", "tuning"))
        assert both.rates == ((1e-2,), (1e-2,)) and own.rates == ((1e-2,), (1e-1,)) and tuning.rates == own.rates
        assert both.comparison.mean == pytest.approx(-0.28 / 3)
        assert own.comparison.mean == pytest.approx(-0.48 - 0.04 / 3)
        assert own.comparison.mean == pytest.approx(both.comparison.mean + tuning.comparison.mean)
        assert own.comparison.verdict == "better"
        assert own.share == pytest.approx(tuning.comparison.mean / own.comparison.mean)


def test_a_rate_is_chosen_on_the_other_seeds() -> None:
    """Seed 0 has luck at 1e-1, which the other two seeds do not choose; without it they are at 1e-2, too."""
    (curve,) = curves_of({"baseline": {1e-3: [5.0, 5.0, 5.0], 1e-2: [4.0, 4.0, 4.0], 1e-1: [1.0, 4.5, 4.5]}})
    assert chosen_rates(curve, "same seeds").to_dict() == {0: 1e-1, 1: 1e-1, 2: 1e-1}
    assert chosen_rates(curve, "other seeds").to_dict() == {0: 1e-2, 1: 1e-1, 2: 1e-1}


def test_one_seed_has_differences_and_no_verdict() -> None:
    both = {"baseline": BASELINE, "g1_headwise": GATED}
    losses = {name: {lr: values[:1] for lr, values in table.items()} for name, table in both.items()}
    rows = fair_rows(curves_of(losses), "baseline")
    assert {row.selection for row in rows} == {"same seeds"}
    assert all(row.comparison.verdict is None for row in rows)
    assert math.isnan(rows[1].share)


def test_groups_are_everything_but_the_rate() -> None:
    rows = [
        run("baseline", 0, lr, 4.0, overrides=f"optim.lr={lr} train.batch_size={b}", tokens=1200 * 256 * b)
        for b in (16, 4)
        for lr in (1e-3, 1e-2, 1e-1)
    ]
    found = lr_curves(as_frame(rows), ["baseline"], {})
    assert [(curve.batch_size, curve.group) for curve in found] == [
        (4, "train.batch_size=4"),
        (16, "train.batch_size=16"),
    ]
