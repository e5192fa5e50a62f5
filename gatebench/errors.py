"""The one exception that a user is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: one line that names the key, the value and what would be legal.

    The command line prints the message alone and exits with status 2.
    """


def nearest(word: str, legal: Iterable[str], n: int = 3) -> str:
    """Return a clause naming the legal words nearest to `word`, or all of them where there are few."""
    words = list(legal)
    close = difflib.get_close_matches(word, words, n=n, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "legal: " + ", ".join(words[:24]) + (", ..." if len(words) > 24 else "")
