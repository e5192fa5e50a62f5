"""The texts of RULER's prompts: `gatebench`, short ones for small models, or `ruler`, those of the installed lm-eval.

RULER's own sentences are not part of this repository: they are what the code of lm-eval's tasks has when it is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from random import Random
from unittest import mock

from gatebench.data.retrieval_documents import NOISE, SYLLABLES
from gatebench.errors import UserError, nearest

Draw = Callable[[Random, int], list[str]]
"""Draws that many different words, or all there are."""


@dataclass(frozen=True)
class Prompt:
    """The text before the answer: a template with the context and the question, and how the answer begins."""

    template: str
    answer_prefix: str

    def text(self, **fields: object) -> str:
        """Return the filled-in prompt. No blank at its end: the answer's first token brings its own."""
        return (self.template.format(**fields) + self.answer_prefix.format(**fields)).rstrip()


@dataclass(frozen=True)
class Templates:
    """Every sentence that the tasks use, as format strings, and where their words come from."""

    name: str
    noise: tuple[str, ...]
    """Sentences that say nothing, repeated in this order."""
    needle: str
    """Fields: kind, kinds, key, value."""
    one_value: Prompt
    """Fields: context, kind, query."""
    many_values: Prompt
    """Fields: context, kinds, query."""
    variables: Prompt
    """Fields: context, n, query."""
    common_words: Prompt
    """Field: context."""
    list_item: str
    """Fields: i, word."""
    frequent_words: Prompt
    """Field: context."""
    questions: Prompt
    """Fields: context, query."""
    document: str
    """Fields: i, document."""
    keys: Draw
    """Names of needles."""
    words: Draw
    """Words of lists."""


def templates_of(wording: str) -> Templates:
    """Return the templates of a wording. Raises UserError for an unknown name, or where lm-eval is not installed."""
    if wording not in WORDINGS:
        raise UserError(f"wording {wording!r} is unknown: {nearest(wording, WORDINGS)}")
    return WORDINGS[wording]()


def _made_up_words(rng: Random, n: int) -> list[str]:
    """Return `n` different words of two syllables, of three where many are needed."""
    n_syllables = 2 if 2 * n <= len(SYLLABLES) ** 2 else 3
    numbers = rng.sample(range(len(SYLLABLES) ** n_syllables), n)
    return ["".join(SYLLABLES[number // 100**i % 100] for i in range(n_syllables)) for number in numbers]


@cache
def _gatebench() -> Templates:
    return Templates(
        name="gatebench",
        noise=NOISE,
        needle="The {kind} of {key} is {value}.",
        one_value=Prompt(
            "Remember each {kind} in this text.\n{context}\nWhat is the {kind} of {query}?",
            " The {kind} of {query} is",
        ),
        many_values=Prompt(
            "Remember all {kinds} in this text.\n{context}\nWhat are the {kinds} of {query}?",
            " The {kinds} of {query} are",
        ),
        variables=Prompt(
            "Follow the variables in this text.\n{context}\nWhich variables have the value {query}?",
            " These {n} variables have the value {query}:",
        ),
        common_words=Prompt(
            "Some words of this list come more often than others.\n{context}\nWhich 10 words come most often?",
            " The 10 words are:",
        ),
        list_item="{word}",
        frequent_words=Prompt(
            "Count the words of this text, but not the dots.\n{context}\nWhich three words come most often?",
            " The three words are:",
        ),
        questions=Prompt(
            "Answer the question from these documents in a few words.\n\n{context}\n\nQuestion: {query}", "\nAnswer:"
        ),
        document="Document {i}:\n{document}",
        keys=_made_up_words,
        words=_made_up_words,
    )


@cache
def _ruler() -> Templates:
    """Return what the code of lm-eval's tasks has. Raises UserError where it cannot be imported."""
    try:
        # Their import downloads a model of where sentences end, for the essays alone.
        with mock.patch("nltk.data.find"):
            from lm_eval.tasks.ruler import cwe_utils, fwe_utils, niah_utils, prepare_niah, qa_utils, vt_utils
    except ImportError as error:
        package = (error.name or "lm-eval").partition(".")[0].replace("_", "-")
        raise UserError(
            f"wording 'ruler': {package} is not installed: pip install 'gatebench[benchmarks]', or use the wording "
            "'gatebench'"
        ) from error
    variables = vt_utils.CONFIG["variable_tracking"]
    many = niah_utils.TEMPLATE.replace("type_needle_v", "kinds")
    asked = many.rpartition("\n")[2]
    answer = asked.replace("What are all the", " The").replace("?", " are")
    return Templates(
        name=f"ruler (lm-eval {version('lm-eval')})",
        noise=tuple(re.split(r"(?<=\.) ", prepare_niah.get_haystack("repeat"))),
        needle=prepare_niah.NEEDLE.replace("type_needle_v", "kinds"),
        one_value=Prompt(_singular(many), _singular(answer)),
        many_values=Prompt(many, answer),
        variables=Prompt(variables["template"], variables["answer_prefix"].replace("num_v", "n")),
        common_words=Prompt(cwe_utils.CONFIG["template"], cwe_utils.CONFIG["answer_prefix"]),
        list_item="{i}. {word}",
        frequent_words=Prompt(fwe_utils.CONFIG["template"], fwe_utils.CONFIG["answer_prefix"]),
        questions=Prompt(qa_utils.CONFIG["template"], " " + qa_utils.CONFIG["answer_prefix"]),
        document=qa_utils.DOCUMENT_PROMPT,
        keys=lambda rng, n: rng.sample(prepare_niah.WORDS, n),
        words=lambda rng, n: rng.sample(cwe_utils.WORDS, min(n, len(cwe_utils.WORDS))),
    )


def _singular(text: str) -> str:
    """Return a prompt about several values as one about one value, by the replacements that RULER makes."""
    return text.replace("Some", "A").replace("are all", "is").replace("are", "is").replace("{kinds}", "{kind}")


WORDINGS: dict[str, Callable[[], Templates]] = {"gatebench": _gatebench, "ruler": _ruler}
