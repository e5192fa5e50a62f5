"""Paired comparisons, Holm and verdicts: each with the right value in it."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from gatebench.errors import UserError
from gatebench.report.analysis import stats


def compared(baseline: dict[int, float], variant: dict[int, float]) -> stats.Comparison:
    return stats.paired_comparison(pd.Series(baseline), pd.Series(variant), lower_is_better=True)


@pytest.fixture
def cheap_collections() -> Iterator[None]:
    """statsmodels' multipletests collects garbage at every call, a tenth of a second with all this imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def test_three_seeds_against_the_interval_worked_out_by_hand() -> None:
    # Differences -1, -2, -1.5: mean -1.5, sd 0.5, t = -5.196 with 2 degrees of freedom, for which
    # p = 1 - |t| / sqrt(2 + t^2) = 1 - sqrt(27 / 29) and the 97.5 % quantile is 4.30265.
    found = compared({0: 10.0, 1: 12.0, 2: 11.0}, {0: 9.0, 1: 10.0, 2: 9.5})
    assert found.differences == (-1.0, -2.0, -1.5)
    assert found.mean == pytest.approx(-1.5)
    assert found.sd == pytest.approx(0.5)
    assert found.p == pytest.approx(1 - math.sqrt(27 / 29))
    assert found.resolvable == pytest.approx(4.302653 * 0.5 / math.sqrt(3), rel=1e-6)
    assert (found.low, found.high) == pytest.approx((-1.5 - found.resolvable, -1.5 + found.resolvable))
    assert found.verdict is None


def test_pairs_are_made_by_seed_not_by_position() -> None:
    found = compared({0: 10.0, 1: 20.0, 2: 30.0}, {2: 29.0, 1: 18.0, 5: 1.0})
    assert found.seeds == (1, 2)
    assert found.differences == (-2.0, -1.0)


def test_a_seed_without_a_number_is_no_pair() -> None:
    assert compared({0: 10.0, 1: math.nan, 2: math.inf}, {0: 9.0, 1: 8.0, 2: 7.0}).seeds == (0,)


def test_holm_steps_down_and_stays_monotone() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_holm_does_not_count_what_was_not_tested() -> None:
    adjusted = stats.holm([0.01, math.nan, 0.03])
    assert adjusted[0] == pytest.approx(0.02)
    assert math.isnan(adjusted[1])
    assert adjusted[2] == pytest.approx(0.03)
    assert stats.holm([]) == []


def test_one_seed_gives_no_verdict() -> None:
    found = stats.judge(compared({0: 168.3}, {0: 151.8}), math.nan)
    assert found.mean == pytest.approx(-16.5)
    assert math.isnan(found.p) and math.isnan(found.low) and math.isnan(found.resolvable)
    assert (found.verdict, found.reason) == (None, "one seed gives no verdict")


def test_no_pair_gives_no_verdict() -> None:
    found = stats.judge(compared({0: 1.0}, {1: 1.0}), math.nan)
    assert found.n == 0 and math.isnan(found.mean)
    assert (found.verdict, found.reason) == (None, "no seed has both numbers")


def test_identical_numbers_give_p_one_and_not_zero() -> None:
    found = compared({0: 10.0, 1: 12.0}, {0: 10.0, 1: 12.0})
    assert (found.p, found.low, found.high) == (1.0, 0.0, 0.0)
    assert stats.judge(found, 1.0).verdict == "not resolvable"


def test_the_same_difference_at_every_seed_is_no_certainty() -> None:
    found = stats.judge(compared({0: 10.1, 1: 12.3, 2: 11.7}, {0: 9.1, 1: 11.3, 2: 10.7}), math.nan)
    assert math.isnan(found.p)
    assert found.verdict is None
    assert found.reason == stats.NO_SPREAD


@pytest.mark.parametrize(
    ("shift", "lower_is_better", "p", "verdict"),
    [
        (-1.5, True, 0.049, "better"),
        (+1.5, True, 0.049, "worse"),
        (-1.5, False, 0.049, "worse"),
        (+1.5, False, 0.049, "better"),
        (-1.5, True, 0.05, "not resolvable"),
    ],
)
def test_the_verdict_follows_the_adjusted_p_and_the_sign(
    shift: float, lower_is_better: bool, p: float, verdict: str
) -> None:
    base = pd.Series({0: 10.0, 1: 12.0, 2: 11.0})
    variant = base + shift + pd.Series({0: 0.5, 1: -0.5, 2: 0.0})
    found = stats.paired_comparison(base, variant, lower_is_better=lower_is_better)
    assert stats.judge(found, p).verdict == verdict


def test_a_blocking_flag_wins_over_a_tiny_p() -> None:
    found = stats.judge(compared({0: 10.0, 1: 12.0}, {0: 9.0, 1: 10.5}), 1e-6, ["it is untrained"])
    assert (found.verdict, found.reason) == (None, "it is untrained")


def test_seeds_to_resolve_an_effect_of_one_standard_deviation() -> None:
    # t(0.975, n - 1) / sqrt(n) first falls below 1 at n = 7: 2.571 / sqrt(6) = 1.050, 2.447 / sqrt(7) = 0.925.
    base = pd.Series({0: 10.0, 1: 10.0})
    found = stats.paired_comparison(
        base, base + pd.Series({0: 1 + 1 / math.sqrt(2), 1: 1 - 1 / math.sqrt(2)}), lower_is_better=True
    )
    assert (found.mean, found.sd) == pytest.approx((1.0, 1.0))
    assert stats.seeds_to_resolve(found) == 7


