"""What a variant changes of the architecture besides its gates, and the words that spell it. Imports no torch.

Each field of `Design` has the paper's baseline as its default, and one word (or a family of words) that changes it:

    sandwich_norm, clip{c}

Words join gates and one another by `+` (`sandwich_norm+g1_headwise`). To add one: a field here, an entry in `WORDS`,
and the place in `model/` that reads the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from gatebench.errors import UserError


@dataclass(frozen=True)
class Design:
    """A layer of the transformer apart from its gates; the defaults are the paper's baseline."""

    sandwich_norm: bool = False
    """Norm each sublayer's output too, before it is added: h + N2(Attn(N1(h))) (the paper's Table 2)."""
    output_clip: float | None = None
    """Clamp each sublayer's output to [-c, c] before it is added (the paper's appendix A.6); None does not."""

    @property
    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from the baseline's, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    @property
    def words(self) -> tuple[str, ...]:
        """The words that spell this design, in the order of `WORDS`; none for the baseline's."""
        return tuple(name for word in WORDS if (name := word.spell(self)) is not None)

    @property
    def equations(self) -> tuple[str, ...]:
        """One line for each word: what it does."""
        return tuple(word.equation(self) for word in WORDS if word.spell(self) is not None)

    def merged(self, other: Design, name: str) -> Design:
        """Return the changes of both. Raises UserError, naming variant `name`, where both change one field."""
        ours, theirs = self.changes, other.changes
        if both := sorted(ours.keys() & theirs.keys()):
            words = [word for word in WORDS if set(word.fields) & set(both)]
            raise UserError(
                f"variant '{name}': {' and '.join(filter(None, (words[0].spell(self), words[0].spell(other))))} "
                f"both set {both[0]}; each may be set once"
            )
        return Design(**ours, **theirs)


@dataclass(frozen=True)
class Word:
    """A word, or a family of words with numbers in it, that sets fields of a `Design`."""

    pattern: str
    """Regular expression of the whole word."""
    form: str
    """How a message shows it: `clip{c}`."""
    fields: tuple[str, ...]
    """The fields that it sets."""
    read: Callable[[re.Match[str]], Mapping[str, Any]]
    """From a match to those fields' values. May raise UserError."""
    spell: Callable[[Design], str | None]
    """The word of a design; None where its fields are the baseline's."""
    equation: Callable[[Design], str]
    """What it does, in one line."""


def flag(word: str, field: str, equation: str, value: Any = True) -> Word:
    """Return the word that sets one field to one value."""
    return Word(
        word,
        word,
        (field,),
        lambda match: {field: value},
        lambda design: word if getattr(design, field) == value else None,
        lambda design: equation,
    )


WORDS: tuple[Word, ...] = (
    flag("sandwich_norm", "sandwich_norm", "h' = h + N₂(f(N₁(h))) for attention and FFN"),
    Word(
        r"clip(?P<c>[1-9]\d*)",
        "clip{c}",
        ("output_clip",),
        lambda match: {"output_clip": float(match["c"])},
        lambda design: None if design.output_clip is None else f"clip{design.output_clip:g}",
        lambda design: f"h' = h + clamp(f(N(h)), ±{design.output_clip:g}) for attention and FFN",
    ),
)


def parse_design(word: str) -> Design | None:
    """Return the design that one word spells; None for a word that is not one of `WORDS`."""
    for known in WORDS:
        if match := re.fullmatch(known.pattern, word):
            return Design(**known.read(match))
    return None
