"""The harness's results as one task's scores."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gatebench.evaluation.benchmarks.scores import from_harness, from_shares

LN2 = math.log(2)


def sample(doc: int, target: Any, *choices: tuple[str, float], **more: Any) -> dict[str, Any]:
    arguments = [("context", text) for text, _ in choices]
    return {
        "doc_id": doc,
        "target": target,
        "arguments": arguments,
        "resps": [[(ll, False)] for _, ll in choices],
    } | more


def test_a_multiple_choice_task() -> None:
    results = {
        "results": {"t": {"alias": "t", "acc,none": 0.5, "acc_stderr,none": 0.5, "acc_norm,none": 1.0}},
        "samples": {
            "t": [
                sample(0, 0, (" ab", -9 * LN2), (" c", -1.0)),  # 9 bits over 3 bytes
                sample(1, 1, ("x", -1.0), ("é", -2 * LN2), ("y", -3.0), ("z", -4.0)),  # 2 bits over 2 bytes
            ]
        },
    }
    scores = from_harness(results, "t")
    assert (scores["n"], scores["metric"], scores["score"], scores["stderr"]) == (2, "acc_norm,none", 1.0, None)
    assert scores["chance"] == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert scores["answer_bpb"] == pytest.approx((3 + 1) / 2)
    assert scores["answer_bpb_stderr"] == pytest.approx(1.0)  # sd of 3 and 1 is sqrt(2)
    assert from_harness(results, "t", "acc,none")["stderr"] == 0.5
    assert scores["metrics"]["acc,none"] == {"value": 0.5, "stderr": 0.5}


def test_a_written_answer_with_two_filters_counts_each_item_once() -> None:
    one = {"doc_id": 0, "target": "7", "arguments": [("prompt", {"until": []})], "resps": [["The answer is 7."]]}
    own = {
        "exact_match,strict-match": 1.0,
        "exact_match_stderr,strict-match": "N/A",
        "exact_match,flexible-extract": 0.0,
    }
    scores = from_harness({"results": {"t": own}, "samples": {"t": [one, dict(one)]}}, "t")
    assert (scores["n"], scores["metric"], scores["score"]) == (1, "exact_match,strict-match", 1.0)
    assert (scores["stderr"], scores["chance"], scores["answer_bpb"]) == (None, 0.0, None)


def test_a_group_is_scored_over_the_items_of_its_members() -> None:
    results = {
        "results": {"g": {"acc,none": 0.25}, "a": {"acc,none": 0.0}, "b": {"acc,none": 1.0}},
        "groups": {"g": {"acc,none": 0.25}},
        "samples": {
            "a": [sample(n, 0, (" A", -1.0), (" B", -0.5)) for n in range(3)],
            "b": [sample(0, 0, (" A", -0.5), (" B", -1.0))],
        },
    }
    scores = from_harness(results, "g")
    assert (scores["n"], scores["score"], scores["chance"]) == (4, 0.25, 0.5)
    assert scores["subtasks"] == {"a": 0.0, "b": 1.0}


def test_answers_graded_one_by_one() -> None:
    scores = from_shares([1.0, 0.0, 0.0, 0.0], "pass@1")
    assert (scores["n"], scores["score"], scores["chance"]) == (4, 0.25, 0.0)
    assert scores["stderr"] == pytest.approx(0.25)  # sd 0.5 over sqrt(4)
