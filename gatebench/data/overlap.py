"""13-gram hashes of documents, and what follows from shared ones: near-duplicates and contaminated documents.

A unit is a word (letters, digits; case folded) or, where the script has no spaces, one Han, Kana or Hangul character.
Grams are 64-bit hashes, so that a document of n units is at most n - 12 numbers. Beyond `GramStore.limit` grams
only those whose hash is a multiple of a power of two are kept, an unbiased sample of every document's set.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gatebench.data.permutation import mix64

GRAM_LENGTH = 13
_SPACELESS = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_UNIT = re.compile(f"[{_SPACELESS}]|[^\\W_{_SPACELESS}]+")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Grams = NDArray[np.uint64]


class _UnitHashes(dict[str, int]):
    """Hash of each unit, computed once."""

    def __missing__(self, unit: str) -> int:
        value = int.from_bytes(hashlib.blake2b(unit.encode(), digest_size=8).digest(), "little")
        if len(self) < 2_000_000:
            self[unit] = value
        return value


_unit_hashes = _UnitHashes()


def gram_hashes(text: str, length: int = GRAM_LENGTH) -> Grams:
    """Distinct hashes of the text's grams, sorted; a text of fewer than `length` units is one gram; (n,) uint64."""
    units = _UNIT.findall(text.lower())
    if not units:
        return np.empty(0, np.uint64)
    hashes = np.fromiter(map(_unit_hashes.__getitem__, units), np.uint64, len(units))
    length = min(length, len(units))
    rolled = np.zeros(len(units) - length + 1, np.uint64)
    for i in range(length):
        rolled = rolled * _MULTIPLIER + hashes[i : i + len(rolled)]
    return np.unique(mix64(rolled))


class GramStore:
    """The gram sets of many documents, in the order they were added."""

    def __init__(self, limit: int = 1 << 25) -> None:
        self.limit = limit
        self.one_in = 1
        self._sets: list[Grams] = []
        self._total = 0

    def add(self, grams: Grams) -> None:
        """Append one document's distinct hashes."""
        self._sets.append(self._sampled(grams))
        self._total += len(self._sets[-1])
        if self._total > self.limit:
            self.thin(self.one_in * 2)

    def thin(self, one_in: int) -> None:
        """Keep the grams whose hash is a multiple of `one_in`, a power of two."""
        if one_in > self.one_in:
            self.one_in = one_in
            self._sets = [self._sampled(grams) for grams in self._sets]
            self._total = sum(map(len, self._sets))

    def sets(self, documents: Sequence[int]) -> list[Grams]:
        return [self._sets[d] for d in documents]

    def _sampled(self, grams: Grams) -> Grams:
        return grams if self.one_in == 1 else grams[grams & np.uint64(self.one_in - 1) == 0]


def repeated_shares(sets: Sequence[Grams]) -> NDArray[np.float64]:
    """For each document, the share of its grams that stand in an earlier document of the list; (n,)."""
    sizes = np.array([len(s) for s in sets], np.int64)
    if sizes.sum() == 0:
        return np.zeros(len(sets))
    document = np.repeat(np.arange(len(sets)), sizes)
    _, first, inverse = np.unique(np.concatenate(sets), return_index=True, return_inverse=True)
    seen_before = document[first][inverse.reshape(-1)] < document
    repeats = np.bincount(document, weights=seen_before, minlength=len(sets))
    return np.asarray(repeats / np.maximum(sizes, 1))


def contained_shares(sets: Sequence[Grams], reference: Sequence[Grams]) -> NDArray[np.float64]:
    """For each document, the share of its grams that stand in any of the reference documents; (n,)."""
    if not reference or not sum(map(len, reference)):
        return np.zeros(len(sets))
    known = np.unique(np.concatenate(reference))
    shares = np.zeros(len(sets))
    for i, grams in enumerate(sets):
        if len(grams):
            places = np.minimum(np.searchsorted(known, grams), len(known) - 1)
            shares[i] = np.mean(known[places] == grams)
    return shares
