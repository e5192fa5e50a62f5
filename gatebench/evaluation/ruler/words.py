"""Which words come most often: `cwe`, ten common words among rarer ones, and `fwe`, codes whose counts follow Zipf."""

from __future__ import annotations

import math
import string
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from gatebench.evaluation.ruler.task import Draft, Material, Task
from gatebench.evaluation.ruler.templates import Templates

N_COMMON = 10
N_FREQUENT = 3
ZETA_2 = math.pi**2 / 6


@dataclass(frozen=True)
class CommonWords(Task):
    """The task `cwe`. Its size counts the words that are not common."""

    max_new_tokens: ClassVar[int] = 120

    def draft(self, rng: Random, size: int, material: Material) -> Draft:
        """Return a prompt: a solved example (from 1,024 tokens on) and a list, with the repeats that RULER gives."""
        long = material.length >= 4096
        question, common = _word_list(rng, size, *((30, 3) if long else (6, 1)), material.templates)
        if material.length >= 1024:
            example, answers = _word_list(rng, *((30, 10, 3) if long else (10, 3, 1)), material.templates)
            question = f"{example} {_listed(answers, material.templates)}\n{question}"
        return Draft(question, tuple(common))


@dataclass(frozen=True)
class FrequentWords(Task):
    """The task `fwe`. Its size counts the words, the dots that are noise included."""

    max_new_tokens: ClassVar[int] = 50
    smallest: ClassVar[int] = 27
    """Fewer, and the third code would not come at all."""

    def draft(self, rng: Random, size: int, material: Material) -> Draft:
        """Return a prompt. Where the third and the fourth code would tie, it has fewer words than `size`."""
        n_ranks = max(N_FREQUENT + 2, (material.length - self.max_new_tokens) // 50)
        codes = ["...", *_codes(rng, n_ranks - 1)]
        counts = zipf_counts(size, n_ranks)
        while counts[N_FREQUENT] == counts[N_FREQUENT + 1]:
            size -= 1
            counts = zipf_counts(size, n_ranks)
        words = [code for code, count in zip(codes, counts, strict=True) for _ in range(count)]
        rng.shuffle(words)
        return Draft(material.templates.frequent_words.text(context=" ".join(words)), tuple(codes[1 : N_FREQUENT + 1]))


def zipf_counts(n_words: int, n_ranks: int) -> list[int]:
    """Return how often the words of rank 1, 2, ... come: floor of n_words k^-2 / zeta(2)."""
    return [int(n_words / (rank**2 * ZETA_2)) for rank in range(1, n_ranks + 1)]


def _word_list(
    rng: Random, n_uncommon: int, repeats: int, uncommon_repeats: int, templates: Templates
) -> tuple[str, list[str]]:
    """Return the question about a shuffled list, and its common words."""
    drawn = templates.words(rng, N_COMMON + n_uncommon)
    words = drawn[:N_COMMON] * repeats + drawn[N_COMMON:] * uncommon_repeats
    rng.shuffle(words)
    return templates.common_words.text(context=_listed(words, templates)), drawn[:N_COMMON]


def _listed(words: list[str], templates: Templates) -> str:
    return " ".join(templates.list_item.format(i=i, word=word) for i, word in enumerate(words, start=1))


def _codes(rng: Random, n: int) -> list[str]:
    """Return `n` different codes of six letters."""
    codes: dict[str, None] = {}
    while len(codes) < n:
        codes["".join(rng.choices(string.ascii_lowercase, k=6))] = None
    return list(codes)
