"""The rules that drop documents, and what a corpus must have left: told by number, so that nothing goes in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gatebench.data.collect import SpooledText
from gatebench.errors import UserError

RULES = {
    "near_duplicate": "its 13-grams stand in earlier documents (--near-duplicates keep, or a larger share)",
    "overlaps_heldout": "it shares 13-grams with held-out text (--heldout-overlap keep, or a larger share)",
    "exact_duplicate": "the same text was there before, blanks and capitals apart",
    "too_short": "it is empty, or of a preset and below 200 bytes",
}
"""What drops a document, by the manifest's name for it; a preset's filter by language is `not_<language>`."""

Dropped = Mapping[str, Mapping[str, Sequence[int]]]
"""[documents, bytes] by source and rule."""


def counts(dropped: Dropped) -> Counter[str]:
    """Return the number of documents that each rule dropped."""
    total: Counter[str] = Counter()
    for rules in dropped.values():
        for rule, (n_documents, *_) in rules.items():
            total[rule] += n_documents
    return total


def largest_cause(dropped: Dropped) -> str:
    """Return which rule took most documents, in words; empty where none took any."""
    if not (found := counts(dropped)):
        return ""
    rule, n = found.most_common(1)[0]
    return f"{rule.replace('_', ' ')} ({n:,} documents): {RULES.get(rule, 'it is not of the language')}"


def check_split(name: str, split: Mapping[str, Iterable[SpooledText]], dropped: Dropped) -> None:
    """Raise UserError for a corpus that no run can train on or be measured on, with what took its documents."""
    found = {part: {document.domain for document in documents} for part, documents in split.items()}
    for domain in sorted(set.union(*found.values())):
        for part, words in (("heldout", "held-out"), ("train", "training")):
            if domain not in found[part]:
                cause = largest_cause(dropped)
                raise UserError(
                    f"corpus {name!r}: no {words} document is left in domain {domain!r}; legal: two documents or more "
                    "in each domain, a file or a record each" + (f"; most were dropped as {cause}" if cause else "")
                )


def check_bytes(document: SpooledText, counted: int, tokenizer: Path | None) -> None:
    """Raise UserError where tokens stand for other bytes than their document has: bits per byte would be wrong."""
    if counted != document.n_bytes:
        raise UserError(
            f"tokenizer {tokenizer} changes document {document.key!r} of {document.source}: it has {document.n_bytes} "
            f"bytes, and its tokens stand for {counted}; legal: a tokenizer that keeps text as it is, or text in the "
            "normal form that the tokenizer wants (NFC)"
        )
