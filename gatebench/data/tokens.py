"""Reading a built corpus: the shards, the training windows in their seeded order, the held-out windows.

Letters in shapes: B sequences in a batch, L = seq_len, N windows.
Files and their formats are described in docs/data.md; `gatebench.data.corpus` writes them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gatebench.data.permutation import KeyedPermutation
from gatebench.errors import UserError
from gatebench.files import read_text
from gatebench.paths import cache_dir

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPLITS = ("train", "heldout")
FORMAT = "gatebench-corpus"
FORMAT_VERSION = 1
IGNORED_TARGET = -100


def corpora_dir() -> Path:
    """Where corpora live that were built without `--out`."""
    return cache_dir() / "corpora"


def corpus_path(name_or_path: str | Path) -> Path:
    """The directory of a corpus: a path if it is one (or looks like one), else a name below the cache."""
    path = Path(name_or_path).expanduser()
    if path.is_dir() or path.is_absolute() or len(path.parts) > 1:
        return path
    return corpora_dir() / path


def content_fingerprint(manifest: dict[str, Any]) -> str:
    """sha256 (hex) of what determines the tokens: the files' hashes, the domains' order, tokenizer ids, dtype."""
    content = {
        "domains": manifest["domain_order"],
        "dtype": manifest["dtype"],
        "files": {name: facts["sha256"] for name, facts in manifest["files"].items()},
        "tokenizer": {k: manifest["tokenizer"][k] for k in ("vocab_size", "bos_id", "eos_id")},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Corpus:
    """A built corpus, opened for reading. Shards are memory-mapped on first use; pickling copies no data."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self.name: str = manifest["name"]
        self.fingerprint: str = content_fingerprint(manifest)
        self.domains: tuple[str, ...] = tuple(manifest["domain_order"])
        self.vocab_size: int = manifest["tokenizer"]["vocab_size"]
        self.bos_id: int = manifest["tokenizer"]["bos_id"]
        self.eos_id: int = manifest["tokenizer"]["eos_id"]
        self.token_bytes: NDArray[np.int32] = np.load(path / "token_bytes.npy")
        self._dtype = np.dtype(manifest["dtype"])
        self._shards: dict[tuple[str, str], list[tuple[int, int, NDArray[Any]]]] = {}

    @classmethod
    def open(cls, name_or_path: str | Path) -> Corpus:
        """Open by name (below the cache) or by directory.

        Raises:
            UserError: no such corpus; a manifest that cannot be read; a file that is missing or has another size
                than the manifest says (an interrupted copy, a full disk).
        """
        path = corpus_path(name_or_path)
        manifest_file = path / "manifest.json"
        if not manifest_file.is_file():
            raise UserError(
                f"corpus {str(name_or_path)!r} not found in {path.parent}: "
                "build it with `gatebench data build --preset six_domains`"
            )
        try:
            manifest = json.loads(read_text(manifest_file, "build it again with `gatebench data build`"))
            if manifest.get("format") != FORMAT or manifest.get("format_version") != FORMAT_VERSION:
                raise ValueError(
                    f"format {manifest.get('format')!r} version {manifest.get('format_version')!r}, "
                    f"expected {FORMAT!r} version {FORMAT_VERSION}"
                )
            for name, facts in manifest["files"].items():
                _check_size(path / name, int(facts["bytes"]))
            return cls(path, manifest)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"bad corpus manifest {manifest_file}: {error}; rebuild the corpus with `gatebench data build --force`"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shards": {}}

    def n_tokens(self, split: str, domain: str) -> int:
        """Tokens of a domain in "train" or "heldout", end-of-document tokens included."""
        return int(self._facts(split, domain)["tokens"])

    def tokens(self, split: str, domain: str, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start..stop-1 of the domain's stream, across shard files; (stop - start,) int64.

        Raises:
            IndexError: the range leaves the stream.
        """
        total = self.n_tokens(split, domain)
        if not 0 <= start <= stop <= total:
            raise IndexError(f"tokens {start}..{stop} of {split}/{domain}, which has {total}")
        pieces = [
            shard[max(start - first, 0) : stop - first].astype(np.int64)
            for first, last, shard in self._open_shards(split, domain)
            if first < stop and start < last
        ]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def documents(self, split: str, domain: str) -> NDArray[np.int64]:
        """Token offset at which each document starts, and the end; (n_docs + 1,) int64."""
        self._facts(split, domain)
        offsets: NDArray[np.int64] = np.load(self.path / split / f"{domain}.docs.npy")
        return offsets

    def tokenizer(self) -> Tokenizer:
        """The byte-level BPE that made the tokens."""
        from tokenizers import Tokenizer

        tokenizer: Tokenizer = Tokenizer.from_file(str(self.path / "tokenizer.json"))
        return tokenizer

    def _facts(self, split: str, domain: str) -> dict[str, Any]:
        if split not in SPLITS:
            raise UserError(f"unknown split {split!r}: legal are {', '.join(SPLITS)}")
        if domain not in self.domains:
            raise UserError(f"unknown domain {domain!r} of corpus {self.name!r}: legal are {', '.join(self.domains)}")
        facts: dict[str, Any] = self.manifest["domains"][domain][split]
        return facts

    def _open_shards(self, split: str, domain: str) -> list[tuple[int, int, NDArray[Any]]]:
        """(first token, end, memory map) per file."""
        if (split, domain) not in self._shards:
            shards: list[tuple[int, int, NDArray[Any]]] = []
            first = 0
            for name in self._facts(split, domain)["shards"]:
                n = int(self.manifest["files"][name]["bytes"]) // self._dtype.itemsize
                if n:
                    shard = np.memmap(self.path / name, dtype=self._dtype, mode="r", shape=(n,))
                    shards.append((first, first + n, shard.view(np.ndarray)))
                first += n
            self._shards[split, domain] = shards
        return self._shards[split, domain]


def _check_size(path: Path, expected: int) -> None:
    found = path.stat().st_size if path.is_file() else None
    if found is None:
        raise UserError(f"corpus file {path} is missing: rebuild the corpus with `gatebench data build --force`")
    if found != expected:
        raise UserError(
            f"corpus file {path} has {found} bytes, {expected} expected: it is truncated or of another build; "
            "rebuild the corpus with `gatebench data build --force`"
        )


class TrainingWindows:
    """Windows of the training split in an order that is a pure function of (seed, index), never of process state.

    A domain's documents, each ended by EOS, form one stream, cut into disjoint windows of `seq_len` tokens. With
    `bos` a window is [BOS, t_1 .. t_L]; without, L + 1 consecutive tokens with stride L. Either way w[:-1] is the
    input, w[1:] the target, and a token is a target at most once while the domain's windows are passed once.

    `mixture`: "proportional" takes every window of every domain once per epoch, in one keyed permutation.
    "uniform" or {domain: weight} draws domains in shuffled cycles that hold each domain's exact share (weights with
    a common denominator over 65,536 are rounded to 1/65,536); a domain's windows are all used before one repeats.

    Raises:
        UserError: unknown domain or mixture, weights that are negative or sum to nothing, a domain with less text
            than one window.
    """

    def __init__(
        self,
        corpus: Corpus,
        seq_len: int,
        *,
        bos: bool = True,
        seed: int = 0,
        mixture: str | dict[str, float] = "proportional",
    ) -> None:
        if seq_len < 1:
            raise UserError(f"seq_len must be at least 1, not {seq_len}")
        self.corpus = corpus
        self.seq_len = seq_len
        self.bos = bos
        self.seed = seed
        self.mixture = mixture
        self._cycle = _mixture_counts(mixture, corpus.domains)
        shortest = seq_len if bos else seq_len + 1
        self.domains: tuple[str, ...] = tuple(corpus.domains if self._cycle is None else self._cycle)
        counts = []
        for domain in self.domains:
            n = corpus.n_tokens("train", domain)
            if n < shortest:
                if self._cycle is not None:
                    raise UserError(
                        f"domain {domain!r} has {n} training tokens, fewer than one window of seq_len {seq_len}"
                    )
                n = 0
            counts.append(n // seq_len if bos else max(n - 1, 0) // seq_len)
        self.windows_per_domain: dict[str, int] = dict(zip(self.domains, counts, strict=True))
        self.n_windows: int = sum(counts)
        if self.n_windows == 0:
            raise UserError(f"corpus {corpus.name!r} has no training window of seq_len {seq_len}: take a shorter one")
        self._ends = np.cumsum(counts)

    def sequence(self, index: int) -> NDArray[np.int64]:
        """Sequence number `index` of the run, counted from 0 without end; (L + 1,) int64."""
        return self._window(*self.locate(np.array([index]))[0][:2])

    def batch(self, step: int, batch_size: int) -> NDArray[np.int64]:
        """Sequences step * B .. step * B + B - 1; (B, L + 1) int64."""
        indices = np.arange(step * batch_size, (step + 1) * batch_size)
        out = np.empty((batch_size, self.seq_len + 1), np.int64)
        for row, (domain, window, _) in enumerate(self.locate(indices)):
            out[row] = self._window(domain, window)
        return out

    def locate(self, indices: NDArray[np.int64]) -> list[tuple[str, int, int]]:
        """(domain, window within the domain, epoch) of each sequence number."""
        if indices.size and int(indices.min()) < 0:
            raise IndexError(f"sequence numbers start at 0, not {int(indices.min())}")
        if self._cycle is None:
            return self._locate_proportional(indices)
        return self._locate_mixture(indices)

    def _locate_proportional(self, indices: NDArray[np.int64]) -> list[tuple[str, int, int]]:
        epochs, positions = np.divmod(indices, self.n_windows)
        images = np.empty_like(positions)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            images[of_epoch] = _permutation(self.seed, int(epoch), "", self.n_windows)(positions[of_epoch])
        which = np.searchsorted(self._ends, images, side="right")
        starts = self._ends - np.array(list(self.windows_per_domain.values()))
        return [
            (self.domains[d], int(image - starts[d]), int(epoch))
            for d, image, epoch in zip(which, images, epochs, strict=True)
        ]

    def _locate_mixture(self, indices: NDArray[np.int64]) -> list[tuple[str, int, int]]:
        assert self._cycle is not None
        counts = tuple(self._cycle.values())
        located = []
        for index in indices.tolist():
            cycle, position = divmod(index, sum(counts))
            order, rank = _cycle(self.seed, cycle, counts)
            domain = self.domains[order[position]]
            drawn = cycle * self._cycle[domain] + int(rank[position])
            n = self.windows_per_domain[domain]
            epoch, place = divmod(drawn, n)
            located.append((domain, int(_permutation(self.seed, epoch, domain, n)(place)), epoch))
        return located

    def _window(self, domain: str, window: int) -> NDArray[np.int64]:
        start = window * self.seq_len
        if not self.bos:
            return self.corpus.tokens("train", domain, start, start + self.seq_len + 1)
        out = np.empty(self.seq_len + 1, np.int64)
        out[0] = self.corpus.bos_id
        out[1:] = self.corpus.tokens("train", domain, start, start + self.seq_len)
        return out


@lru_cache(maxsize=64)
def _permutation(seed: int, epoch: int, domain: str, n: int) -> KeyedPermutation:
    return KeyedPermutation(n, "training windows", seed, epoch, domain)


@lru_cache(maxsize=4)
def _cycle(seed: int, cycle: int, counts: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Domain number at each position of a cycle with `counts` draws of each, and how often it stood before there."""
    in_order = np.repeat(np.arange(len(counts)), counts)
    order = in_order[KeyedPermutation(len(in_order), "mixture", seed, cycle)(np.arange(len(in_order)))]
    rank = np.empty_like(order)
    for d, count in enumerate(counts):
        rank[order == d] = np.arange(count)
    return order, rank


