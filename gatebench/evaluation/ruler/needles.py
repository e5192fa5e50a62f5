"""Needle in a haystack: one to four sentences "the number of KEY is VALUE" in a long text, and a question for them."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import ClassVar, Literal

from gatebench.data.retrieval_documents import draw_numbers
from gatebench.evaluation.ruler.task import Draft, Material, Task, find_needles
from gatebench.evaluation.ruler.templates import Templates

DEPTHS = tuple(round(i * 100 / 39) / 100 for i in range(40))
"""Where RULER puts needles in running text."""

Kind = Literal["word", "number", "uuid"]


@dataclass(frozen=True)
class NeedleTask(Task):
    """A task `niah_*`. Its size counts blocks of noise, words of running text, or needles nobody asks for."""

    hay: Literal["noise", "text", "needles"]
    key_kind: Kind
    value_kind: Kind
    n_keys: int = 1
    n_values: int = 1
    """Values of each key."""
    n_queries: int = 1

    max_new_tokens: ClassVar[int] = 128

    @property
    def n_needles(self) -> int:
        """Needles in the context, besides those that nobody asks for."""
        return self.n_keys * self.n_values

    @property
    def needs(self) -> Literal["haystack", "qa_file"] | None:
        return "haystack" if self.hay == "text" else None

    @property
    def asks_one_number(self) -> bool:
        """Whether an answer is one number and nothing else."""
        return self.value_kind == "number" and self.n_values == self.n_queries == 1

    def draft(self, rng: Random, size: int, material: Material) -> Draft:
        """Return a prompt; its needles and question are the same whatever the size."""
        templates = material.templates
        keys = draw(rng, self.key_kind, self.n_keys, material)
        values = draw(rng, self.value_kind, self.n_needles, material)
        values_of = {key: values[i :: self.n_keys] for i, key in enumerate(keys)}
        needles = [self.needle(key, value, templates) for key in keys for value in values_of[key]]
        rng.shuffle(needles)
        asked = rng.sample(keys, self.n_queries)

        if self.hay == "text":
            assert material.haystack is not None
            hay = material.haystack.sentences(rng, size)
            positions = sorted(int(len(hay) * depth) for depth in rng.sample(DEPTHS, len(needles)))
        else:
            if self.hay == "noise":
                hay = [" ".join(templates.noise)] * size
            else:
                other_keys = draw(rng, self.key_kind, size, material, besides=keys)
                other_values = draw(rng, self.value_kind, size, material, besides=values)
                pairs = zip(other_keys, other_values, strict=True)
                hay = [self.needle(key, value, templates) for key, value in pairs]
            positions = sorted(rng.sample(range(size), len(needles)))
        if material.depth is not None:
            positions = [boundary_at(material.depth, hay)]
        for position, needle in reversed(list(zip(positions, needles, strict=True))):
            hay.insert(position, needle)
        context = (" " if self.hay == "text" else "\n").join(hay)

        prompt = templates.one_value if self.n_queries * self.n_values == 1 else templates.many_values
        query = asked[0] if len(asked) == 1 else ", ".join(asked[:-1]) + f", and {asked[-1]}"
        text = prompt.text(context=context, query=query, kind=self.value_kind, kinds=f"{self.value_kind}s")
        answers = tuple(value for key in asked for value in values_of[key])
        return Draft(text, answers, find_needles(text, context, needles))

    def needle(self, key: str, value: str, templates: Templates) -> str:
        """Return the sentence that gives a key its value."""
        return templates.needle.format(key=key, value=value, kind=self.value_kind, kinds=f"{self.value_kind}s")


def boundary_at(depth: float, hay: list[str]) -> int:
    """Return before which of the passages `depth` (0 to 1) of their characters is nearest to be over."""
    ends = list(accumulate(map(len, hay), initial=0))
    return min(range(len(ends)), key=lambda i: abs(ends[i] - depth * ends[-1]))


def draw(rng: Random, kind: Kind, n: int, material: Material, besides: Collection[str] = ()) -> list[str]:
    """Return `n` words, numbers or version-4 UUIDs, none of them in `besides`; different where there are as many."""
    if kind == "uuid":
        return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(n)]
    if kind == "number":
        return draw_numbers(rng, material.digits, n, besides)
    return [word for word in material.templates.keys(rng, n + len(besides)) if word not in besides][:n]
