"""Building a corpus: from streams of documents to a directory of token shards with a manifest.

clean and collect -> drop duplicates -> hold out by document -> decontaminate -> tokenizer -> shards -> manifest.
The directory is written beside its destination and renamed at the end. The same documents and options give
byte-identical shards.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gatebench.cores import available_cores
from gatebench.data.bpe import bytes_per_token, load_tokenizer, special_ids, train_bpe
from gatebench.data.collect import Collected, SpooledText, collect_all
from gatebench.data.documents import TextSource
from gatebench.data.overlap import GRAM_LENGTH, GramStore, contained_shares, repeated_shares
from gatebench.data.permutation import stable_hash
from gatebench.data.rules import check_bytes, check_split
from gatebench.data.shards import SHARD_BYTES, ShardWriter, file_facts
from gatebench.data.split import Candidate, choose_heldout, heldout_shares
from gatebench.data.tokens import FORMAT, FORMAT_VERSION, SPLITS, content_fingerprint
from gatebench.errors import UserError
from gatebench.files import read_object, write_atomic
from gatebench.paths import cache_dir

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PIPELINE_VERSION = 1
_ENCODE_BYTES = 1 << 21

Log = Callable[[str], None]


@dataclass(frozen=True)
class BuildOptions:
    """What decides a corpus besides its documents."""

    vocab_size: int = 4096
    """Size of the BPE to train; ignored with `tokenizer`."""
    tokenizer: Path | None = None
    """A tokenizer.json to use instead of training one."""
    heldout_bytes: int = 300_000
    """Text to hold out of each domain, within `heldout_shares`."""
    heldout_shares: tuple[float, float] = (0.001, 0.10)
    """Least and most of a domain to hold out."""
    near_duplicate: float | None = 0.5
    """Drop a document when this share of its 13-grams stands in earlier documents of its domain; None keeps all."""
    overlap: float | None = 0.03
    """Drop a training document that shares more than this of its 13-grams with held-out text; None keeps all."""
    overlap_templated: float = 0.12
    """The same for statutes, licences and API documentation."""
    bpe_bytes: int = 15_000_000
    """Training text that the BPE sees, in equal parts by domain."""
    shard_bytes: int = SHARD_BYTES
    """Size at which a shard file is full."""


@dataclass(frozen=True)
class CorpusPlan:
    """A corpus to be built: its documents, its options, and what its manifest says besides."""

    name: str
    sources: tuple[TextSource, ...]
    options: BuildOptions
    pins: dict[str, object]
    """What identifies the inputs; part of the build key."""
    domain_order: tuple[str, ...] = ()
    """Domains in the order of tables; others follow alphabetically."""
    gaps: tuple[str, ...] = ()
    """What the corpus does not have, in sentences."""

    @property
    def build_key(self) -> str:
        """sha256 (hex) of inputs, options and pipeline version: equal keys mean an up-to-date corpus."""
        options = {**asdict(self.options), "tokenizer": _tokenizer_pin(self.options.tokenizer)}
        content = {"pipeline": PIPELINE_VERSION, "options": options, "pins": self.pins}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def build_if_stale(
    plan: CorpusPlan, out: Path, *, log: Log, force: bool = False, prepare: Callable[[], CorpusPlan] | None = None
) -> bool:
    """Build `plan` into `out` unless it is up to date there; whether it was built now.

    `prepare` fetches what the plan reads, and gives the plan to build. Two processes that ask at once build once.

    Raises:
        UserError: as `build_corpus`, or a destination that cannot be written.
    """
    try:
        with _one_builder(out):
            if not force and is_up_to_date(out, plan):
                return False
            seconds = {}
            if prepare is not None:
                started = time.perf_counter()
                plan = prepare()
                seconds["fetch"] = round(time.perf_counter() - started, 2)
            build_corpus(plan, out, log=log, stages=seconds)
            return True
    except OSError as error:
        raise UserError(
            f"corpus {plan.name!r} cannot be written to {out}: {error}; free space or name another --out"
        ) from error


def is_up_to_date(out: Path, plan: CorpusPlan) -> bool:
    """Whether `out` holds a corpus built from the same inputs by the same rules."""
    try:
        manifest = read_object(out / "manifest.json")
        sizes = {name: (out / name).stat().st_size for name in manifest["files"]}
        complete = all(sizes[name] == facts["bytes"] for name, facts in manifest["files"].items())
        return bool(complete and manifest["build_key"] == plan.build_key)
    except (UserError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def build_corpus(plan: CorpusPlan, out: Path, *, log: Log, stages: dict[str, float] | None = None) -> Path:
    """Build `plan` into the directory `out`, replacing what is there, and return it.

    `stages`: seconds of work done before (fetching), to stand in the manifest.

    Raises:
        UserError: no documents, a source that cannot be read, a bad tokenizer, a directory that is no corpus.
        OSError: the disk.
    """
    if out.exists() and not (out / "manifest.json").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out directory {out} is there and holds no corpus: name another one")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.building-", dir=out.parent))
    try:
        seconds = dict(stages or {})
        build = _Build(plan, work / "corpus", work / "spool", seconds, log)
        build.run()
        _replace(work / "corpus", out, work / "old")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return out


class _Build:
    def __init__(self, plan: CorpusPlan, root: Path, spool: Path, seconds: dict[str, float], log: Log) -> None:
        self.plan, self.options = plan, plan.options
        self.root, self.spool = root, spool
        self.seconds, self.log = seconds, log
        root.mkdir()
        spool.mkdir()

    def run(self) -> None:
        with self.stage("collect"):
            collected = collect_all(self.plan.sources, self.spool, available_cores(), self.log)
            documents, grams = self.merge(collected)
            documents, grams = self.drop_near_duplicates(collected, documents, grams)
        with self.stage("split"):
            split = self.split(collected, documents, grams)
        with self.stage("tokenizer"):
            tokenizer = self.tokenizer(split["train"])
        with self.stage("encode"):
            domains = self.encode(split, tokenizer)
        self.write_manifest(collected, domains, split, tokenizer)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - started, 2)

    def merge(self, collected: Sequence[Collected]) -> tuple[list[SpooledText], GramStore]:
        """All sources' documents in order, exact duplicates across sources dropped."""
        digests: set[bytes] = set()
        documents: list[SpooledText] = []
        grams = GramStore()
        for part in collected:
            grams.thin(part.grams.one_in)
            part.grams.thin(grams.one_in)
            for document, its_grams in zip(part.documents, part.grams.sets(range(len(part.documents))), strict=True):
                if document.digest in digests:
                    part.drop("exact_duplicate", document.n_bytes)
                    continue
                digests.add(document.digest)
                documents.append(document)
                grams.add(its_grams)
            part.grams = GramStore()
        if not documents:
            raise UserError(f"corpus {self.plan.name!r}: the sources hold no document that passes the filters")
        return documents, grams

    def drop_near_duplicates(
        self, collected: Sequence[Collected], documents: list[SpooledText], grams: GramStore
    ) -> tuple[list[SpooledText], GramStore]:
        by_source = {part.source: part for part in collected}
        keep = np.ones(len(documents), bool)
        for domain in {d.domain for d in documents}:
            members = [i for i, d in enumerate(documents) if d.domain == domain]
            shares = repeated_shares(grams.sets(members))
            for i, share in zip(members, shares, strict=True):
                if self.options.near_duplicate is not None and share >= self.options.near_duplicate:
                    keep[i] = False
                    by_source[documents[i].source].drop("near_duplicate", documents[i].n_bytes)
        kept = np.flatnonzero(keep).tolist()
        thinned = GramStore()
        thinned.thin(grams.one_in)
        for its_grams in grams.sets(kept):
            thinned.add(its_grams)
        return [documents[i] for i in kept], thinned

    def split(
        self, collected: Sequence[Collected], documents: list[SpooledText], grams: GramStore
    ) -> dict[str, list[SpooledText]]:
        """Hold out by document, then drop the training documents that overlap with what is held out."""
        candidates = [Candidate(d.split_key, d.source, d.domain, d.n_bytes) for d in documents]
        shares = heldout_shares(candidates, self.options.heldout_bytes, self.options.heldout_shares)
        chosen = choose_heldout(candidates, shares)
        is_heldout = np.array([d.split_key in chosen for d in documents])
        heldout = np.flatnonzero(is_heldout).tolist()
        others = np.flatnonzero(~is_heldout).tolist()
        by_source = {part.source: part for part in collected}
        templated = {source.name for source in self.plan.sources if source.templated}
        train = []
        for i, share in zip(others, contained_shares(grams.sets(others), grams.sets(heldout)), strict=True):
            document = documents[i]
            limit = self.options.overlap
            if limit is not None and document.source in templated:
                limit = self.options.overlap_templated
            if limit is not None and share > limit:
                by_source[document.source].drop("overlaps_heldout", document.n_bytes)
            else:
                train.append(document)
        split = {"train": train, "heldout": [documents[i] for i in heldout]}
        check_split(self.plan.name, split, {part.source: part.dropped for part in collected})
        return split

    def tokenizer(self, train: list[SpooledText]) -> Tokenizer:
        if self.options.tokenizer is not None:
            return load_tokenizer(self.options.tokenizer)
        self.log(f"training a BPE of {self.options.vocab_size:,} on up to {self.options.bpe_bytes / 1e6:.0f} MB")
        return train_bpe(self.bpe_sample(train), self.options.vocab_size)

    def bpe_sample(self, train: list[SpooledText]) -> Iterator[str]:
        """Equal parts of each domain's training text, documents in the order of their hash, the last one cut."""
        by_domain: dict[str, list[SpooledText]] = defaultdict(list)
        for document in train:
            by_domain[document.domain].append(document)
        for domain in sorted(by_domain):
            room = self.options.bpe_bytes // len(by_domain)
            for document in sorted(by_domain[domain], key=lambda d: (stable_hash("bpe", d.source, d.key), d.key)):
                if room <= 0:
                    break
                text = document.read()
                yield text if document.n_bytes <= room else text[: room * len(text) // document.n_bytes]
                room -= document.n_bytes

    def encode(self, split: dict[str, list[SpooledText]], tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
        """Write the shards; the manifest's part on domains."""
        tokenizer.save(str(self.root / "tokenizer.json"))
        sizes = bytes_per_token(tokenizer)
        np.save(self.root / "token_bytes.npy", sizes)
        _, eos_id = special_ids(tokenizer)
        tokenizer.encode_special_tokens = True  # a document that contains "<|eos|>" must not end there
        dtype = _token_dtype(len(sizes))
        domains: dict[str, dict[str, Any]] = {}
        for domain in self.domains(split):
            domains[domain] = {}
            for name in SPLITS:
                members = [d for d in split[name] if d.domain == domain]
                writer = ShardWriter(self.root, name, domain, dtype, self.options.shard_bytes)
                for batch in _batches(members):
                    texts = [document.read() for document in batch]
                    for document, encoding in zip(
                        batch, tokenizer.encode_batch_fast(texts, add_special_tokens=False), strict=True
                    ):
                        ids = np.array([*encoding.ids, eos_id], np.int64)
                        check_bytes(document, int(sizes[ids].sum()), self.options.tokenizer)
                        writer.add(ids)
                domains[domain][name] = {**writer.close(), "bytes": sum(d.n_bytes for d in members)}
            self.log(f"encoded {domain}: {domains[domain]['train']['tokens']:,} training tokens")
        return domains

    def domains(self, split: dict[str, list[SpooledText]]) -> list[str]:
        found = {d.domain for documents in split.values() for d in documents}
        return [d for d in self.plan.domain_order if d in found] + sorted(found - set(self.plan.domain_order))

    def write_manifest(
        self,
        collected: Sequence[Collected],
        domains: dict[str, dict[str, Any]],
        split: dict[str, list[SpooledText]],
        tokenizer: Tokenizer,
    ) -> None:
        import tokenizers

        bos_id, eos_id = special_ids(tokenizer)
        names = ["tokenizer.json", "token_bytes.npy"]
        for facts in domains.values():
            for name in SPLITS:
                names += [*facts[name]["shards"], facts[name]["document_index"]]
        vocab_size = len(np.load(self.root / "token_bytes.npy"))
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.plan.name,
            "build_key": self.plan.build_key,
            "domain_order": list(domains),
            "dtype": _token_dtype(vocab_size).str,
            "domains": domains,
            "tokenizer": {
                "kind": "byte-level BPE",
                "trained_here": self.options.tokenizer is None,
                "vocab_size": vocab_size,
                "bos_id": bos_id,
                "eos_id": eos_id,
                "library": f"tokenizers {tokenizers.__version__}",
            },
            "sources": [part.facts(source, split) for source, part in zip(self.plan.sources, collected, strict=True)],
            "rules": {
                "pipeline_version": PIPELINE_VERSION,
                "gram_length": GRAM_LENGTH,
                **{k: v for k, v in asdict(self.options).items() if k != "tokenizer"},
            },
            "gaps": list(self.plan.gaps),
            "built_with": {"python": platform.python_version(), "numpy": np.__version__},
            "seconds": self.seconds,
            "files": {name: file_facts(self.root / name) for name in names},
        }
        manifest["fingerprint"] = content_fingerprint(manifest)
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        write_atomic(self.root / "manifest.json", text)


@contextmanager
def _one_builder(out: Path) -> Iterator[None]:
    """Hold the lock on a destination, and clear away what a killed build left beside it.

    Runs have attempts for that; here the second process is to wait, for minutes, and then has nothing left to do.
    """
    locks = cache_dir() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / f"{out.name}-{stable_hash(out.resolve()):016x}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in out.parent.glob(f".{out.name}.building-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def _batches(documents: list[SpooledText]) -> Iterator[list[SpooledText]]:
    batch: list[SpooledText] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += document.n_bytes
        if size >= _ENCODE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u2" if vocab_size < 65536 else "<u4")


def _tokenizer_pin(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise UserError(f"tokenizer {path} not found: give the path of a tokenizer.json")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _replace(new: Path, out: Path, old: Path) -> None:
    """Put `new` in the place of `out`; readers that have the old files open keep them."""
    if out.exists():
        os.replace(out, old)
    os.replace(new, out)