def _mixture_counts(mixture: str | dict[str, float], domains: tuple[str, ...]) -> dict[str, int] | None:
    """Draws of each domain in one cycle (domains of weight 0 left out), or None for "proportional"."""
    if mixture == "proportional":
        return None
    if mixture == "uniform":
        mixture = dict.fromkeys(domains, 1.0)
    if not isinstance(mixture, dict):
        raise UserError(f"unknown mixture {mixture!r}: legal are proportional, uniform or weights by domain")
    for domain, weight in mixture.items():
        if domain not in domains:
            raise UserError(f"mixture names the unknown domain {domain!r}: legal are {', '.join(domains)}")
        if not 0 <= weight < float("inf"):
            raise UserError(f"mixture weight of {domain!r} must be a number >= 0, not {weight}")
    weights = {d: Fraction(str(mixture[d])) for d in domains if mixture.get(d, 0) > 0}
    total = sum(weights.values())
    if not total:
        raise UserError("mixture gives no domain a positive weight")
    shares = {d: w / total for d, w in weights.items()}
    period = lcm(*(s.denominator for s in shares.values()))
    period = period * -(-1024 // period) if period <= 65536 else 65536
    counts = {d: int(s * period) for d, s in shares.items()}
    by_remainder = sorted(shares, key=lambda d: counts[d] - shares[d] * period)
    for domain in by_remainder[: period - sum(counts.values())]:
        counts[domain] += 1
    if empty := [d for d, c in counts.items() if c == 0]:
        raise UserError(f"mixture weight of {empty[0]!r} is under 1/65536 of the whole: leave it out or raise it")
    return counts


@dataclass(frozen=True)
class HeldoutWindows:
    """Disjoint windows of held-out documents, ready to score.

    inputs: (N, L) int64; the first is BOS where asked for; padded with EOS after the end of the document.
    targets: (N, L) int64; the token that follows each input, `-100` where nothing is scored (padding, EOS).
    """

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]


