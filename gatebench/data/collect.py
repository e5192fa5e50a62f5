"""Reading a source once: cleaning, filtering, exact duplicates, gram hashes, and the text onto a spool file."""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from gatebench.data.documents import TextSource, clean_text
from gatebench.data.overlap import GramStore, gram_hashes
from gatebench.errors import UserError

_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True)
class SpooledText:
    """Where a cleaned document lies, and what the later stages need to know of it."""

    key: str
    split_key: str
    domain: str
    source: str
    digest: bytes
    spool: Path
    offset: int
    n_bytes: int

    def read(self) -> str:
        with self.spool.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.n_bytes).decode()


@dataclass
class Collected:
    """All that was kept of one source. `seen`, `dropped`: [documents, bytes], the latter by reason."""

    source: str
    documents: list[SpooledText] = field(default_factory=list)
    grams: GramStore = field(default_factory=GramStore)
    seen: list[int] = field(default_factory=lambda: [0, 0])
    dropped: dict[str, list[int]] = field(default_factory=dict)
    cap_reached: bool = False

    def drop(self, reason: str, n_bytes: int) -> None:
        entry = self.dropped.setdefault(reason, [0, 0])
        entry[0] += 1
        entry[1] += n_bytes

    def facts(self, source: TextSource, split: dict[str, list[SpooledText]]) -> dict[str, object]:
        """What the manifest says of the source, whose documents are now in the parts of `split`."""
        kept = {name: [d for d in documents if d.source == source.name] for name, documents in split.items()}
        return {
            "name": source.name,
            **source.facts,
            "seen": {"documents": self.seen[0], "bytes": self.seen[1]},
            "kept": {
                name: {"documents": len(documents), "bytes": sum(d.n_bytes for d in documents)}
                for name, documents in kept.items()
            },
            "dropped": {reason: {"documents": n, "bytes": size} for reason, (n, size) in sorted(self.dropped.items())},
            "cap_bytes": source.cap_bytes,
            "cap_reached": self.cap_reached,
        }


def collect(source: TextSource, spool: Path) -> Collected:
    """Read a source to its cap.

    Raises:
        UserError: as its reader does; or two documents with one key.
    """
    collected = Collected(source.name)
    digests: set[bytes] = set()
    keys: Counter[str] = Counter()
    offset = 0
    with spool.open("wb") as file:
        for document in source.read():
            if source.cap_bytes is not None and offset >= source.cap_bytes:
                collected.cap_reached = True
                break
            text = clean_text(document.text)
            raw = text.encode()
            collected.seen[0] += 1
            collected.seen[1] += len(raw)
            if len(raw) < source.min_bytes:
                collected.drop("too_short", len(raw))
                continue
            if source.keep is not None and not source.keep[1](text):
                collected.drop(f"not_{source.keep[0]}", len(raw))
                continue
            digest = hashlib.blake2b(_BLANKS.sub(" ", text).casefold().encode(), digest_size=16).digest()
            if digest in digests:
                collected.drop("exact_duplicate", len(raw))
                continue
            digests.add(digest)
            keys[document.key] += 1
            if keys[document.key] > 1:
                raise UserError(f"source {source.name!r} has two documents with the key {document.key!r}")
            collected.documents.append(
                SpooledText(
                    document.key, document.split_key, document.domain, source.name, digest, spool, offset, len(raw)
                )
            )
            collected.grams.add(gram_hashes(text))
            file.write(raw)
            offset += len(raw)
    return collected


def collect_all(
    sources: Sequence[TextSource], folder: Path, workers: int, log: Callable[[str], None]
) -> list[Collected]:
    """Collect every source, several at a time where processes can be forked; results stand in the order given."""
    spools = [folder / f"{i:03d}.txt" for i in range(len(sources))]
    workers = min(workers, len(sources))
    if workers < 2 or sys.platform != "linux":
        results = []
        for source, spool in zip(sources, spools, strict=True):
            log(f"reading {source.name}")
            results.append(collect(source, spool))
        return results
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: the workers use none of them
        context = get_context("fork")
        with ProcessPoolExecutor(workers, context, initializer=_remember, initargs=(list(sources),)) as pool:
            futures = [pool.submit(_collect_remembered, i, spool) for i, spool in enumerate(spools)]
            results = []
            for source, future in zip(sources, futures, strict=True):
                results.append(future.result())
                log(f"read {source.name}: {len(results[-1].documents):,} documents")
            return results


_remembered: list[TextSource] = []


def _remember(sources: list[TextSource]) -> None:
    """In a forked worker: keep the sources, whose readers need not be picklable."""
    _remembered[:] = sources


def _collect_remembered(index: int, spool: Path) -> Collected:
    return collect(_remembered[index], spool)
