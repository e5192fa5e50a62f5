"""RULER's tasks at one length, of a needle also at one depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from gatebench.evaluation import ruler
from gatebench.evaluation.benchmarks.scores import mean_and_stderr
from gatebench.evaluation.generation import completer
from gatebench.model.transformer import Transformer

DEPTH_TASK = "niah_single_1"
MOST_NEW = 1 / 8
"""Share of the length that an answer may take at most; NVIDIA's numbers of tokens are for 4,096 tokens and more."""


@dataclass(frozen=True)
class RulerPrompts:
    """How RULER's prompts are made for a run, and put to its model."""

    corpus: Corpus
    bos: bool
    samples: int
    seed: int
    new_tokens: int | None
    """Tokens for an answer; None is NVIDIA's number, at most an eighth of the length, and of one short number (below
    seven digits) no more than it takes: one that stands anywhere in a long answer would be right."""
    digits: int = ruler.NVIDIA_DIGITS
    """Of the numbers that needles hold."""

    @cached_property
    def tokenizer(self) -> Any:
        """The corpus's."""
        return self.corpus.tokenizer()

    @cached_property
    def haystack(self) -> ruler.Haystack:
        """Held-out text to hide needles in."""
        domain = "literature" if "literature" in self.corpus.domains else self.corpus.domains[0]
        return ruler.heldout_haystack(self.corpus, domain)

    def encode(self, text: str) -> list[int]:
        """Return what the model is fed for a text."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return [self.corpus.bos_id, *ids] if self.bos else ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def generated(self, task: str, length: int, depth: float | None = None) -> list[ruler.Sample]:
        """Return samples of a task. Raises UserError where it does not fit the length."""
        kind = ruler.TASKS[task]
        most = min(kind.max_new_tokens, max(8, int(length * MOST_NEW)))
        if self.digits < ruler.NVIDIA_DIGITS and isinstance(kind, ruler.NeedleTask) and kind.asks_one_number:
            most = max(len(self.tokenizer.encode(f" {digit * self.digits}").ids) for digit in "0123456789")
        return ruler.generate(
            task,
            self.encode,
            length,
            self.samples,
            self.seed,
            haystack=self.haystack if kind.needs == "haystack" else None,
            max_new_tokens=self.new_tokens or most,
            depth=depth,
            digits=self.digits,
        )


def tasks_that_fit(prompts: RulerPrompts, tasks: Sequence[str], shortest: int) -> tuple[list[str], dict[str, str]]:
    """Return the tasks that fit the shortest length, and why others do not: a mean is over the same at every length."""
    fit, left_out = [], {}
    for task in tasks:
        try:
            prompts.generated(task, shortest)
            fit.append(task)
        except UserError as error:
            left_out[task] = str(error)
    return fit, left_out


def answered(
    model: Transformer,
    prompts: RulerPrompts,
    task: str,
    length: int,
    device: torch.device,
    *,
    cached: bool,
    depth: float | None = None,
) -> dict[str, float | int]:
    """Return a task's score and its standard error over samples, 0 to 100, with samples and tokens for an answer.

    `cached` decodes with the key-value cache; interventions act on a prefill, and so on every token only without it.
    """
    samples = prompts.generated(task, length, depth)
    complete = completer(
        model,
        prompts.decode,
        device=device,
        stop=(prompts.corpus.eos_id,),
        cached=cached,
        batch_size=8 if cached else 1,
    )
    shares = ruler.evaluate(task, samples, prompts.encode, complete).scores
    mean, stderr = mean_and_stderr([100 * share for share in shares])
    return {"score": mean, "stderr": stderr or 0.0, "n": len(shares), "new_tokens": samples[0].max_new_tokens}
