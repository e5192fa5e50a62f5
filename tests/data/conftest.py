"""One tiny corpus per session, and ways to make others from a few lines of text."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gatebench.data.corpus import BuildOptions, CorpusPlan, build_corpus
from gatebench.data.documents import TextSource
from gatebench.data.text_files import RecordReader, local_source
from gatebench.data.tokens import Corpus
from tests.tiny_corpus import build_tiny_corpus

Build = Callable[..., Corpus]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("GATEBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_corpus(tmp_path_factory.mktemp("corpora") / "tiny")


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """build(records, **options): a corpus of the given records ({"text", "domain"}), BPE of 300."""

    def make(
        records: Iterable[dict[str, str]], *, name: str = "made", templated: bool = False, **options: object
    ) -> Corpus:
        lines = tmp_path / f"{name}.jsonl"
        lines.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
        source: TextSource = replace(
            local_source([lines], records=RecordReader(domain_field="domain")), templated=templated
        )
        chosen = BuildOptions(**{"vocab_size": 300, **options})  # type: ignore[arg-type]
        plan = CorpusPlan(name, (source,), chosen, {})
        return Corpus.open(build_corpus(plan, tmp_path / "corpora" / name, log=lambda line: None))

    return make


def prose(seed: int, n_words: int = 200) -> str:
    """Words of five letters out of 5,000: two seeds share no 13-gram."""
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(5000):04d}" for _ in range(n_words))


def decoded(corpus: Corpus, split: str, domain: str) -> list[str]:
    """The documents' text, end-of-document tokens left out."""
    offsets = corpus.documents(split, domain).tolist()
    tokenizer = corpus.tokenizer()
    return [
        tokenizer.decode(corpus.tokens(split, domain, a, b - 1).tolist(), skip_special_tokens=False)
        for a, b in pairwise(offsets)
    ]
