"""Letting a model answer samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gatebench.evaluation.ruler.samples import Encode
from gatebench.evaluation.ruler.scoring import sample_scores
from gatebench.evaluation.ruler.task import Sample

Complete = Callable[[list[list[int]], int], list[str]]
"""Continues each prompt (token ids) greedily by that many tokens at most, and returns the new text."""


@dataclass(frozen=True)
class Result:
    """What a model answered, and each answer's score (0 to 1)."""

    outputs: tuple[str, ...]
    scores: tuple[float, ...]

    @property
    def score(self) -> float:
        """The task's score, 0 to 100."""
        return 100 * sum(self.scores) / len(self.scores)


def evaluate(name: str, samples: Sequence[Sample], encode: Encode, complete: Complete) -> Result:
    """Return the answers of a model to samples of one task and length, as `generate` makes them."""
    outputs = complete([encode(sample.input) for sample in samples], samples[0].max_new_tokens)
    return Result(tuple(outputs), tuple(sample_scores(name, outputs, samples)))
