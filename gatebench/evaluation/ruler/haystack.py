"""Real text to hide needles in: held-out documents of a corpus, in place of RULER's essays."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

from gatebench.data.tokens import Corpus

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Haystack:
    """Running text as `words`; `name` is recorded with every result, since the text is not RULER's."""

    name: str
    words: tuple[str, ...]

    def sentences(self, rng: Random, n_words: int) -> list[str]:
        """Return `n_words` words from a random place on, cut into sentences; the text begins again where it ends."""
        first = rng.randrange(len(self.words))
        words = self.words[first : first + n_words]
        while len(words) < n_words:
            words += self.words[: n_words - len(words)]
        return SENTENCE_END.split(" ".join(words))


def heldout_haystack(corpus: Corpus, domain: str = "literature", *, max_tokens: int = 200_000) -> Haystack:
    """Return the first `max_tokens` held-out tokens of a domain. Raises UserError for a domain that is not there."""
    n_tokens = min(max_tokens, corpus.n_tokens("heldout", domain))
    text = corpus.tokenizer().decode(corpus.tokens("heldout", domain, 0, n_tokens).tolist(), skip_special_tokens=True)
    return Haystack(f"held-out documents of {corpus.name!r}, domain {domain!r}", tuple(text.split()))
