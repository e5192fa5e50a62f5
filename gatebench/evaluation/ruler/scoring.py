"""Letting a model answer, and RULER's two scores (NVIDIA/RULER `scripts/eval/synthetic/constants.py`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gatebench.evaluation.ruler.samples import Encode, task
from gatebench.evaluation.ruler.task import Sample

CONTROL = re.compile(r"[\x00-\x1f]")
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


def output_score(output: str, answers: Sequence[str], scoring: Literal["all", "part"]) -> float:
    """Return the share of `answers` that stand in `output`, whatever the case ("all"), or 1 if any does ("part")."""
    text = CONTROL.sub("\n", output.strip()).lower()
    hits = [answer.lower() in text for answer in answers]
    return sum(hits) / len(hits) if scoring == "all" else float(any(hits))


def sample_scores(name: str, outputs: Sequence[str], samples: Sequence[Sample]) -> list[float]:
    """Return each sample's score, 0 to 1."""
    scoring = task(name).scoring
    return [output_score(output, sample.answers, scoring) for output, sample in zip(outputs, samples, strict=True)]


def score(name: str, outputs: Sequence[str], samples: Sequence[Sample]) -> float:
    """Return the score of a task, 0 to 100: the mean over its samples."""
    scores = sample_scores(name, outputs, samples)
    return 100 * sum(scores) / len(scores)
