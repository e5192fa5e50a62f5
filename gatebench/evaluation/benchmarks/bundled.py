"""The tasks that need no network: multiple-choice items through the harness, HumanEval, and RULER."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gatebench.data.tokens import Corpus
from gatebench.errors import DoesNotFit, UserError
from gatebench.evaluation import humaneval, ruler, sandbox
from gatebench.evaluation.benchmarks import items as made
from gatebench.evaluation.benchmarks.harness_tasks import evaluated
from gatebench.evaluation.benchmarks.scores import Scores, from_shares
from gatebench.evaluation.benchmarks.suites import CHOICE, CODE, Options, check_bundled, ruler_task

if TYPE_CHECKING:
    from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
    from gatebench.evaluation.benchmarks.harness_model import HarnessModel

N_RULER = 100
CODE_TOKENS = 256
"""For a function's body; half of the context where that is less."""


class BundledTask:
    """One of our tasks. Raises UserError for a name that is none of ours."""

    version = str(made.VERSION)
    shots = 0
    fixes_shots = True
    own_files = None

    def __init__(self, name: str) -> None:
        check_bundled(name)
        self.name = name
        self.runs_code = name == CODE

    def prepare(self) -> None:
        """Raise UserError where the task cannot be asked on this machine."""
        if self.runs_code:
            humaneval.problems()
            sandbox.check()

    def score(self, checkpoint: Checkpoint, options: Options) -> Scores:
        """Return the checkpoint's scores, and beside them what the task was made of.

        Raises DoesNotFit, also where the corpus lacks the domain that the task is made of, or has too little of it.
        """
        model = checkpoint.model
        if self.name == CODE:
            return _code(model, options)
        if (task_and_length := ruler_task(self.name)) is not None:
            return _ruler(model, *task_and_length, options)
        return _choices(self.name, model, checkpoint.corpus, options)


def _choices(name: str, model: HarnessModel, corpus: Corpus, options: Options) -> Scores:
    from lm_eval.api.task import ConfigurableTask

    every = CHOICE[name](corpus)
    # Questions that others wrote are as long as they are: those that do not fit are left out and counted.
    fitting = [item for item in every if name != "gb_mmlu_dev" or _fits(item, model)]
    if not fitting:
        raise DoesNotFit(f"no item fits the model's context of {model.max_length:,} tokens")
    task = ConfigurableTask(config=_config(name, fitting))
    scores = evaluated(model, name, {"tasks": {name: task}}, "acc,none", 0, options)
    return {**scores, "n_too_long": len(every) - len(fitting), "items": made.fingerprint(every)}


def _fits(item: made.Item, model: HarnessModel) -> bool:
    longest = max(len(model.tok_encode(item.context + choice)) for choice in item.choices)
    return longest <= model.max_length + 1


def _config(name: str, items: Sequence[made.Item]) -> dict[str, Any]:
    from datasets import Dataset

    rows = [{"context": item.context, "choices": list(item.choices), "answer": item.answer} for item in items]
    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": lambda doc: doc["context"],
        "doc_to_choice": lambda doc: doc["choices"],
        "doc_to_target": lambda doc: doc["answer"],
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": made.VERSION},
    }


def _code(model: HarnessModel, options: Options) -> Scores:
    n_new = min(CODE_TOKENS, model.max_length // 2)
    every = humaneval.problems()[: options.limit]
    fitting = [one for one in every if len(model.tok_encode(one.prompt)) + n_new <= model.max_length]
    if not fitting:
        raise DoesNotFit(f"no problem fits the model's context of {model.max_length:,} tokens")
    prompts = [problem.prompt for problem in fitting]
    answers = model.continuations(prompts, max_new_tokens=n_new, until=humaneval.STOP_SEQUENCES)
    outcomes = [humaneval.check(one, humaneval.cut(text)) for one, text in zip(fitting, answers, strict=True)]
    return {
        **from_shares([float(outcome.passed) for outcome in outcomes], "pass@1"),
        "n_too_long": len(every) - len(fitting),
        "max_new_tokens": n_new,
        "sandbox": sandbox.PROTECTION,
    }


def _ruler(model: HarnessModel, task: str, length: int, options: Options) -> Scores:
    if length > model.max_length:
        raise DoesNotFit(f"the model's context is {model.max_length:,} tokens; legal: a length up to that")
    n_new = min(ruler.TASKS[task].max_new_tokens, length // 8)
    try:
        samples = ruler.generate(
            task, model.tok_encode, length, options.limit or N_RULER, options.seed, max_new_tokens=n_new
        )
    except UserError as error:  # the shortest prompt is longer
        raise DoesNotFit(str(error)) from None
    outputs = model.continuations([sample.input for sample in samples], max_new_tokens=n_new)
    scores = from_shares(ruler.sample_scores(task, outputs, samples), "match")
    return {**scores, "ruler": ruler.facts(task, max_new_tokens=n_new)}