def heldout_windows(
    corpus: Corpus,
    domain: str,
    seq_len: int,
    *,
    bos: bool = True,
    max_tokens: int | None = None,
    full_only: bool = False,
) -> HeldoutWindows:
    """Cut a domain's held-out documents into windows of `seq_len`, each document on its own, the last one padded.

    Every token of a document but its EOS is scored exactly once (with `bos=False` its first token is not scored).
    With `max_tokens`, windows are taken in a fixed pseudo-random order over all (document, window) pairs, so that
    many documents are represented, until at least that many targets are scored; nothing depends on a batch size.
    With `full_only` windows with padding are left out before any is taken; where all have some, N is 0.

    Raises:
        UserError: unknown domain, seq_len < 1, max_tokens < 1, or no held-out text.
    """
    if seq_len < 1:
        raise UserError(f"seq_len must be at least 1, not {seq_len}")
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max_tokens must be at least 1, not {max_tokens}")
    offsets = corpus.documents("heldout", domain)
    starts, scored = offsets[:-1], np.diff(offsets) - 1  # without EOS
    if not bos:
        starts, scored = starts + 1, scored - 1
    windows_of = -(-np.maximum(scored, 0) // seq_len)
    document = np.repeat(np.arange(len(starts)), windows_of)
    first_window = np.cumsum(windows_of) - windows_of
    window = np.arange(len(document)) - first_window[document]
    if len(document) == 0:
        raise UserError(f"domain {domain!r} of corpus {corpus.name!r} has no held-out text to score")
    first = starts[document] + window * seq_len
    count = np.minimum(scored[document] - window * seq_len, seq_len)
    if full_only:
        first, count = first[count == seq_len], count[count == seq_len]
    if max_tokens is not None and len(first):
        order = KeyedPermutation(len(first), "heldout windows", domain)(np.arange(len(first)))
        enough = int(np.searchsorted(np.cumsum(count[order]), max_tokens)) + 1
        chosen = np.sort(order[:enough])
        first, count = first[chosen], count[chosen]

    inputs = np.full((len(first), seq_len), corpus.eos_id, np.int64)
    targets = np.full((len(first), seq_len), IGNORED_TARGET, np.int64)
    for row, (start, n) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
        text = corpus.tokens("heldout", domain, start, start + n)
        targets[row, :n] = text
        if bos:
            inputs[row, 0] = corpus.bos_id
            inputs[row, 1:n] = text[:-1]
        else:
            inputs[row, :n] = corpus.tokens("heldout", domain, start - 1, start + n - 1)
    return HeldoutWindows(inputs, targets)
