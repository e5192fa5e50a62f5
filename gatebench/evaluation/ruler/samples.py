"""Samples of a RULER task: prompts as long as fit, together with the answer's tokens, in a length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from gatebench.errors import UserError, nearest
from gatebench.evaluation.ruler.haystack import Haystack
from gatebench.evaluation.ruler.needles import NeedleTask
from gatebench.evaluation.ruler.questions import QuestionAnswering
from gatebench.evaluation.ruler.task import NVIDIA_DIGITS, Draft, Material, Sample, Task
from gatebench.evaluation.ruler.templates import templates_of
from gatebench.evaluation.ruler.variables import VariableTracking
from gatebench.evaluation.ruler.words import CommonWords, FrequentWords

TASKS: dict[str, Task] = {
    "niah_single_1": NeedleTask("noise", "word", "number"),
    "niah_single_2": NeedleTask("text", "word", "number"),
    "niah_single_3": NeedleTask("text", "word", "uuid"),
    "niah_multikey_1": NeedleTask("text", "word", "number", n_keys=4),
    "niah_multikey_2": NeedleTask("needles", "word", "number"),
    "niah_multikey_3": NeedleTask("needles", "uuid", "uuid"),
    "niah_multivalue": NeedleTask("text", "word", "number", n_values=4),
    "niah_multiquery": NeedleTask("text", "word", "number", n_keys=4, n_queries=4),
    "vt": VariableTracking(),
    "cwe": CommonWords(),
    "fwe": FrequentWords(),
    "qa_1": QuestionAnswering("SQuAD"),
    "qa_2": QuestionAnswering("HotpotQA"),
}
"""RULER's thirteen tasks. Those whose `needs` is None are made of nothing but their templates."""

Encode = Callable[[str], list[int]]
"""The token ids that the model is fed for a text, BOS included where it was trained with one."""


def task(name: str) -> Task:
    """Return a task by its name. Raises UserError for an unknown one."""
    if name not in TASKS:
        raise UserError(f"RULER task {name!r} is unknown: {nearest(name, TASKS)}")
    return TASKS[name]


def generate(
    name: str,
    encode: Encode,
    length: int,
    n: int,
    seed: int = 42,
    *,
    wording: str = "gatebench",
    haystack: Haystack | None = None,
    qa_file: Path | None = None,
    max_new_tokens: int | None = None,
    depth: float | None = None,
    digits: int = NVIDIA_DIGITS,
) -> list[Sample]:
    """Return `n` samples of the task `name`; a pure function of its arguments.

    Prompt and answer take at most `length` tokens, and one more unit of text would not fit. Sample i asks for the same
    needle at every length. Nothing is ever cut off a prompt.

    Args:
        encode: the ids that the model is fed for a text.
        wording: "gatebench", short prompts; "ruler", RULER's own, of the installed lm-eval.
        haystack: running text, for the tasks that hide needles in some.
        qa_file: the SQuAD (qa_1) or HotpotQA (qa_2) JSON file.
        max_new_tokens: tokens for the answer; NVIDIA's number for the task if None.
        depth: where the needle goes, 0 (first) to 1 (last), for tasks with one; drawn if None.
        digits: of the numbers that needles hold, 1 to 7. A guess is right one time in 10 where it is 1.

    Raises:
        UserError: an unknown task or wording, other digits, what the task needs is not given, or a `length` that is too
            short for it.
    """
    kind = task(name)
    given = {"haystack": haystack, "qa_file": qa_file}
    if kind.needs is not None and given[kind.needs] is None:
        needed = {"haystack": "running text (a haystack)", "qa_file": "a question file (qa_1: SQuAD, qa_2: HotpotQA)"}
        raise UserError(f"RULER task {name!r} needs {needed[kind.needs]}")
    if depth is not None and not (isinstance(kind, NeedleTask) and kind.n_needles == 1 and 0 <= depth <= 1):
        single = [other for other, it in TASKS.items() if isinstance(it, NeedleTask) and it.n_needles == 1]
        raise UserError(f"depth {depth:g} of task {name!r}: it must be 0 to 1, the task one of {', '.join(single)}")
    if not 1 <= digits <= NVIDIA_DIGITS:
        raise UserError(f"digits={digits}: numbers in needles have 1 to {NVIDIA_DIGITS} digits")
    n_new = kind.max_new_tokens if max_new_tokens is None else max_new_tokens
    material = Material(length, templates_of(wording), haystack, qa_file, depth, digits)

    def draft(i: int, size: int) -> Draft:
        return kind.draft(Random(f"{seed} {name} {i}"), size, material)

    def room(i: int, size: int) -> int:
        return length - n_new - len(encode(draft(i, size).input))

    samples = []
    size = max(kind.smallest, length // 16)
    for i in range(n):
        size = _largest(partial(room, i), kind.smallest, size, length)
        if size < kind.smallest:
            least = length - min(room(j, kind.smallest) for j in range(n))
            raise UserError(
                f"RULER task {name!r} does not fit length {length}: in the wording {wording!r} and with {n_new} tokens "
                f"for the answer it takes at least {least}"
            )
        chosen = draft(i, size)
        samples.append(Sample(chosen.input, chosen.answers, n_new, len(encode(chosen.input)), chosen.needles))
    return samples


def _largest(room: Callable[[int], int], smallest: int, guess: int, limit: int) -> int:
    """Return a size from `smallest` to `limit` that has room while the next has not; `smallest` - 1 if none has.

    Secant steps: `room` is about linear, and each call of it encodes a whole prompt.
    """
    low, high = smallest - 1, limit + 1  # low has room or is below all, high has none or is above all
    last_size, last_left = 0, limit
    while high - low > 1:
        size = min(max(guess, low + 1), high - 1)
        left = room(size)
        if left >= 0:
            low = size
        else:
            high = size
        per_unit = (last_left - left) / (size - last_size) if size != last_size else 0.0
        last_size, last_left = size, left
        guess = size + (int(left / max(per_unit, 0.5)) or (1 if left >= 0 else -1))
    return low


def depth_grid(
    name: str,
    encode: Encode,
    lengths: Sequence[int],
    depths: Sequence[float],
    n: int,
    seed: int = 42,
    **settings: Any,
) -> Iterator[tuple[int, float, list[Sample]]]:
    """Yield (length, depth, samples) for a map of retrieval over both; "niah_single_1" is the passkey test.

    Sample i asks for the same needle everywhere. `settings` and errors are those of `generate`.
    """
    for length in lengths:
        for depth in depths:
            yield length, depth, generate(name, encode, length, n, seed, depth=depth, **settings)


def facts(
    name: str,
    *,
    wording: str = "gatebench",
    haystack: Haystack | None = None,
    max_new_tokens: int | None = None,
    digits: int = NVIDIA_DIGITS,
) -> dict[str, str | int | None]:
    """Return what has to be recorded beside a score, for a score means nothing without it. Raises UserError."""
    kind = task(name)
    numbers = isinstance(kind, NeedleTask) and kind.value_kind == "number"
    return {
        "task": name,
        "wording": templates_of(wording).name,
        "haystack": haystack.name if haystack is not None and kind.needs == "haystack" else None,
        "max_new_tokens": kind.max_new_tokens if max_new_tokens is None else max_new_tokens,
        "scoring": kind.scoring,
        **({"digits": digits} if numbers and digits != NVIDIA_DIGITS else {}),
    }