def test_in_a_family_the_resolvable_difference_is_that_of_holms_first_step() -> None:
    # Differences -2, -2.8, -2.4: sd 0.4. With 2 degrees of freedom t(1 - a) = (1 - 2a) / sqrt(2a (1 - a)), which is
    # 14.0890 at a = 0.025 / 10: 14.0890 * 0.4 / sqrt(3) = 3.2537. At 4 seeds 7.4533 * 0.4 / 2 = 1.49.
    alone = compared({0: 100.0, 1: 101.0, 2: 102.0}, {0: 98.0, 1: 98.2, 2: 99.6})
    found = stats.judge(stats.within_family(alone, 10), stats.holm([alone.p, *[0.9] * 9])[0])
    assert found.p_adjusted == pytest.approx(0.0914, abs=1e-4)
    assert found.verdict == "not resolvable"
    assert alone.resolvable == pytest.approx(0.9937, abs=1e-4)
    assert found.resolvable == pytest.approx(3.2537, abs=1e-4)
    assert (found.low, found.high) == (alone.low, alone.high)
    assert (stats.seeds_to_resolve(alone), stats.seeds_to_resolve(found)) == (3, 4)


@pytest.mark.parametrize("step", [0.0, 1.0])
def test_without_a_spread_a_family_changes_nothing(step: float) -> None:
    alone = compared({0: 10.0, 1: 12.0}, {0: 10.0 + step, 1: 12.0 + step})
    found = stats.within_family(alone, 10)
    assert found.resolvable == pytest.approx(alone.resolvable, nan_ok=True)


@pytest.mark.usefixtures("cheap_collections")
@pytest.mark.parametrize("n_seeds", [2, 3, 5])
def test_identical_variants_are_called_different_at_most_at_the_nominal_rate(n_seeds: int) -> None:
    """200 studies of 4 variants that equal the baseline; the family-wise rate is 5 %, 18 is its 99 % quantile."""
    rng = np.random.default_rng(n_seeds)
    wrong = 0
    for _ in range(200):
        base = pd.Series(100 + 5 * rng.standard_normal(n_seeds))
        found = [
            stats.paired_comparison(base, base + rng.standard_normal(n_seeds), lower_is_better=True) for _ in range(4)
        ]
        adjusted = stats.holm([item.p for item in found])
        verdicts = [stats.judge(item, p).verdict for item, p in zip(found, adjusted, strict=True)]
        wrong += any(verdict != "not resolvable" for verdict in verdicts)
    assert wrong <= 18


@pytest.mark.parametrize("n_seeds", [2, 3, 5])
def test_twice_the_resolvable_difference_is_found_in_over_eighty_per_cent(n_seeds: int) -> None:
    sd = 1.5
    quantile = {2: 12.7062, 3: 4.30265, 5: 2.77645}[n_seeds]
    effect = 2 * quantile * sd / math.sqrt(n_seeds)
    rng = np.random.default_rng(n_seeds)
    found = 0
    for _ in range(200):
        base = pd.Series(100 + 5 * rng.standard_normal(n_seeds))
        variant = base - effect + sd * rng.standard_normal(n_seeds)
        comparison = stats.paired_comparison(base, variant, lower_is_better=True)
        found += stats.judge(comparison, comparison.p).verdict == "better"
    assert found > 160


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ((-1.0, -2.0, -3.0), 2 / 8),  # as extreme: all minus, all plus
        ((1.0, -1.0, 2.0), 6 / 8),  # |sum| >= 2 for all but the two with sum 0
        ((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 2 / 64),
        ((1.0,), math.nan),
    ],
)
def test_sign_flips_are_exact_for_few_seeds(differences: tuple[float, ...], p: float) -> None:
    assert stats.sign_flip_p(differences) == pytest.approx(p, nan_ok=True)


def test_sign_flips_agree_with_the_t_test_on_many_normal_differences() -> None:
    rng = np.random.default_rng(0)
    base = pd.Series(rng.normal(100, 5, 40))
    found = stats.paired_comparison(base, base + rng.normal(0.3, 1.0, 40), lower_is_better=True)
    assert found.p_flip == pytest.approx(found.p, abs=0.02)
    assert found.p_flip == stats.sign_flip_p(found.differences)


def test_equivalence_is_the_larger_of_two_one_sided_tests() -> None:
    # Differences 0.1, 0, -0.1, 0: mean 0, sd 0.08165, t = 0.2 / (0.08165 / 2) = 4.899 with 3 degrees of freedom.
    base = {0: 10.0, 1: 11.0, 2: 12.0, 3: 13.0}
    found = compared(base, {0: 10.1, 1: 11.0, 2: 11.9, 3: 13.0})
    assert stats.equivalence(found, 0.2).p == pytest.approx(0.00814, abs=1e-5)
    assert stats.equivalence(found, 0.2).shown and not stats.equivalence(found, 0.05).shown


def test_what_cannot_be_tested_is_not_equivalent() -> None:
    assert not stats.equivalence(compared({0: 10.0}, {0: 10.0}), 1.0).shown
    assert not stats.equivalence(compared({0: 10.0, 1: 11.0}, {0: 10.1, 1: 11.1}), 1.0).shown
    assert stats.equivalence(compared({0: 10.0, 1: 11.0}, {0: 10.0, 1: 11.0}), 1.0).shown
    with pytest.raises(UserError, match="margin=0; legal: a number above 0"):
        stats.equivalence(compared({0: 10.0}, {0: 10.0}), 0)
