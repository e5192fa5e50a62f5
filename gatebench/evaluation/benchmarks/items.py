"""Multiple-choice items made here, the same every time: from held-out documents of a corpus, or from a seed alone.

Every item is text, so that models with different tokenizers get the same ones. No item is in the training data of a
run on the same corpus, whose held-out documents are decontaminated.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gatebench.data.tokens import Corpus
from gatebench.errors import DoesNotFit

VERSION = 1
"""Of the items below; a change of any of them is a new one."""
N_ITEMS = 300
N_CHOICES = 4
CLOZE_DOMAINS = ("english", "chinese", "code", "math", "law", "literature")
CONTEXT_TOKENS, CONTINUATION_TOKENS = 64, 8
"""Of a cloze item, in tokens of the corpus."""
CONTEXT_LINES = 4
MIN_LINE, MAX_LINE = 16, 80
"""Characters of a line of verse."""
FEWEST_LINES = 20
"""Of a text that counts as verse."""


@dataclass(frozen=True)
class Item:
    """A question with one right answer; the texts are scored as they are, nothing is put between them."""

    context: str
    choices: tuple[str, ...]
    answer: int
    """Place of the right choice."""


def fingerprint(items: Sequence[Item]) -> str:
    """Return sha256 (hex, 16 digits) of the items."""
    content = json.dumps([asdict(item) for item in items], ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def cloze(corpus: Corpus, domain: str) -> list[Item]:
    """Return a passage, how it goes on, and three passages from elsewhere in its document; all begin with a word."""
    rng, tokenizer = _rng(f"cloze/{domain}"), corpus.tokenizer()
    starts_word = np.array([_starts_word(tokenizer.decode([token])) for token in range(corpus.vocab_size)])
    documents = []
    for ids in _heldout_documents(corpus, domain):
        places = np.flatnonzero(starts_word[ids])
        places = places[places + CONTINUATION_TOKENS <= len(ids)]
        if np.any(places >= CONTEXT_TOKENS) and len(places) >= N_CHOICES:
            documents.append((ids, places))
    weights = [len(ids) for ids, _ in documents]

    def text(ids: NDArray[np.int64], start: int, n: int) -> str:
        return str(tokenizer.decode(ids[start : start + n].tolist()))

    def attempt() -> Item | None:
        ids, places = rng.choices(documents, weights)[0]
        start = rng.choice(places[places >= CONTEXT_TOKENS].tolist())
        seen = (places > start - CONTEXT_TOKENS - CONTINUATION_TOKENS) & (places < start + CONTINUATION_TOKENS)
        apart = places[~seen].tolist()
        if len(apart) < N_CHOICES - 1:
            return None
        others = [text(ids, place, CONTINUATION_TOKENS) for place in rng.sample(apart, N_CHOICES - 1)]
        context = text(ids, start - CONTEXT_TOKENS, CONTEXT_TOKENS)
        return _item(rng, context, text(ids, start, CONTINUATION_TOKENS), others)

    return _collect(attempt if documents else lambda: None, corpus, domain)


def next_line(corpus: Corpus, domain: str = "literature") -> list[Item]:
    """Return four lines of verse, the fifth, and three other lines of the poem at least as far away."""
    rng, tokenizer = _rng("next_line"), corpus.tokenizer()
    poems = []
    for ids in _heldout_documents(corpus, domain):
        lines = [line for line in tokenizer.decode(ids.tolist()).split("\n") if MIN_LINE <= len(line) <= MAX_LINE]
        if len(lines) >= FEWEST_LINES:
            poems.append(lines)

    def attempt() -> Item | None:
        lines = rng.choices(poems, [len(poem) for poem in poems])[0]
        place = rng.randrange(CONTEXT_LINES, len(lines))
        apart = [line for number, line in enumerate(lines) if abs(number - place) > CONTEXT_LINES]
        context = "\n".join(lines[place - CONTEXT_LINES : place]) + "\n"
        return _item(rng, context, lines[place], rng.sample(apart, N_CHOICES - 1))

    return _collect(attempt if poems else lambda: None, corpus, domain)


_PAIRS = {"(": ")", "[": "]", "{": "}"}
_NAMES = "x y n i data name value key index items self list args node text line size func result".split()


def brackets() -> list[Item]:
    """Return an expression with two to four brackets open; the answer closes the innermost, the wrong ones do not."""
    rng = _rng("brackets")

    def attempt() -> Item | None:
        opened = rng.choices(list(_PAIRS), k=rng.randint(2, 4))
        text = f"{rng.choice(_NAMES)} = "
        for bracket in opened:
            before = f"{rng.choice(_NAMES)}{_closed(rng)}, " if rng.random() < 0.5 else ""
            text += f"{rng.choice(_NAMES)}{bracket}{before}"
        right = _PAIRS[opened[-1]]
        return _item(rng, text + rng.choice(_NAMES), right, [other for other in _PAIRS.values() if other != right])

    return _collect(attempt)


def _closed(rng: random.Random) -> str:
    bracket = rng.choice(list(_PAIRS))
    return f"{bracket}{rng.choice(_NAMES)}{_PAIRS[bracket]}"


_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information"
).split()
COPIED_WORDS = 8


def copy() -> list[Item]:
    """Return a sequence of words twice and its beginning a third time; the answer is the next of them."""
    rng = _rng("copy")

    def attempt() -> Item | None:
        words = rng.sample(_WORDS, COPIED_WORDS)
        place = rng.randrange(2, COPIED_WORDS)
        others = rng.sample([f" {word}" for word in words if word != words[place]], N_CHOICES - 1)
        return _item(rng, " ".join(words * 2 + words[:place]), f" {words[place]}", others)

    return _collect(attempt)


def _heldout_documents(corpus: Corpus, domain: str) -> Iterator[NDArray[np.int64]]:
    """Yield the ids of every held-out document, without the EOS at its end."""
    if domain not in corpus.domains:
        raise DoesNotFit(
            f"corpus '{corpus.name}' has no domain '{domain}'; legal: a corpus with one, or other tasks "
            f"(domains here: {', '.join(corpus.domains)})"
        )
    for first, end in pairwise(corpus.documents("heldout", domain).tolist()):
        yield corpus.tokens("heldout", domain, first, end - 1)


def _rng(name: str) -> random.Random:
    return random.Random(f"gatebench items {VERSION} {name}")


def _starts_word(token: str) -> bool:
    """Say whether a token begins with a blank and a word, or with a letter of a script without blanks."""
    return (token[:1] == " " and token[1:2].isalnum()) or (token[:1].isalpha() and token[0] > "\u2e7f")


def _item(rng: random.Random, context: str, right: str, others: list[str]) -> Item | None:
    """Return the item with its choices in random order; None where a choice is there twice or text was cut up."""
    choices = [right, *others]
    if len(set(choices)) < len(choices) or any("\ufffd" in text for text in (context, *choices)):
        return None
    rng.shuffle(choices)
    return Item(context, tuple(choices), choices.index(right))


def _collect(attempt: Callable[[], Item | None], corpus: Corpus | None = None, domain: str = "") -> list[Item]:
    """Return the first N_ITEMS different items that `attempt` gives. Raises DoesNotFit where a corpus has too few."""
    different: dict[Item, None] = {}
    for _ in range(100 * N_ITEMS):
        if item := attempt():
            different[item] = None
        if len(different) == N_ITEMS:
            return list(different)
    assert corpus is not None
    raise DoesNotFit(
        f"corpus '{corpus.name}': too little held-out text in '{domain}' for {N_ITEMS} items; "
        "legal: a corpus with more, or other tasks"
    )
