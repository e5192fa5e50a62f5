"""The exceptions whose text a user is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: one line that names the key, the value and what would be legal.

    The command line prints the message alone and exits with status 2.
    """


class DoesNotFit(UserError):
    """A task that a checkpoint cannot be asked: a suite goes on without it.

    Its items are longer than the model's context (the harness would cut their beginnings off), or are made of text that
    the corpus does not have.
    """


class EarlyExit(Exception):
    """A command ends early, for reasons that it tells: runs have no result yet."""

    def __init__(self, messages: list[str], status: int) -> None:
        super().__init__(*messages)
        self.messages = messages
        """Why, a line each."""
        self.status = status
        """Exit status of the command: 0 where runs were submitted and not waited for."""


def nearest(word: str, legal: Iterable[str], n: int = 3) -> str:
    """Return a clause naming the legal words nearest to `word`, or all of them where there are few."""
    words = list(legal)
    close = difflib.get_close_matches(word, words, n=n, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "legal: " + ", ".join(words[:24]) + (", ..." if len(words) > 24 else "")
