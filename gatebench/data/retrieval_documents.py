"""Retrieval documents: facts hidden in text, and questions that the window alone answers, beside windows of text.

A document has one to `max_facts` facts "KEY is VALUE" in one of a few wordings, spread over running text, over a few
sentences that repeat, or alone; then questions for them, each with its answer. Keys are made-up words and values drawn
numbers, so that nothing but the window tells an answer. Sequence number i of a run is a pure function of
(corpus, configuration, data seed, i).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatebench.config import RetrievalConfig
from gatebench.data.permutation import stable_hash
from gatebench.data.tokens import Corpus, TrainingWindows
from gatebench.errors import UserError

SYLLABLES = tuple(consonant + vowel for consonant, vowel in product("bcdfghjklmnpqrstvwxz", "aeiou"))
NOISE = ("Rain fell on the hill.", "The road was long.", "Nobody came by.", "The lamp stayed lit.", "Then it was day.")
"""Sentences that say nothing, repeated in this order; RULER's in our wording, too."""


@dataclass(frozen=True)
class Phrasing:
    """How facts and questions are put; an answer is a blank and the value."""

    head: str
    fact: str
    question: str
    """Up to its answer."""


PHRASINGS = (
    Phrasing(
        "Remember each number in this text.\n",
        "The number of {key} is {value}.",
        "\nWhat is the number of {key}? The number of {key} is",
    ),
    Phrasing("", "{key}: {value}.", "\n{key}:"),
    Phrasing("A list of codes.\n", "The code of {key} is {value}.", "\nThe code of {key} is"),
    Phrasing("", "{key} = {value};", "\nprint {key} ="),
)
"""The first is RULER's needle in our wording (`evaluation/ruler/templates.py`)."""

JOINERS = (" ", "\n")
"""Before a fact."""


