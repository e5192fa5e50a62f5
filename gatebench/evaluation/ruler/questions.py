"""Questions whose documents stand among others: `qa_1` from a SQuAD file, `qa_2` from a HotpotQA file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal

from gatebench.errors import UserError
from gatebench.evaluation.ruler.task import Draft, Material, Task, find_needles


@dataclass(frozen=True)
class Question:
    """A question with its right answers, any of which will do."""

    query: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    """Documents that have to be there."""
    related: tuple[int, ...] = ()
    """Documents that distract first: of the same article."""


Questions = tuple[tuple[Question, ...], tuple[str, ...]]
"""Questions and documents."""


@dataclass(frozen=True)
class QuestionAnswering(Task):
    """The tasks `qa_1` and `qa_2`. Their size counts the documents besides those that the answer needs."""

    source: Literal["SQuAD", "HotpotQA"]

    max_new_tokens: ClassVar[int] = 32
    scoring: ClassVar[Literal["all", "part"]] = "part"
    smallest: ClassVar[int] = 0

    @property
    def needs(self) -> Literal["haystack", "qa_file"] | None:
        return "qa_file"

    def draft(self, rng: Random, size: int, material: Material) -> Draft:
        """Return a prompt with one question of the file. Raises UserError for a file that is not of this source."""
        assert material.qa_file is not None
        questions, documents = read_questions(material.qa_file, self.source)
        question = rng.choice(questions)
        related = rng.sample(question.related, len(question.related))
        others = rng.sample(range(len(documents)), min(len(documents), size + len(question.gold) + len(related)))
        distractors = [*related, *(i for i in others if i not in question.gold and i not in related)]
        chosen = [*question.gold, *distractors[:size]]
        rng.shuffle(chosen)
        shown = {
            i: material.templates.document.format(i=n, document=documents[i]) for n, i in enumerate(chosen, start=1)
        }
        context = "\n\n".join(shown.values())
        text = material.templates.questions.text(context=context, query=question.query)
        return Draft(text, question.answers, find_needles(text, context, [shown[i] for i in question.gold]))


@lru_cache(maxsize=4)
def read_questions(path: Path, source: Literal["SQuAD", "HotpotQA"]) -> Questions:
    """Return the questions that have an answer, and all documents.

    Raises:
        UserError: no such file, or not the JSON of SQuAD 2.0 (dev-v2.0) or HotpotQA (hotpot_dev_distractor_v1).
    """
    read = {"SQuAD": _squad, "HotpotQA": _hotpotqa}[source]
    try:
        questions, documents = read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"qa file {path}: {error.strerror}; it must be a {source} JSON file") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"qa file {path} is no {source} JSON file: {error!r}") from error
    if not questions:
        raise UserError(f"qa file {path} has no question with an answer")
    return questions, documents


def _squad(data: Any) -> Questions:
    articles = [[paragraph["context"] for paragraph in article["paragraphs"]] for article in data["data"]]
    documents = sorted({text for article in articles for text in article})
    number = {text: i for i, text in enumerate(documents)}
    questions = []
    for article, texts in zip(data["data"], articles, strict=True):
        for paragraph in article["paragraphs"]:
            gold = number[paragraph["context"]]
            related = sorted({number[text] for text in texts} - {gold})
            for qa in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in qa["answers"]))
                if answers and not qa.get("is_impossible", False):
                    questions.append(Question(qa["question"], answers, (gold,), tuple(related)))
    return tuple(questions), tuple(documents)


def _hotpotqa(data: Any) -> Questions:
    texts = [[f"{title}\n{''.join(sentences)}" for title, sentences in entry["context"]] for entry in data]
    documents = sorted({text for entry in texts for text in entry})
    number = {text: i for i, text in enumerate(documents)}
    questions = [
        Question(entry["question"], (entry["answer"],), tuple(dict.fromkeys(number[text] for text in own)))
        for entry, own in zip(data, texts, strict=True)
    ]
    return tuple(questions), tuple(documents)
