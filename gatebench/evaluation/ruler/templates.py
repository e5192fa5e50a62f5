"""The words of RULER's prompts: `gatebench`, short ones for small models, or `ruler`, read from the installed lm-eval.

RULER's own sentences are taken at run time from the package (they are not part of this repository), by reading its
source files without running them: importing them would download data.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

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
class Wording:
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


def wording(name: str) -> Wording:
    """Return a wording by its name. Raises UserError for an unknown name, or where lm-eval is not installed."""
    if name not in WORDINGS:
        raise UserError(f"wording {name!r} is unknown: {nearest(name, WORDINGS)}")
    return WORDINGS[name]()


def _made_up_words(rng: Random, n: int) -> list[str]:
    """Return `n` different words of two syllables, of three where many are needed."""
    n_syllables = 2 if 2 * n <= len(SYLLABLES) ** 2 else 3
    numbers = rng.sample(range(len(SYLLABLES) ** n_syllables), n)
    return ["".join(SYLLABLES[number // 100**i % 100] for i in range(n_syllables)) for number in numbers]


@cache
def _gatebench() -> Wording:
    return Wording(
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
def _ruler() -> Wording:
    """Raises UserError where lm-eval or wonderwords is not installed, or lm-eval has changed too much."""
    niah, needles = _literals("niah_utils.py"), _literals("prepare_niah.py")
    variables = _literals("vt_utils.py")("CONFIG")["variable_tracking"]
    common, frequent = _literals("cwe_utils.py")("CONFIG"), _literals("fwe_utils.py")("CONFIG")
    questions = _literals("qa_utils.py")
    many = niah("TEMPLATE").replace("type_needle_v", "kinds")
    many_prefix = " " + needles("gen_prefix").replace("type_needle_v", "kinds")
    nouns, adjectives, verbs = _wonderwords()
    words = sorted({*nouns, *adjectives, *verbs})
    return Wording(
        name=f"ruler (lm-eval {version('lm-eval')})",
        noise=tuple(re.split(r"(?<=\.) ", needles("haystack"))),
        needle=needles("NEEDLE").replace("type_needle_v", "kinds"),
        one_value=Prompt(_singular(many), _singular(many_prefix)),
        many_values=Prompt(many, many_prefix),
        variables=Prompt(variables["template"], variables["answer_prefix"].replace("num_v", "n")),
        common_words=Prompt(common["template"], common["answer_prefix"]),
        list_item="{i}. {word}",
        frequent_words=Prompt(frequent["template"], frequent["answer_prefix"]),
        questions=Prompt(questions("template"), " " + questions("answer_prefix")),
        document=questions("DOCUMENT_PROMPT"),
        keys=lambda rng, n: [
            f"{adjectives[number // len(nouns)]}-{nouns[number % len(nouns)]}"
            for number in rng.sample(range(len(adjectives) * len(nouns)), n)
        ],
        words=lambda rng, n: rng.sample(words, min(n, len(words))),
    )


WORDINGS: dict[str, Callable[[], Wording]] = {"gatebench": _gatebench, "ruler": _ruler}


def _singular(text: str) -> str:
    """Return a prompt about several values as one about one value, by the replacements that RULER makes."""
    return text.replace("Some", "A").replace("are all", "is").replace("are", "is").replace("{kinds}", "{kind}")


def _literals(file: str) -> Callable[[str], Any]:
    """Return a function that gives what a name, or a key of a dictionary, stands for in a file of lm-eval's RULER."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise _missing("lm-eval is not installed")
    path = Path(spec.submodule_search_locations[0]) / "tasks" / "ruler" / file
    if not path.is_file():
        raise _missing(f"lm-eval has no {path.name}")
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def value(name: str) -> Any:
        for node in ast.walk(tree):
            found: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                found = [node.value for target in node.targets if isinstance(target, ast.Name) and target.id == name]
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                found = [item for key, item in pairs if isinstance(key, ast.Constant) and key.value == name]
            for expression in found:
                if isinstance(expression, ast.IfExp):
                    expression = expression.orelse
                if isinstance(expression, ast.JoinedStr):
                    return _format_string(expression)
                if isinstance(expression, ast.Constant | ast.Dict):
                    return ast.literal_eval(expression)
        raise _missing(f"lm-eval's {file} has no {name}")

    return value


def _format_string(expression: ast.JoinedStr) -> str:
    """Return an f-string as a format string."""
    text = ""
    for part in expression.values:
        if isinstance(part, ast.FormattedValue):
            text += "{" + ast.unparse(part.value) + "}"
        elif isinstance(part, ast.Constant):
            text += str(part.value)
    return text


def _wonderwords() -> tuple[list[str], list[str], list[str]]:
    """Return the nouns, adjectives and verbs that RULER draws from."""
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise _missing("wonderwords is not installed") from error
    source = RandomWord()
    nouns, adjectives, verbs = (
        sorted(source.filter(include_categories=[kind])) for kind in ("noun", "adjective", "verb")
    )
    return nouns, adjectives, verbs


def _missing(what: str) -> UserError:
    return UserError(f"wording 'ruler': {what}: pip install 'gatebench[benchmarks]', or use the wording 'gatebench'")