def numbers(digits: int) -> range:
    """Return the numbers of that many digits."""
    return range(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


def draw_numbers(rng: Random, digits: int, n: int, besides: Collection[str] = ()) -> list[str]:
    """Return `n` numbers that are not in `besides`, different ones where there are as many."""
    legal = numbers(digits)
    if n + len(besides) <= len(legal):
        drawn = map(str, rng.sample(legal, n + len(besides)))
        return [number for number in drawn if number not in besides][:n]
    return rng.choices([number for number in map(str, legal) if number not in besides], k=n)


class RetrievalDocuments:
    """Sequences of exactly `length` tokens by number, made of one split's text and facts hidden in it."""

    def __init__(self, corpus: Corpus, config: RetrievalConfig, length: int, split: str, seed: int = 0) -> None:
        self.corpus = corpus
        self.config = config
        self.length = length
        self.split = split
        self.seed = seed
        self._least = self._least_length()
        if length < self._least:
            raise self._too_short(self._least)

    def _too_short(self, least: int) -> UserError:
        key = "eval.seq_len" if self.split == "heldout" else "data.seq_len"
        return UserError(f"{key}={self.length}: a retrieval document needs {least} or more")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("tokenizer", "_begins_word")}

    @cached_property
    def tokenizer(self) -> Any:
        """The corpus's."""
        return self.corpus.tokenizer()

    @cached_property
    def _begins_word(self) -> NDArray[np.bool_]:
        """Of each token, whether it begins with a blank or a new line."""
        tokens = [self.tokenizer.id_to_token(i) or "" for i in range(self.corpus.vocab_size)]
        return np.array([token[:1] in ("Ġ", "Ċ") for token in tokens])

    def _least_length(self) -> int:
        """Return the tokens of one fact and its question in the longest wording, for one key and value."""
        key, value = "zuzu", "9876543"[: self.config.digits]
        return max(
            len(self._encode(phrasing.head))
            + len(self._encode(joiner + phrasing.fact.format(key=key, value=value)))
            + len(self._question(phrasing, key, value)[0])
            for phrasing in PHRASINGS
            for joiner in JOINERS
        )

    def document(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return a sequence of one document or, in training, of several, and which tokens are answers, both (length,).

        Raises UserError where not one fact fits.
        """
        rng = Random(stable_hash("retrieval", self.split, self.seed, number))
        shortest = self.config.shortest
        if self.split != "train" or shortest is None or rng.random() < 0.5:
            whole = self._document(rng, self.length, self.length)
            assert whole is not None  # it may take all there is
            return whole
        parts: list[tuple[NDArray[np.int64], NDArray[np.bool_]]] = []
        while (room := self.length - sum(len(ids) for ids, _ in parts)) >= self._least:
            length = int(shortest * max(1.0, room / shortest) ** rng.random())
            if room - length < max(shortest, self._least):
                length = room
            if (part := self._document(rng, length, room)) is None:
                break
            parts.append(part)
        if room:
            parts.append((self._text(rng, room), np.zeros(room, bool)))
        ids, marks = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(marks)

    def _document(self, rng: Random, length: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]] | None:
        """Return one document of `length` tokens, or of as many as a fact and a question need; None above `most`.

        Raises UserError where these do not fit the window.
        """
        phrasing = rng.choice(PHRASINGS)
        joiner = rng.choice(JOINERS)
        n_facts = rng.randint(1, self.config.max_facts)
        keys = _keys(rng, n_facts)
        pairs = list(zip(keys, draw_numbers(rng, self.config.digits, n_facts), strict=True))
        head = self._encode(phrasing.head)
        facts = [self._encode(joiner + phrasing.fact.format(key=key, value=value)) for key, value in pairs]
        questions = [self._question(phrasing, *pair) for pair in pairs]
        every = self.config.question_every if self.split == "train" else None
        if every is None:
            asked = rng.sample(range(n_facts), n_facts)
        else:
            n_questions = rng.randint(1, max(1, length // every))
            asked = [rng.randrange(n_facts) for _ in range(n_questions)]

        def room() -> int:
            needed = len(head) + sum(map(len, facts)) + sum(len(questions[i][0]) for i in asked)
            return length - needed

        while room() < 0 and len(asked) + len(facts) > 2:  # leave questions out, then facts
            if len(asked) > len(facts):
                asked.pop()
            else:
                facts.pop()
                asked = [i for i in asked if i < len(facts)] or [0]
        if (needed := length - room()) > self.length:
            raise self._too_short(needed)
        if needed > most:
            return None
        context = self._spread(rng, facts, self._hay(rng, max(0, room())))
        texts, marks = zip(*(questions[i] for i in asked), strict=True)
        return (
            np.concatenate([head, context, *texts]),
            np.concatenate([np.zeros(len(head) + len(context), bool), *marks]),
        )

    def _question(self, phrasing: Phrasing, key: str, value: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return a question with its answer and a full stop, and which tokens are the answer."""
        asked, answer = self._encode(phrasing.question.format(key=key)), self._encode(f" {value}")
        text = np.concatenate([asked, answer, self._encode(".")])
        position = np.arange(len(text))
        return text, (position >= len(asked)) & (position < len(asked) + len(answer))

    def _hay(self, rng: Random, n_tokens: int) -> NDArray[np.int64]:
        """Return running text of the split, or noise."""
        if rng.random() < self.config.noise_share:
            return np.resize(self._encode(" " + " ".join(NOISE)), n_tokens)
        return self._text(rng, n_tokens)

    def _text(self, rng: Random, n_tokens: int) -> NDArray[np.int64]:
        """Return running text of the split, from its beginning again where it ends."""
        domain = rng.choice(self.corpus.domains)
        total = self.corpus.n_tokens(self.split, domain)
        start = rng.randrange(max(1, total - n_tokens + 1))
        return np.resize(self.corpus.tokens(self.split, domain, start, min(total, start + n_tokens)), n_tokens)

    def _spread(self, rng: Random, facts: list[NDArray[np.int64]], hay: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the hay with the facts in it, at beginnings of words where it has enough of them."""
        places = np.flatnonzero(self._begins_word[hay]).tolist()
        if len(places) < len(facts):
            places = list(range(len(hay) + 1))
        chosen = sorted(rng.choices(places, k=len(facts)))
        parts = []
        for fact, start, stop in zip(facts, chosen, [*chosen[1:], len(hay)], strict=True):
            parts += [fact, hay[start:stop]]
        return np.concatenate([hay[: chosen[0]], *parts])

    def _encode(self, text: str) -> NDArray[np.int64]:
        return np.array(self.tokenizer.encode(text).ids, dtype=np.int64)


class RetrievalWindows:
    """Training windows of text, and among them, evenly, a share of retrieval documents; for one data seed."""

    def __init__(self, text: TrainingWindows, config: RetrievalConfig) -> None:
        self.text = text
        self.config = config
        length = text.seq_len + (not text.bos)
        self.documents = RetrievalDocuments(text.corpus, config, length, "train", text.seed)

    def batch(self, step: int, batch_size: int) -> NDArray[np.int64]:
        """Sequences step * B .. step * B + B - 1; (B, L + 1) int64."""
        return np.stack([self.sequence(i) for i in range(step * batch_size, (step + 1) * batch_size)])

    def sequence(self, index: int) -> NDArray[np.int64]:
        """Sequence number `index` of the run, counted from 0 without end; (L + 1,) int64."""
        n_before = int(index * self.config.share)
        if int((index + 1) * self.config.share) == n_before:
            return self.text.sequence(index - n_before)
        document, _ = self.documents.document(n_before)
        return np.concatenate([[self.text.corpus.bos_id], document]) if self.text.bos else document


def _keys(rng: Random, n: int) -> list[str]:
    """Return `n` different words of two syllables."""
    numbers = rng.sample(range(len(SYLLABLES) ** 2), n)
    return ["".join(SYLLABLES[part] for part in divmod(number, len(SYLLABLES))) for number in numbers]
