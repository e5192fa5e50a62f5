"""One document, and the cleaning that every document gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffe\uffff\ud800-\udfff]")
_TRAILING_SPACE = re.compile(r"[ \t]+(?=\n)")
_BLANK_LINES = re.compile(r"\n{4,}")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff]")
_WORD = re.compile(r"[^\W\d_]+")
_ENGLISH = frozenset(
    "the of and to a in is that it he was for on are as with his they i at be this have from or one had by not but "
    "what all were we when your can said there an which she do their if will my me you her him no so shall our thy "
    "thou thee any such may these who".split()
)


@dataclass(frozen=True)
class Document:
    """`key` is stable and unique in its source; documents of one `group` are on one side of the held-out split."""

    key: str
    text: str
    domain: str
    group: str = ""
    """Empty for a document that is split by itself."""

    @property
    def split_key(self) -> str:
        return self.group or self.key


@dataclass(frozen=True)
class TextSource:
    """A stream of documents and what the manifest says about it.

    read: opens the stream anew.
    templated: statutes, licences and API docs quote each other, so that more overlap with held-out is allowed.
    keep: filter by language, as (name, predicate on the cleaned text); None keeps everything.
    cap_bytes: UTF-8 bytes after which reading stops; None reads everything.
    """

    name: str
    read: Callable[[], Iterator[Document]]
    facts: dict[str, object]
    templated: bool = False
    keep: tuple[str, Callable[[str], bool]] | None = None
    cap_bytes: int | None = None
    min_bytes: int = 1


def clean_text(text: str) -> str:
    """Newlines to LF, no-break spaces to spaces; control characters and blanks at line ends dropped; at most two blank
    lines in a row."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ")
    text = _CONTROL.sub("", text)
    text = _TRAILING_SPACE.sub("", text)
    return _BLANK_LINES.sub("\n\n\n", text).strip("\n ")


def is_chinese(text: str) -> bool:
    """At least 40 % of the characters that are not blanks are Han."""
    visible = len(text) - sum(text.count(blank) for blank in " \n\t\u3000")
    return visible > 0 and len(_HAN.findall(text)) >= 0.4 * visible


def is_english(text: str) -> bool:
    """At least 22 % of the words are among English's commonest, and hardly any letter is outside Latin-1."""
    words = _WORD.findall(text[:20_000].lower())
    if not words:
        return False
    common = sum(word in _ENGLISH for word in words)
    foreign = sum(ord(word[0]) > 0xFF for word in words)
    return common >= 0.22 * len(words) and foreign <= 0.05 * len(words)
