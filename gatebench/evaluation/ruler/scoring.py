"""RULER's scores (NVIDIA/RULER `scripts/eval/synthetic/constants.py`): right answers found in the output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from gatebench.evaluation.ruler.samples import task
from gatebench.evaluation.ruler.task import Sample

CONTROL = re.compile(r"[\x00-\x1f]")


def found(output: str, answers: Sequence[str], scoring: Literal["all", "part"]) -> float:
    """Return the share of `answers` that stand in `output`, whatever the case ("all"), or 1 if any does ("part")."""
    text = CONTROL.sub("\n", output.strip()).lower()
    hits = [answer.lower() in text for answer in answers]
    return sum(hits) / len(hits) if scoring == "all" else float(any(hits))


def sample_scores(name: str, outputs: Sequence[str], samples: Sequence[Sample]) -> list[float]:
    """Return each sample's score, 0 to 1."""
    scoring = task(name).scoring
    return [found(output, sample.answers, scoring) for output, sample in zip(outputs, samples, strict=True)]


def score(name: str, outputs: Sequence[str], samples: Sequence[Sample]) -> float:
    """Return the score of a task, 0 to 100: the mean over its samples."""
    scores = sample_scores(name, outputs, samples)
    return 100 * sum(scores) / len(scores)
