"""A corpus of six small domains, built from local files in about a second: what tests train and score on."""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path

from gatebench.data.corpus import BuildOptions, CorpusPlan, build_corpus
from gatebench.data.text_files import RecordReader, local_source

DOMAINS = ("english", "chinese", "code", "math", "law", "literature")
_WORDS = {
    "english": "the president of union congress has made a great report to people and states on trade peace".split(),
    "law": "licensee shall not assign this agreement without prior written consent party notice of liability".split(),
    "literature": "o moon thy silver light upon sea my heart doth sing and weep for love that sleeps in night".split(),
}
_HAN = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜金生丽水玉出昆冈"


def build_tiny_corpus(path: Path, *, documents: int = 40, vocab_size: int = 512) -> Path:
    """Build the corpus into the directory `path` (not there yet) and return it; always the same tokens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.parent / f"{path.name}.jsonl"
    with lines.open("w", encoding="utf-8") as file:
        for domain in DOMAINS:
            for text in _texts(domain, documents):
                file.write(json.dumps({"text": text, "domain": domain}, ensure_ascii=False) + "\n")
    plan = CorpusPlan(
        name=path.name,
        sources=(local_source([lines], records=RecordReader(domain_field="domain")),),
        options=BuildOptions(vocab_size=vocab_size, bpe_bytes=300_000, heldout_shares=(0.1, 0.1)),
        pins={"documents": documents},
        domain_order=DOMAINS,
    )
    build_corpus(plan, path, log=lambda line: None)
    lines.unlink()
    return path


def _texts(domain: str, documents: int) -> list[str]:
    if domain == "code":
        stdlib = Path(sysconfig.get_path("stdlib"))
        names = ("bisect", "heapq", "queue", "copy", "textwrap", "shlex", "string", "sched", "stat", "glob", "fnmatch")
        functions = [
            part for n in names for part in (stdlib / f"{n}.py").read_text(encoding="utf-8").split("\n\ndef ") if part
        ]
        return [f"def {part}" for part in functions if len(part) > 300][:documents]
    rng = random.Random(domain)
    return [_text(domain, rng) for _ in range(documents)]


def _text(domain: str, rng: random.Random) -> str:
    if domain == "chinese":
        return "".join("".join(rng.choices(_HAN, k=rng.randint(6, 14))) + "。" for _ in range(60))
    if domain == "math":
        sums = [(rng.randint(1, 99), rng.randint(1, 99)) for _ in range(80)]
        return "\n".join(f"{a} + {b} = {a + b}, and {a} * {b} = {a * b}." for a, b in sums)
    words = _WORDS[domain]
    sentences = [" ".join(rng.choices(words, k=rng.randint(6, 16))).capitalize() + "." for _ in range(30)]
    return ("\n" if domain == "literature" else " ").join(sentences)
