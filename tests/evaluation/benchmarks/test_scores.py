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
    assert scores["acc_norm_unit"] == "characters"
    del results["results"]["t"]["acc_norm,none"]
    assert "acc_norm_unit" not in from_harness(results, "t")


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


@pytest.mark.parametrize("metrics", [["acc,none", "acc_mutual_info,none"], ["acc_mutual_info,none"]])
@pytest.mark.parametrize("target", [1, "B", " B", [1]])
def test_answers_without_a_context_are_no_choices(target: Any, metrics: list[str]) -> None:
    """Mutual information asks every choice a second time, after nothing: still one of four."""
    arguments = [("q", f" {c}") for c in "ABCD"] + [("", f" {c}") for c in "ABCD"]
    item = {
        "doc_id": 0,
        "target": target,
        "resps": [[(-float(i + 1), False)] for i in range(8)],
        "arguments": arguments,
    }
    scores = from_harness({"results": {"t": dict.fromkeys(metrics, 0.0)}, "samples": {"t": [item]}}, "t")
    assert scores["chance"] == 0.25
    assert scores["answer_bpb"] == pytest.approx(2 / LN2 / 2)  # " B": 2 nats over 2 bytes


def task(**more: Any) -> Any:
    """A task of the harness over two items of four choices each."""
    tasks = pytest.importorskip("lm_eval.api.task")
    datasets = pytest.importorskip("datasets")
    rows = [{"q": f"{n}?", "c": ["red", "blue", "gold", "tree"], "i": 2, "s": "gold", "l": [2, 3]} for n in range(2)]
    metrics = more.pop("metrics", ["acc"])
    config = {
        "task": "t",
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "q",
        "doc_to_choice": "c",
        "doc_to_target": "i",
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in metrics],
    }
    return tasks.ConfigurableTask(config=config | more)


class Guesses:
    """A model that gives choice number n of an item the log-likelihood -(n + 1), whatever it is."""

    rank, world_size, tokenizer_name, chat_template = 0, 1, "", None
    device = "cpu"

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return [(-float(request.idx % 4 + 1), False) for request in requests]


@pytest.mark.parametrize(
    ("more", "chance", "bits"),
    [
        ({}, 1 / 4, 3 / LN2 / 5),  # " gold"
        ({"metrics": ["acc", "acc_mutual_info"]}, 1 / 4, 3 / LN2 / 5),
        ({"metrics": ["acc_mutual_info"]}, 1 / 4, 3 / LN2 / 5),
        ({"doc_to_target": "s"}, 1 / 4, 3 / LN2 / 5),
        ({"doc_to_target": "l"}, 2 / 4, None),
        ({"doc_to_text": "i", "doc_to_target": "q"}, 1 / 4, 3 / LN2 / 3),  # choices are contexts, " 0?" goes on
    ],
)
def test_the_task_says_what_its_choices_are_and_which_is_right(
    more: dict[str, Any], chance: float, bits: float | None
) -> None:
    evaluator = pytest.importorskip("lm_eval.evaluator")
    loaded = {"tasks": {"t": task(**more)}}
    scores = from_harness(evaluator.evaluate(Guesses(), loaded, bootstrap_iters=0), "t", tasks=loaded["tasks"])
    assert (scores["n"], scores["chance"]) == (2, chance)
    assert scores["answer_bpb"] == (None if bits is None else pytest.approx(bits))
