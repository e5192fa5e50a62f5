"""What a RULER task is: a recipe for prompts of a size that grows by one unit at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar, Literal

from gatebench.evaluation.ruler.haystack import Haystack
from gatebench.evaluation.ruler.templates import Templates

NVIDIA_DIGITS = 7
"""NVIDIA's `num_digits`."""


@dataclass(frozen=True)
class Needle:
    """A passage that must be found: characters `start` to `stop` of the input, `depth` (0 to 1) of the context."""

    start: int
    stop: int
    depth: float


@dataclass(frozen=True)
class Draft:
    """A prompt and its right answers, before its tokens are counted."""

    input: str
    answers: tuple[str, ...]
    needles: tuple[Needle, ...] = ()


@dataclass(frozen=True)
class Sample:
    """A prompt that leaves room for its answer: n_tokens + max_new_tokens is at most the length asked for."""

    input: str
    answers: tuple[str, ...]
    max_new_tokens: int
    n_tokens: int
    """Tokens of `input`, as `encode` gives them."""
    needles: tuple[Needle, ...]


@dataclass(frozen=True)
class Material:
    """What the prompts of one task are made from."""

    length: int
    templates: Templates
    haystack: Haystack | None = None
    qa_file: Path | None = None
    depth: float | None = None
    """Where a single needle goes; None draws it."""
    digits: int = NVIDIA_DIGITS
    """Of the numbers that needles hold."""


class Task(ABC):
    """One RULER task. The same random state and size give the same prompt."""

    max_new_tokens: ClassVar[int]
    """NVIDIA's `tokens_to_generate`."""
    scoring: ClassVar[Literal["all", "part"]] = "all"
    """All answers must be found (NVIDIA's `string_match_all`), or any one (`string_match_part`)."""
    smallest: ClassVar[int] = 1
    """The smallest size that makes a prompt."""

    @property
    def needs(self) -> Literal["haystack", "qa_file"] | None:
        """What of a `Material` has to be given."""
        return None

    @abstractmethod
    def draft(self, rng: Random, size: int, material: Material) -> Draft:
        """Return a prompt with `size` units of text around what is asked for."""


def find_needles(text: str, context: str, needles: Iterable[str]) -> tuple[Needle, ...]:
    """Return where the `needles` stand in `text`, first to last; each occurs once in `context`, a part of `text`."""
    first = text.index(context)
    places = [(text.index(needle, first), len(needle)) for needle in needles]
    return tuple(Needle(start, start + n, (start - first) / len(context)) for start, n in sorted(places))
