from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatebench.data.permutation import KeyedPermutation, stable_hash


@given(n=st.integers(1, 3000), key=st.integers(0, 2**63))
def test_is_a_bijection_of_range_n(n: int, key: int) -> None:
    images = KeyedPermutation(n, key)(np.arange(n))
    assert np.array_equal(np.sort(images), np.arange(n))


def test_one_position_and_many_give_the_same_images() -> None:
    permutation = KeyedPermutation(1_000_003, "seed", 7)
    positions = np.array([0, 1, 999_999, 1_000_002])
    assert [int(permutation(int(p))) for p in positions] == permutation(positions).tolist()


def test_keys_name_different_permutations() -> None:
    first, second = (KeyedPermutation(1000, "epoch", e)(np.arange(1000)) for e in (0, 1))
    assert (first == second).sum() < 10  # one expected by chance


def test_neighbours_are_scattered() -> None:
    images = KeyedPermutation(1 << 16, 0)(np.arange(1 << 16))
    correlation = np.corrcoef(images[:-1], images[1:])[0, 1]
    assert abs(correlation) < 0.02


def test_position_outside_is_refused() -> None:
    with pytest.raises(IndexError, match="position 10 is outside a permutation of 10"):
        KeyedPermutation(10, 0)(10)


def test_stable_hash_is_the_same_in_every_process() -> None:
    assert stable_hash("heldout", "sympy/core/add.py") == 302081047991158762
