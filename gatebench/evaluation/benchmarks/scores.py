"""From what the harness returns to one task's scores: the metric that counts, chance, and bits per byte of the answer.

All of them are shares (0 to 1) except bits per byte. A standard error is over items, the model given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

PREFERRED = ("acc_norm,none", "acc,none", "exact_match,strict-match", "pass@1,create_test")
"""Which of a task's metrics is its score where nothing else says so; then the first that the task has."""

ACC_NORM_UNIT = "characters"
"""What lm-eval's acc_norm divides a log-likelihood by: Python's len of the choice, without the blank before it."""

Scores = dict[str, Any]
"""`n`, `metric`, `score`, `stderr`, `chance`, `answer_bpb`, `answer_bpb_stderr`, `metrics`, as the files have them."""


def from_harness(
    results: Mapping[str, Any], task: str, metric: str | None = None, tasks: Mapping[str, Any] | None = None
) -> Scores:
    """Return the scores of a task or group from `lm_eval.evaluate`; `metric` is the one that counts.

    `tasks` are the harness's own tasks by name, which say what the choices of an item are and which are right. Without
    them every response is taken for a choice, but for those without a context that mutual information adds.
    """
    own = results["results"].get(task) or results["groups"][task]
    metrics = {
        name: {"value": float(value), "stderr": _finite(own.get(name.replace(",", "_stderr,", 1)))}
        for name, value in own.items()
        if "," in name and "_stderr," not in name and isinstance(value, (int, float))
    }
    metric = metric or next((name for name in PREFERRED if name in metrics), next(iter(metrics)))
    doubled = any(name.startswith("acc_mutual_info,") for name in metrics)
    items = [
        _choices(sample, (tasks or {}).get(name), doubled)
        for name, samples in results["samples"].items()
        for sample in _once(samples)
    ]
    subtasks = {
        name: _finite(member.get(metric))
        for name, member in results["results"].items()
        if name != task and metric in member
    }
    answer_bits = [bits for item in items if item is not None and (bits := item.answer_bits()) is not None]
    bpb, bpb_stderr = mean_and_stderr(answer_bits) if answer_bits else (None, None)
    return {
        "n": len(items),
        "metric": metric,
        "score": metrics[metric]["value"],
        "stderr": metrics[metric]["stderr"],
        "chance": mean_and_stderr([0.0 if item is None else item.chance() for item in items])[0],
        "answer_bpb": bpb,
        "answer_bpb_stderr": bpb_stderr,
        "metrics": metrics,
        **({"acc_norm_unit": ACC_NORM_UNIT} if any(name.startswith("acc_norm,") for name in metrics) else {}),
        **({"subtasks": subtasks} if subtasks else {}),
    }


def from_shares(shares: Sequence[float], metric: str) -> Scores:
    """Return the scores of a task whose answers were graded one by one, 0 to 1 each; chance is 0."""
    mean, stderr = mean_and_stderr(shares)
    return {
        "n": len(shares),
        "metric": metric,
        "score": mean,
        "stderr": stderr,
        "chance": 0.0,
        "answer_bpb": None,
        "answer_bpb_stderr": None,
        "metrics": {metric: {"value": mean, "stderr": stderr}},
    }


def _once(samples: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return every item once: a task with several filters logs it for each."""
    return list({sample["doc_id"]: sample for sample in samples}.values())


@dataclass(frozen=True)
class Choices:
    """The choices of a multiple-choice item."""

    scored: list[tuple[str, float]]
    """The text that was scored, and its log-likelihood in nats, given its context."""
    right: list[int]
    """Places of those that count as right; empty where the item's own code alone knows."""

    def chance(self) -> float:
        """Return the score of an answer drawn blindly."""
        return max(1, len(self.right)) / len(self.scored)

    def answer_bits(self) -> float | None:
        """Return the right answer's bits per UTF-8 byte; None where not one is right, or it is empty."""
        text, log_likelihood = self.scored[self.right[0]] if len(self.right) == 1 else ("", 0.0)
        return -log_likelihood / math.log(2) / len(text.encode()) if text else None


def _choices(sample: Mapping[str, Any], task: Any, doubled: bool) -> Choices | None:
    """Return the choices of an item of a harness's `task`, None for an item that has none.

    Where there is no `task` they are read off the responses, the second half of which is `doubled` without a context.
    """
    responses, right = [response[0] for response in sample["resps"]], sample["target"]
    if hasattr(task, "doc_to_choice"):
        texts = task.doc_to_choice(sample["doc"]) if task.OUTPUT_TYPE == "multiple_choice" else []
        if getattr(task, "multiple_input", 0):  # each choice is a context, and all are followed by the same text
            right = task.doc_to_text(sample["doc"])
    elif all(isinstance(response, (tuple, list)) and len(response) == 2 for response in responses):
        n = len(responses) // 2 if doubled and len(responses) % 2 == 0 else len(responses)
        texts = [arguments[1] for arguments in sample["arguments"][:n]]
    else:
        texts = []
    if len(texts) < 2:
        return None
    scored = [(sample["arguments"][n][1], responses[n][0]) for n in range(len(texts))]
    places = [_place(one, texts) for one in (right if isinstance(right, (list, tuple)) else [right])]
    return Choices(scored, sorted({place for place in places if place is not None and 0 <= place < len(texts)}))


def _place(right: Any, texts: Sequence[str]) -> int | None:
    """Return the place of the right choice, which is given as its place or as its text."""
    if isinstance(right, str):
        stripped = [text.strip() for text in texts]
        return stripped.index(right.strip()) if right.strip() in stripped else None
    return right if isinstance(right, int) else None


def mean_and_stderr(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error (None below two values)."""
    stderr = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return float(np.mean(values)), stderr


def _finite(value: Any) -> float | None:
    """Return a finite number as a float; None for what the harness writes as N/A."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
