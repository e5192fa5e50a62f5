"""The 281 questions of MMLU's development split that lie inside the lm-eval package, as items without a network.

They are the examples that the harness puts before MMLU's questions, with the reasoning cut off. Whether a model has
seen them in training nobody knows, and they are not MMLU's test: the task is called `gb_mmlu_dev`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from gatebench.evaluation.benchmarks.items import Item

LETTERS = "ABCD"
_QUESTION = re.compile(
    r"Q: (?P<question>.+?)\s*\n\(A\) (?P<A>.+?)\s\(B\) (?P<B>.+?)\s\(C\) (?P<C>.+?)\s\(D\) (?P<D>.+?)\n"
    r"A: Let's think step by step\..*?The answer is \((?P<answer>[ABCD])\)",
    re.DOTALL,
)


def mmlu_dev() -> list[Item]:
    """Return every question that parses, in MMLU's format without examples; the choices are the four letters."""
    import lm_eval

    path = Path(lm_eval.__file__).parent / "tasks" / "mmlu" / "flan_cot_fewshot" / "_cot_prompts.json"
    items = []
    for subject, text in json.loads(path.read_text(encoding="utf-8")).items():
        head = f"The following are multiple choice questions (with answers) about {subject.replace('_', ' ')}."
        for part in re.split(r"(?:^|\n\n)(?=Q: )", text):
            if match := _QUESTION.match(part):
                choices = "".join(f"{letter}. {match[letter].strip()}\n" for letter in LETTERS)
                context = f"{head}\n\n{match['question'].strip()}\n{choices}Answer:"
                items.append(Item(context, tuple(f" {letter}" for letter in LETTERS), LETTERS.index(match["answer"])))
    return items
