from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gatebench.data.documents import Document
from gatebench.data.text_files import RecordReader, file_pins, local_source
from gatebench.errors import UserError


def read(*paths: Path, format: str = "auto", **fields: str) -> list[Document]:
    return list(local_source(paths, format=format, records=RecordReader(**fields)).read())


def write_jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_jsonl_parquet_and_text_of_one_folder(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"})
    pq.write_table(pa.table({"text": ["three", "four"], "other": [1, 2]}), tmp_path / "b.parquet")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.md").write_text("five\n")
    (tmp_path / ".hidden").write_text("not read")
    with gzip.open(tmp_path / "d.jsonl.gz", "wt") as file:
        file.write('{"text": "six"}\n\n')
    documents = read(tmp_path, domain="web")
    assert [d.text for d in documents] == ["one", "two", "three", "four", "six", "five\n"]
    assert {d.domain for d in documents} == {"web"}
    assert documents[-1].key == "sub/c.md"


def test_fields_of_objects_and_domains_by_field(tmp_path: Path) -> None:
    row = {"content": {"body": "text"}, "meta": {"set": "Common Crawl/2024"}}
    document = read(write_jsonl(tmp_path / "a.jsonl", row), text_field="content.body", domain_field="meta.set")[0]
    assert (document.text, document.domain) == ("text", "common_crawl_2024")


def test_parquet_reads_objects_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "meta": [{"set": "Web"}]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet", domain_field="meta.set")[0].domain == "web"


def test_keys_follow_the_text_and_repeated_texts_share_a_split_key(tmp_path: Path) -> None:
    one, two, again = read(write_jsonl(tmp_path / "a.jsonl", {"text": "one"}, {"text": "two"}, {"text": "one"}))
    assert one.split_key == again.split_key != two.split_key
    assert one.key != again.key


def test_pins_change_with_a_file(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", {"text": "one"})
    before = file_pins([tmp_path])
    assert file_pins([tmp_path]) == before
    write_jsonl(path, {"text": "another"})
    assert file_pins([tmp_path]) != before


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.jsonl", '{"body": "x"}', {}, r"a.jsonl:1: no field 'text' \(text-field\); it has body"),
        ("a.jsonl", '{"text": "x"}', {"domain_field": "set"}, r"a.jsonl:1: no field 'set' \(domain-field\)"),
        ("a.jsonl", '{"text": 3}', {}, "field 'text' .* must be text, not int"),
        ("a.jsonl", '{"text": "x", "set": " / "}', {"domain_field": "set"}, "domain-field 'set' is empty"),
        ("a.jsonl", '{"text": "x"}\n{"text', {}, "a.jsonl:2: is not JSON"),
        ("a.jsonl", "[1]", {}, "a.jsonl:1: must be a JSON object, not list"),
        ("a.parquet", "no parquet", {}, "a.parquet: is not Parquet"),
        ("a.txt", b"\xff\xfe", {}, r"a.txt is not UTF-8 text \(byte 0\)"),
        ("a.txt", "x", {"domain_field": "set"}, "domain-field 'set' needs JSONL or Parquet, and .*a.txt is plain text"),
        ("a.txt", "x", {"format": "csv"}, "unknown format 'csv': legal are auto, jsonl, parquet, text"),
        ("a.jsonl.gz", "no gzip", {}, "a.jsonl.gz: cannot be read"),
    ],
)
def test_bad_input_is_named(
    tmp_path: Path, name: str, content: str | bytes, options: dict[str, str], message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message):
        read(path, **options)


def test_a_missing_parquet_column_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="no column 'text'; it has body"):
        read(tmp_path / "a.parquet")


def test_missing_and_empty_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"from path .*nowhere not found"):
        read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no file"):
        read(tmp_path)
