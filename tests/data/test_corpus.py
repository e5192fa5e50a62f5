from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gatebench.data.corpus import BuildOptions, CorpusPlan, build_corpus, build_if_stale
from gatebench.data.documents import Document, TextSource
from gatebench.data.text_files import local_source
from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from tests.data.conftest import Build, decoded, prose
from tests.tiny_corpus import DOMAINS, build_tiny_corpus


def records(n: int, domain: str = "text", n_words: int = 200, seed: int = 0) -> list[dict[str, str]]:
    return [{"text": prose(seed + i, n_words), "domain": domain} for i in range(n)]


def files_of(root: Path) -> dict[str, bytes]:
    paths = [p for p in root.rglob("*") if p.is_file() and p.name != "manifest.json"]
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in paths}


def source_facts(corpus: Corpus) -> dict[str, object]:
    facts: dict[str, object] = corpus.manifest["sources"][0]
    return facts


def test_two_builds_are_byte_identical(tiny_corpus: Path, tmp_path: Path) -> None:
    again = build_tiny_corpus(tmp_path / "tiny")
    assert files_of(again) == files_of(tiny_corpus)
    assert Corpus.open(again).fingerprint == Corpus.open(tiny_corpus).fingerprint


def test_tiny_corpus_has_six_domains_with_heldout_text(tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    assert corpus.domains == DOMAINS
    assert (corpus.vocab_size, corpus.bos_id, corpus.eos_id) == (512, 0, 1)
    for domain in DOMAINS:
        assert corpus.n_tokens("train", domain) > 10_000
        assert corpus.n_tokens("heldout", domain) > 1_000


def test_documents_survive_and_fall_on_one_side_each(build: Build) -> None:
    made = records(60)
    corpus = build(made)
    train, heldout = decoded(corpus, "train", "text"), decoded(corpus, "heldout", "text")
    assert sorted(train + heldout) == sorted(r["text"] for r in made)
    assert len(heldout) == 6  # a tenth, the most that a small domain gives


def test_the_order_of_records_does_not_move_the_split(build: Build) -> None:
    made = records(60)
    first, second = build(made, name="first"), build(made[::-1], name="second")
    assert set(decoded(first, "heldout", "text")) == set(decoded(second, "heldout", "text"))


def test_exact_duplicates_are_dropped_whatever_their_blanks(build: Build) -> None:
    made = records(20)
    corpus = build([*made, {"text": made[3]["text"].replace(" ", "  \n"), "domain": "text"}])
    assert source_facts(corpus)["dropped"]["exact_duplicate"]["documents"] == 1
    assert len(decoded(corpus, "train", "text")) + len(decoded(corpus, "heldout", "text")) == 20


def test_near_duplicates_are_dropped(build: Build) -> None:
    made = records(20)
    words = made[3]["text"].split()
    words[100] = "changed"
    corpus = build([*made, {"text": " ".join(words), "domain": "text"}])
    assert source_facts(corpus)["dropped"]["near_duplicate"]["documents"] == 1


@pytest.mark.parametrize(("templated", "dropped"), [(False, 1), (True, 0)])
def test_training_documents_that_overlap_with_heldout_are_dropped(build: Build, templated: bool, dropped: int) -> None:
    """A planted quotation: 40 words of a held-out document, 28 of 371 grams, 7.5 %: over 3 %, under 12 %."""
    made = records(60)
    heldout = decoded(build(made, name="before"), "heldout", "text")[0]
    quotation = " ".join(heldout.split()[:40])
    quoting = {"text": f"{prose(1000, 170)} {quotation} {prose(1001, 173)}", "domain": "text"}
    corpus = build([*made, quoting], name="after", templated=templated)
    assert heldout in decoded(corpus, "heldout", "text")
    assert (quoting["text"] in decoded(corpus, "train", "text")) is (dropped == 0)
    assert source_facts(corpus)["dropped"].get("overlaps_heldout", {"documents": 0})["documents"] == dropped


def test_documents_of_one_split_key_stay_together_across_sources(tmp_path: Path) -> None:
    """As SymPy's code and docstrings: two sources, two domains, one side."""
    code = [Document(f"m{i}.py#code", prose(i), "code", group=f"m{i}.py") for i in range(100)]
    docs = [Document(f"m{i}.py#docstrings", prose(1000 + i), "math", group=f"m{i}.py") for i in range(100)]
    sources = tuple(TextSource(n, lambda d=d: iter(d), {"kind": "made"}) for n, d in (("code", code), ("docs", docs)))  # type: ignore[misc]
    plan = CorpusPlan("pair", sources, BuildOptions(vocab_size=300), {})
    corpus = Corpus.open(build_corpus(plan, tmp_path / "pair", log=lambda line: None))
    modules = {d.text: d.split_key for d in (*code, *docs)}
    code_side = {modules[t] for t in decoded(corpus, "heldout", "code")}
    assert len(code_side) == 10
    assert code_side == {modules[t] for t in decoded(corpus, "heldout", "math")}


def test_a_cap_stops_reading(tmp_path: Path) -> None:
    source = TextSource(
        "capped", lambda: (Document(f"{i}", prose(i), "text") for i in range(1000)), {"kind": "made"}, cap_bytes=20_000
    )
    plan = CorpusPlan("capped", (source,), BuildOptions(vocab_size=300), {})
    facts = source_facts(Corpus.open(build_corpus(plan, tmp_path / "c", log=lambda line: None)))
    assert facts["cap_reached"] is True
    assert 20_000 <= facts["seen"]["bytes"] < 21_500


def test_token_bytes_sum_to_the_documents_bytes(tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    for domain in corpus.domains:
        for split in ("train", "heldout"):
            tokens = corpus.tokens(split, domain, 0, corpus.n_tokens(split, domain))
            assert corpus.token_bytes[tokens].sum() == corpus.manifest["domains"][domain][split]["bytes"]
    assert corpus.token_bytes[[corpus.bos_id, corpus.eos_id]].tolist() == [0, 0]


def test_every_document_ends_with_the_only_eos_in_it(build: Build) -> None:
    """Text that spells a special token is text."""
    made = [{"text": f"{prose(i)} <|eos|> {prose(100 + i)} <|bos|>", "domain": "text"} for i in range(10)]
    corpus = build(made)
    tokens = corpus.tokens("train", "text", 0, corpus.n_tokens("train", "text"))
    assert (np.flatnonzero(tokens == corpus.eos_id) == corpus.documents("train", "text")[1:] - 1).all()
    assert corpus.bos_id not in tokens
    assert all("<|eos|>" in text for text in decoded(corpus, "train", "text"))


def test_shards_are_cut_and_read_across(build: Build) -> None:
    whole, cut = build(records(20), name="whole"), build(records(20), name="cut", shard_bytes=1000)
    assert whole.manifest["domains"]["text"]["train"]["shards"] == ["train/text-00000.bin"]
    assert len(cut.manifest["domains"]["text"]["train"]["shards"]) > 5
    n = whole.n_tokens("train", "text")
    assert np.array_equal(whole.tokens("train", "text", 0, n), cut.tokens("train", "text", 0, n))
    assert np.array_equal(whole.tokens("train", "text", 490, 1510), cut.tokens("train", "text", 490, 1510))
    assert (cut.path / "train/text-00000.bin").stat().st_size == 1000


def test_another_tokenizer_is_taken_as_it_is(build: Build, tiny_corpus: Path) -> None:
    corpus = build(records(10), tokenizer=tiny_corpus / "tokenizer.json")
    assert corpus.vocab_size == 512
    assert corpus.manifest["tokenizer"]["trained_here"] is False
    assert (corpus.path / "tokenizer.json").read_bytes() == (tiny_corpus / "tokenizer.json").read_bytes()


def test_a_vocabulary_over_65535_is_stored_in_four_bytes(build: Build, tiny_corpus: Path, tmp_path: Path) -> None:
    big = json.loads((tiny_corpus / "tokenizer.json").read_text(encoding="utf-8"))
    big["model"]["vocab"] |= {f"unused{i}": 512 + i for i in range(66_000)}
    (tmp_path / "big.json").write_text(json.dumps(big), encoding="utf-8")
    corpus = build(records(10), tokenizer=tmp_path / "big.json")
    assert corpus.manifest["dtype"] == "<u4"
    assert decoded(corpus, "heldout", "text")[0] in {r["text"] for r in records(10)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not found: give the path of a tokenizer.json"),
        ("{}", "is no tokenizer.json"),
        ('{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}', "is not byte-level"),
    ],
)
def test_a_bad_tokenizer_is_refused(build: Build, tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        build(records(10), tokenizer=path)


def test_a_vocabulary_that_cannot_hold_the_bytes_is_refused(build: Build) -> None:
    with pytest.raises(UserError, match=r"vocab-size must be at least 258 .* not 200"):
        build(records(10), vocab_size=200)


def test_manifest_says_where_everything_went(build: Build) -> None:
    made = [*records(20), {"text": " ", "domain": "text"}]
    corpus = build(made)
    facts = source_facts(corpus)
    kept = facts["kept"]["train"]["documents"] + facts["kept"]["heldout"]["documents"]
    assert facts["seen"]["documents"] == 21 == kept + sum(d["documents"] for d in facts["dropped"].values())
    assert facts["dropped"] == {"too_short": {"documents": 1, "bytes": 0}}
    assert set(corpus.manifest["files"]) == set(files_of(corpus.path))


@pytest.fixture
def plan(tmp_path: Path) -> CorpusPlan:
    lines = tmp_path / "some.jsonl"
    lines.write_text("".join(json.dumps(r) + "\n" for r in records(20)), encoding="utf-8")
    return CorpusPlan("some", (local_source([lines]),), BuildOptions(vocab_size=300), {"v": 1})


def test_a_corpus_is_built_once_and_again_when_its_inputs_change(plan: CorpusPlan, tmp_path: Path) -> None:
    out = tmp_path / "some"
    log: list[str] = []
    assert build_if_stale(plan, out, log=log.append) is True
    assert build_if_stale(plan, out, log=log.append) is False
    assert build_if_stale(plan, out, log=log.append, force=True) is True
    assert build_if_stale(replace(plan, pins={"v": 2}), out, log=log.append) is True
    other = replace(plan, pins={"v": 2}, options=replace(plan.options, vocab_size=310))
    assert build_if_stale(other, out, log=log.append) is True
    assert Corpus.open(out).vocab_size == 310
    (out / "train/text-00000.bin").write_bytes(b"")
    assert build_if_stale(other, out, log=log.append) is True
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "some", "some.jsonl"]


def test_what_a_killed_build_left_is_cleared_away(plan: CorpusPlan, tmp_path: Path) -> None:
    (tmp_path / ".some.building-x1y2" / "corpus").mkdir(parents=True)
    build_if_stale(plan, tmp_path / "some", log=lambda line: None)
    assert not (tmp_path / ".some.building-x1y2").exists()


def test_a_failed_build_leaves_the_old_corpus(plan: CorpusPlan, tmp_path: Path) -> None:
    out = tmp_path / "some"
    build_if_stale(plan, out, log=lambda line: None)
    before = files_of(out)
    (tmp_path / "some.jsonl").write_text("{broken")
    with pytest.raises(UserError, match=r"some.jsonl:1: is not JSON"):
        build_if_stale(plan, out, log=lambda line: None, force=True)
    assert files_of(out) == before
    assert Corpus.open(out).name == "some"


def test_a_folder_that_holds_something_else_is_not_replaced(plan: CorpusPlan, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="is there and holds no corpus: name another one"):
        build_if_stale(plan, tmp_path / "mine", log=lambda line: None)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_full_disk_is_one_line(plan: CorpusPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gatebench.data.shards.np.save", full)
    with pytest.raises(UserError, match=r"'some' cannot be written to .* No space left on device; free space"):
        build_if_stale(plan, tmp_path / "some", log=lambda line: None)
    assert not (tmp_path / "some").exists()


def test_no_documents_is_an_error(tmp_path: Path) -> None:
    empty = TextSource("empty", lambda: iter(()), {"kind": "made"})
    with pytest.raises(UserError, match="hold no document that passes the filters"):
        build_corpus(CorpusPlan("empty", (empty,), BuildOptions(), {}), tmp_path / "e", log=lambda line: None)
