"""What a user's text loses on its way into a corpus is told or refused: documents, labels, formats, bytes."""

from __future__ import annotations

import gzip
import json
import random
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from gatebench.data.bpe import bytes_per_token, load_tokenizer, train_bpe
from gatebench.errors import UserError
from tests.cli.commands import Command

DATA_BUILD = Command("data", "build", columns=200)
WORDS = [f"w{i}" for i in range(3000)]


def text(seed: int, n: int = 100) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=n))


def jsonl(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def words(tmp_path: Path, *given: object) -> tuple[object, ...]:
    return (*given, "--name", "own", "--vocab-size", 300, "--out", tmp_path / "out")


def build(tmp_path: Path, *given: object) -> dict[str, Any]:
    summary: dict[str, Any] = DATA_BUILD.json(*words(tmp_path, *given))
    return summary


def refusal(tmp_path: Path, *given: object) -> str:
    message = DATA_BUILD.refusal(*words(tmp_path, *given))
    assert not (tmp_path / "out").exists()
    return message


def documents(summary: dict[str, Any]) -> dict[str, int]:
    return {name: d["train"]["documents"] + d["heldout"]["documents"] for name, d in summary["domains"].items()}


# Documents that share a template.


def with_prompt(n: int, every: int = 1) -> list[dict[str, str]]:
    """Documents of 1,000 words of their own; every so many-th begins with one prompt of 60 words."""
    prompt = text(10_001, 60) + " "
    return [{"text": prompt * (i % every == 0) + text(i, 1000)} for i in range(n)]


def test_a_rule_that_takes_every_training_document_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, "--from", jsonl(tmp_path / "a.jsonl", with_prompt(100)))
    assert "no training document is left in domain 'text'" in message
    assert "most were dropped as overlaps heldout (89 documents): it shares 13-grams with held-out text" in message
    assert "--heldout-overlap keep, or a larger share" in message


@pytest.mark.parametrize("switch", ["keep", "0.1"])
def test_a_rule_can_be_switched_off_or_loosened(tmp_path: Path, switch: str) -> None:
    source = jsonl(tmp_path / "a.jsonl", with_prompt(100))
    assert documents(build(tmp_path, "--from", source, "--heldout-overlap", switch)) == {"text": 100}


def test_near_duplicates_can_be_kept(tmp_path: Path) -> None:
    template = text(10_002, 300)
    source = jsonl(tmp_path / "t.jsonl", ({"text": f"{template} {text(i)}"} for i in range(40)))
    assert "near duplicate (39 documents)" in refusal(tmp_path, "--from", source)
    kept = build(tmp_path, "--from", source, "--near-duplicates", "keep", "--heldout-overlap", "keep")
    assert documents(kept) == {"text": 40}


def test_a_build_ends_with_what_it_dropped_held_out_and_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    jsonl(folder / "b.jsonl", [*with_prompt(100, every=2), {"text": text(1, 1000)}, {"text": " "}])
    (folder / ".notes").write_text("mine")
    shown = DATA_BUILD(*words(tmp_path, "--from", folder)).stdout
    assert "Held out: 10 documents, never trained on." in shown
    assert " of 102 documents: 1 exact duplicate, " in shown and " overlaps heldout, 1 too short." in shown
    assert "The largest cause: overlaps heldout (" in shown
    assert "Passed over: 1 hidden files of local files." in shown


@pytest.mark.parametrize("value", ["0", "1.5", "no", "nan"])
def test_a_share_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    source = jsonl(tmp_path / "a.jsonl", with_prompt(10))
    message = refusal(tmp_path, "--from", source, "--near-duplicates", value)
    assert message == f"--near-duplicates {value}: legal: keep, or a share above 0, to 1"


# The format of a file is what is in it.


@pytest.mark.parametrize("name", ["a.json", "a.txt", "a", "a.json.gz"])
def test_json_lines_are_records_whatever_they_are_called(tmp_path: Path, name: str) -> None:
    content = "".join(json.dumps({"text": text(i)}) + "\n" for i in range(50)).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert documents(build(tmp_path, "--from", tmp_path / name)) == {"text": 50}


