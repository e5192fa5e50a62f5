"""A keyed pseudo-random permutation of range(n) that needs no memory."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6


def stable_hash(*parts: object) -> int:
    """64-bit hash of the parts' text: the same in every process and on every machine."""
    digest = hashlib.blake2b("\x1f".join(str(p) for p in parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser, elementwise; (...,) uint64 in and out."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class KeyedPermutation:
    """The permutation of 0..n-1 that `key` names: an unbalanced Feistel network with cycle walking.

    Elements of [0, 2^b), b the bit length of n - 1, are split into two halves that change in turn by a keyed hash
    of the other, which is a bijection of [0, 2^b) whatever the hash; values >= n are walked on until they fall
    below n (fewer than two steps on average), which restricts it to a bijection of [0, n).
    """

    def __init__(self, n: int, *key: object) -> None:
        if n < 1:
            raise ValueError(f"a permutation needs n >= 1, not {n}")
        self.n = n
        bits = max(2, (n - 1).bit_length())
        self._low_bits = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << (bits // 2)) - 1)
        self._high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        self._round_keys = [np.uint64(stable_hash("feistel", r, *key)) for r in range(_ROUNDS)]

    def __call__(self, positions: NDArray[np.integer] | int) -> NDArray[np.int64]:
        """Images of `positions` (any shape, each in [0, n)); int64 of the same shape."""
        x = np.atleast_1d(np.asarray(positions)).astype(np.uint64)
        if x.size and int(x.max()) >= self.n:
            raise IndexError(f"position {int(x.max())} is outside a permutation of {self.n}")
        x = self._feistel(x)
        outside = x >= self.n
        while outside.any():
            x[outside] = self._feistel(x[outside])
            outside = x >= self.n
        return x.astype(np.int64).reshape(np.shape(positions))

    def _feistel(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low = x & self._low_mask
        high = x >> self._low_bits
        for r, key in enumerate(self._round_keys):
            if r % 2 == 0:
                low = low ^ (mix64(high ^ key) & self._low_mask)
            else:
                high = high ^ (mix64(low ^ key) & self._high_mask)
        return (high << self._low_bits) | low
