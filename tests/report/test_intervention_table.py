"""What an intervention does to the loss, in a word."""

from __future__ import annotations

import pytest

from gatebench.report.analysis.interventions import Change, Row


@pytest.mark.parametrize(
    ("low", "high", "effect"),
    [
        (1e-4, 3e-4, "costs"),
        (-3e-4, -1e-4, "helps"),
        (-1e-4, 3e-4, "not resolvable"),
        (0.0, 0.0, "nothing"),
        (1e-6, 4e-5, "nothing"),
        (-2e-5, 6e-5, "not resolvable"),
    ],
)
def test_an_effect_that_no_digit_shows_is_nothing(low: float, high: float, effect: str) -> None:
    row = Row("baseline", "block-first", 2, True, changes={"all": Change((low + high) / 2, low, high)})
    assert row.effect == effect


def test_one_seed_and_no_gate_have_no_effect() -> None:
    changes = {"all": Change(0.0, -1e-6, 1e-6)}
    assert Row("baseline", "block-first", 1, True, changes=changes).effect == "one seed"
    assert Row("baseline", "mean-gate", 2, False).effect == "no gate"
