"""From what the harness returns to one task's scores: the metric that counts, chance, and bits per byte of the answer.

All of them are shares (0 to 1) except bits per byte. A standard error is over items, the model given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

PREFERRED = ("acc_norm,none", "acc,none", "exact_match,strict-match", "pass@1,create_test")
"""Which of a task's metrics is its score where nothing else says so; then the first that the task has."""

Scores = dict[str, Any]
"""`n`, `metric`, `score`, `stderr`, `chance`, `answer_bpb`, `answer_bpb_stderr`, `metrics`, as the files have them."""


def from_harness(results: Mapping[str, Any], task: str, metric: str | None = None) -> Scores:
    """Return the scores of a task or group from `lm_eval.evaluate`; `metric` is the one that counts."""
    own = results["results"].get(task) or results["groups"][task]
    metrics = {
        name: {"value": float(value), "stderr": _number(own.get(name.replace(",", "_stderr,", 1)))}
        for name, value in own.items()
        if "," in name and "_stderr," not in name and isinstance(value, (int, float))
    }
    metric = metric or next((name for name in PREFERRED if name in metrics), next(iter(metrics)))
    samples = [sample for found in results["samples"].values() for sample in _once(found)]
    subtasks = {
        name: _number(found.get(metric))
        for name, found in results["results"].items()
        if name != task and metric in found
    }
    return {
        "n": len(samples),
        "metric": metric,
        "score": metrics[metric]["value"],
        "stderr": metrics[metric]["stderr"],
        "chance": _chance(samples),
        **_answer_bits(samples),
        "metrics": metrics,
        **({"subtasks": subtasks} if subtasks else {}),
    }


def from_shares(shares: Sequence[float], metric: str) -> Scores:
    """Return the scores of a task whose answers were graded one by one, 0 to 1 each; chance is 0."""
    mean, stderr = _mean(shares)
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


def _choices(sample: Mapping[str, Any]) -> list[tuple[str, float]] | None:
    """Return (text, log-likelihood in nats) of the choices of a multiple-choice item; None for any other."""
    responses = [response[0] for response in sample["resps"]]
    if len(responses) < 2 or not all(isinstance(one, (tuple, list)) and len(one) == 2 for one in responses):
        return None
    return [(arguments[1], one[0]) for arguments, one in zip(sample["arguments"], responses, strict=True)]


def _chance(samples: Iterable[Mapping[str, Any]]) -> float:
    """Return the score of answers drawn blindly: the mean of 1 / choices, 0 where the answer is written."""
    return _mean([1 / len(choices) if (choices := _choices(sample)) else 0.0 for sample in samples])[0]


def _answer_bits(samples: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean over items of the right answer's bits per UTF-8 byte; None where there is none to score."""
    found = []
    for sample in samples:
        choices, right = _choices(sample), sample["target"]
        if choices and isinstance(right, int) and 0 <= right < len(choices) and choices[right][0]:
            text, log_likelihood = choices[right]
            found.append(-log_likelihood / math.log(2) / len(text.encode()))
    mean, stderr = _mean(found) if found else (None, None)
    return {"answer_bpb": mean, "answer_bpb_stderr": stderr}


def _mean(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error (None below two values)."""
    stderr = float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else None
    return float(np.mean(values)), stderr


def _number(value: Any) -> float | None:
    """Return a finite number as a float; None for what the harness writes as N/A."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
