"""Variable tracking: a chain X1 = 12345, X2 = X1, ... scattered over noise; which variables have the value 12345?"""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from gatebench.evaluation.ruler.task import Draft, Material, Task, find_needles
from gatebench.evaluation.ruler.templates import Templates

N_HOPS = 4
EXAMPLE_NOISE = 50
"""Sentences of noise in the example at 4,096 tokens and more; NVIDIA's example has about 500 tokens."""


@dataclass(frozen=True)
class VariableTracking(Task):
    """The task `vt`: one chain of four hops, after one solved example. Its size counts sentences of noise."""

    max_new_tokens: ClassVar[int] = 30

    def draft(self, rng: Random, size: int, material: Material) -> Draft:
        """Return a prompt. Below 4,096 tokens the example has hardly any noise, so that the question has some."""
        example_noise = EXAMPLE_NOISE if material.length >= 4096 else 1
        example = _question(Random(rng.random()), example_noise, 3, material.templates)
        question = _question(Random(rng.random()), size, 5, material.templates)
        text = f"{example.input} {' '.join(example.answers)}\n\n{question.input}"
        before = len(text) - len(question.input)
        needles = (replace(n, start=n.start + before, stop=n.stop + before) for n in question.needles)
        return Draft(text, question.answers, tuple(needles))


def _question(rng: Random, n_noise: int, name_length: int, templates: Templates) -> Draft:
    """Return one chain among `n_noise` sentences of noise, and the question for its variables."""
    names: list[str] = []
    while len(names) <= N_HOPS:
        name = "".join(rng.choices(string.ascii_uppercase, k=name_length))
        if name not in names:
            names.append(name)
    value = str(rng.randrange(10000, 99999))
    sources = [value, *(f"VAR {name}" for name in names[:-1])]
    statements = [f"VAR {name} = {source}" for name, source in zip(names, sources, strict=True)]

    block = len(templates.noise)
    sentences = [templates.noise[i % block] + ("\n" if (i + 1) % block == 0 else "") for i in range(n_noise)]
    positions = sorted(rng.randrange(n_noise + 1) for _ in statements)
    for position, statement in reversed(list(zip(positions, statements, strict=True))):
        sentences.insert(position, statement)
    context = " ".join(sentences).replace("\n ", "\n")
    text = templates.variables.text(context=context, query=value, n=len(names))
    return Draft(text, tuple(names), find_needles(text, context, statements))