def test_parquet_is_known_by_its_mark(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": [text(i) for i in range(50)]}), tmp_path / "a.data")
    assert documents(build(tmp_path, "--from", tmp_path / "a.data")) == {"text": 50}


@pytest.mark.parametrize("content", ['[{"text": "one"}]', '{\n "text": "one"\n}', "", "no json"])
def test_json_that_is_no_json_lines_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert "is called .json and its first line is no JSON object; legal: JSON lines" in refusal(
        tmp_path, "--from", tmp_path / "a.json"
    )


def test_a_signature_at_the_start_is_no_text(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ({"text": text(i)} for i in range(50)))
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    assert documents(build(tmp_path, "--from", tmp_path / "b.jsonl")) == {"text": 50}


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_gz_is_named(tmp_path: Path, damage: str) -> None:
    raw = bytearray(gzip.compress("".join(json.dumps({"text": text(i)}) + "\n" for i in range(100)).encode()))
    middle = len(raw) // 2
    raw[middle : middle + 20] = b"\xff" * 20
    (tmp_path / "bad.jsonl.gz").write_bytes(raw if damage == "flipped" else raw[:middle])
    assert f"{tmp_path / 'bad.jsonl.gz'}: cannot be read" in refusal(tmp_path, "--from", tmp_path / "bad.jsonl.gz")


@pytest.mark.parametrize("value", ["9" * 6000, "[" * 30_000 + "]" * 30_000])
def test_json_beyond_pythons_limits_is_named(tmp_path: Path, value: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": ' + value + "}\n")
    assert f"{tmp_path / 'a.jsonl'}:2: is not JSON" in refusal(tmp_path, "--from", tmp_path / "a.jsonl")


def test_what_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not told as a lack of space."""
    source = jsonl(tmp_path / "a.jsonl", with_prompt(10))
    opened = Path.open

    def refusing(path: Path, *arguments: Any, **options: Any) -> Any:
        if path == source:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refusing)
    assert refusal(tmp_path, "--from", source).startswith(f"{source}: cannot be read: [Errno 13] Permission denied")


# Names.


def test_labels_that_would_be_one_domain_are_refused(tmp_path: Path) -> None:
    labels = ["C", "C++", "C#", "F#", "Objective-C++"]
    source = jsonl(tmp_path / "l.jsonl", ({"text": text(i), "lang": labels[i % 5]} for i in range(150)))
    assert "'lang' has the labels 'C' and 'C++', which would be one domain, 'c'" in refusal(
        tmp_path, "--from", source, "--domain-field", "lang"
    )


def test_a_mark_in_a_file_name_decides_nothing(tmp_path: Path) -> None:
    for i in range(60):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / f"issue #{i}.txt").write_text(text(i, 300))
    assert build(tmp_path, "--from", tmp_path / "d")["domains"]["text"]["heldout"]["documents"] in range(5, 8)


# A corpus that no run could use.


@pytest.mark.parametrize("separator", ["\n", " "])
def test_one_long_file_is_cut_so_that_its_end_is_held_out(tmp_path: Path, separator: str) -> None:
    (tmp_path / "input.txt").write_text(separator.join(text(i, 20) for i in range(1000)))
    domain = build(tmp_path, "--from", tmp_path / "input.txt")["domains"]["text"]
    assert (domain["train"]["documents"], domain["heldout"]["documents"]) == (1, 1)
    assert domain["heldout"]["bytes"] == pytest.approx(0.1 * (tmp_path / "input.txt").stat().st_size, abs=200)


def test_a_domain_without_held_out_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text(text(0))
    assert "no held-out document is left in domain 'text'; legal: two documents or more" in refusal(
        tmp_path, "--from", tmp_path / "short.txt"
    )
    rows = [{"text": text(20 * d + i), "dom": f"d{d}"} for d in range(5) for i in range(20)]
    source = jsonl(tmp_path / "five.jsonl", [*rows, {"text": text(10_003), "dom": "solo"}])
    assert "no held-out document is left in domain 'solo'" in refusal(
        tmp_path, "--from", source, "--domain-field", "dom"
    )


# Bytes per token.


def saved(tmp_path: Path, **parts: object) -> Path:
    tokenizer = train_bpe(["a b"], 258)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


CHANGING: dict[str, dict[str, object]] = {
    "lower case": {"normalizer": normalizers.Lowercase()},
    "NFKC": {"normalizer": normalizers.NFKC()},
    "accents": {"normalizer": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])},
    "replace": {"normalizer": normalizers.Replace("  ", " ")},
    "blanks dropped": {
        "pre_tokenizer": pre_tokenizers.Sequence(
            [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    },
    "a blank put before": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
}


@pytest.mark.parametrize("change", CHANGING)
def test_a_tokenizer_that_changes_text_is_refused(tmp_path: Path, change: str) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json changes text: .* comes back as"):
        load_tokenizer(saved(tmp_path, **CHANGING[change]))


def bytes_of(tokenizer: Tokenizer, content: str) -> int:
    return int(bytes_per_token(tokenizer)[tokenizer.encode(content, add_special_tokens=False).ids].sum())


def test_a_normal_form_is_refused_where_it_changes_a_document(tmp_path: Path) -> None:
    """NFC, which Qwen's tokenizers have: text that is in it already is counted right."""
    path = saved(tmp_path, normalizer=normalizers.NFC())
    composed, apart = "caf\u00e9 ", unicodedata.normalize("NFD", "caf\u00e9 ")
    assert bytes_of(load_tokenizer(path), composed) == len(composed.encode())
    assert (bytes_of(load_tokenizer(path), apart), len(apart.encode())) == (6, 7)
    fine = jsonl(tmp_path / "fine.jsonl", ({"text": composed + text(i)} for i in range(30)))
    given = ("--name", "own", "--tokenizer", path, "--out")
    assert DATA_BUILD("--from", fine, *given, tmp_path / "fine").exit_code == 0
    bad = jsonl(tmp_path / "bad.jsonl", ({"text": apart + text(i)} for i in range(30)))
    message = DATA_BUILD.refusal("--from", bad, *given, tmp_path / "bad")
    assert "tokenizer.json changes document " in message and "bytes, and its tokens stand for" in message
