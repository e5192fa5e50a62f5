"""RULER's two scores on hand-made cases, and a model's answers."""

from __future__ import annotations

import pytest

from gatebench.evaluation.ruler import Sample, evaluate, sample_scores, score
from gatebench.evaluation.ruler.scoring import output_score


def sample(*answers: str) -> Sample:
    return Sample("prompt", answers, 8, 1, ())


@pytest.mark.parametrize(
    ("output", "everything", "anything"),
    [
        ("Paris and LONDON", 1.0, 1.0),
        ("paris", 0.5, 1.0),
        ("Rome", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("xparisx\nlondon", 1.0, 1.0),
        ("par is", 0.0, 0.0),
        ("par\x00is", 0.0, 0.0),
    ],
)
def test_substrings_whatever_the_case(output: str, everything: float, anything: float) -> None:
    assert output_score(output, ("Paris", "London"), "all") == everything
    assert output_score(output, ("Paris", "London"), "part") == anything


def test_a_task_scores_the_mean_of_shares_or_the_share_of_any() -> None:
    """All: (1/2 + 2/2 + 0) / 3 = 50. Part: two of three questions have a right alias, 66.7, not 50."""
    samples = [sample("a1", "a2"), sample("b1", "b2"), sample("c1", "c2")]
    outputs = ["a1", "b2 b1", "d"]
    assert sample_scores("niah_multivalue", outputs, samples) == [0.5, 1, 0]
    assert score("niah_multivalue", outputs, samples) == pytest.approx(50)
    assert score("qa_1", outputs, samples) == pytest.approx(200 / 3)


def test_a_model_is_given_whole_prompts_and_graded() -> None:
    samples = [sample("four"), sample("five")]
    asked: list[tuple[list[list[int]], int]] = []

    def complete(prompts: list[list[int]], n_new: int) -> list[str]:
        asked.append((prompts, n_new))
        return [" four.", " six."]

    result = evaluate("niah_single_1", samples, lambda text: [len(text)], complete)
    assert asked == [([[6], [6]], 8)]
    assert (result.score, result.scores, result.outputs) == (50, (1, 0), (" four.", " six."))
