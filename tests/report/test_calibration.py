"""Are verdicts calibrated? Simulated studies of identical variants, and of a variant with a planted effect."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from gatebench.report.analysis.comparison import compare
from gatebench.report.read import results
from tests.report.synthetic_runs import DOMAINS, summary

pytestmark = pytest.mark.slow

VARIANTS = ("g1_elementwise", "g1_headwise", "g2_headwise")
N_SEEDS = 5
SEED_SD, NOISE_SD = 3.0, 0.5
"""Spread over seeds that a pair shares, and that of each run."""


def study(rng: np.random.Generator, template: pd.DataFrame, effect: float = 0.0) -> pd.DataFrame:
    """Runs of a study: every number is drawn anew, with ``effect`` on the Avg PPL of the first variant."""
    shared = rng.normal(0, SEED_SD, N_SEEDS)[template["seed"].to_numpy()]
    ppl = (
        150 + shared + rng.normal(0, NOISE_SD, len(template)) + effect * (template["variant"] == VARIANTS[0]).to_numpy()
    )
    drawn = {f"ppl/{name}": 150 + shared + rng.normal(0, NOISE_SD, len(template)) for name in DOMAINS}
    share = template["first_token_floor"] * (5 + 0.1 * rng.normal(size=len(template)))
    m_act = 40 + rng.normal(size=len(template))
    return template.assign(avg_ppl=ppl, first_token_share=share, m_act=m_act, **drawn)


@pytest.fixture(autouse=True)
def cheap_collections() -> Iterator[None]:
    """statsmodels' multipletests collects garbage at every call, a tenth of a second with all this imported."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def template() -> pd.DataFrame:
    return results.as_frame([summary(name, seed, 150.0) for name in ("baseline", *VARIANTS) for seed in range(N_SEEDS)])


def test_identical_variants_are_told_apart_no_more_often_than_the_nominal_rate(template: pd.DataFrame) -> None:
    rng = np.random.default_rng(12)
    false = {"primary": 0, "domain": 0, "probe": 0}
    for _ in range(200):
        table = compare(study(rng, template), "baseline", VARIANTS)
        for family in false:
            verdicts = [r.comparison.verdict for v in table.variants for r in v.rows if r.metric.family == family]
            assert None not in verdicts
            false[family] += any(verdict != "not resolvable" for verdict in verdicts)
    # 5 % of 200 studies is 10; more than 16 has a chance of 2 % at the nominal rate.
    assert max(false.values()) <= 16, false
    assert sum(false.values()) <= 3 * 10, false


def test_an_effect_of_twice_the_smallest_resolvable_difference_is_found_in_four_of_five_studies(
    template: pd.DataFrame,
) -> None:
    rng = np.random.default_rng(34)
    sd = math.sqrt(2) * NOISE_SD
    t = float(scipy_stats.t.ppf(1 - 0.025 / len(VARIANTS), N_SEEDS - 1))
    resolvable = t * sd / math.sqrt(N_SEEDS)
    found, reported = 0, []
    for _ in range(100):
        first = (
            compare(study(rng, template, effect=-2 * resolvable), "baseline", VARIANTS).variants[0].primary.comparison
        )
        found += first.verdict == "better"
        reported.append(first.resolvable)
    assert found > 80, found
    assert np.mean(reported) == pytest.approx(resolvable, rel=0.15)  # what the reports state is what was planted by
