"""Documents from local files: JSON lines, Parquet, plain text."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from gatebench.data.documents import Document, TextSource
from gatebench.errors import UserError

FORMATS = ("auto", "jsonl", "parquet", "text")
_JSONL = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_LEAST_TO_CUT = 10_000
"""Characters that one file must have to be a corpus by itself."""
_NOT_A_NAME = re.compile(r"[^\w.-]+")


@dataclass
class RecordReader:
    """Turns the records of one source into documents."""

    text_field: str = "text"
    domain_field: str | None = None
    """Column that names the domain; a dot enters an object (`meta.set_name`)."""
    domain: str = "text"
    """The domain of everything where there is no such column."""
    _seen: Counter[str] = field(default_factory=Counter, init=False)
    _labels: dict[str, str] = field(default_factory=dict, init=False)

    def document(self, row: dict[str, Any], where: str) -> Document:
        """Return a record's document; its key is the text's hash, so that the order of records decides nothing.

        Raises UserError for a field that is missing or no text, and for two labels that would be one domain.
        """
        text = _field(row, self.text_field, where, "text-field")
        domain = self.domain if self.domain_field is None else self._named(row, self.domain_field, where)
        key = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
        self._seen[key] += 1
        return Document(key if self._seen[key] == 1 else f"{key}#{self._seen[key]}", text, domain, group=key)

    def _named(self, row: dict[str, Any], column: str, where: str) -> str:
        label = _field(row, column, where, "domain-field").strip()
        domain = _NOT_A_NAME.sub("_", label.lower()).strip("._-")
        if not domain:
            raise UserError(f"{where}: domain-field {column!r} is empty: {label!r} leaves no name for a domain")
        if (other := self._labels.setdefault(domain, label)) != label:
            raise UserError(
                f"{where}: domain-field {column!r} has the labels {other!r} and {label!r}, which would be one domain, "
                f"'{domain}'; rename one of them"
            )
        return domain


def local_source(paths: Sequence[Path], *, format: str = "auto", records: RecordReader | None = None) -> TextSource:
    """Files and folders (read recursively, in sorted order) as one source.

    Raises:
        UserError: a path that is not there, an unknown format, a file that cannot be read, and while reading: bad JSON,
            a missing field, text that is not UTF-8, each naming file and line.
    """
    if format not in FORMATS:
        raise UserError(f"unknown format {format!r}: legal are {', '.join(FORMATS)}")
    records = records or RecordReader()
    files, n_hidden = _files_below(paths)
    formats = {path: _format_of(path) if format == "auto" else format for _, path in files}
    if records.domain_field is not None and (text := [path for path, f in formats.items() if f == "text"]):
        raise UserError(
            f"domain-field {records.domain_field!r} needs JSONL or Parquet, and {text[0]} is plain text: use --domain"
        )

    def read() -> Iterator[Document]:
        reader = replace(records)  # keys count anew each time
        for name, path in files:
            if formats[path] == "text":
                text = _read_text(path)
                parts = _in_two(text) if len(files) == 1 else (text,)
                yield from (Document(name + " (end)" * i, part, reader.domain) for i, part in enumerate(parts))
                continue
            columns = (reader.text_field, reader.domain_field)
            rows = _jsonl_rows(path) if formats[path] == "jsonl" else _parquet_rows(path, columns)
            for where, row in rows:
                yield reader.document(row, where)

    facts: dict[str, object] = {
        "kind": "local files",
        "domain": records.domain if records.domain_field is None else f"by {records.domain_field}",
        "files": [name for name, _ in files],
        "skipped": {"hidden files": n_hidden} if n_hidden else {},
        "licence": "not stated: the files are yours",
    }
    return TextSource("local files", read, facts)


def _in_two(text: str) -> tuple[str, ...]:
    """Return one long text as two, cut at a line's or a word's end: the last tenth, 300,000 characters at most."""
    start = len(text) - min(len(text) // 10, 300_000)
    ends = [place + 1 for end in "\n " if (place := text.find(end, start)) > 0]
    place = ends[0] if ends else 0
    return (text[:place], text[place:]) if len(text) >= _LEAST_TO_CUT and 0 < place < len(text) else (text,)


def file_pins(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    """(path, bytes, modification time in ns) of every file below the paths: what a build key needs."""
    return [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for _, p in _files_below(paths)[0]]


def _field(row: dict[str, Any], name: str, where: str, option: str) -> str:
    value: Any = row
    for part in [name] if name in row else name.split("."):
        if not isinstance(value, dict) or part not in value:
            raise UserError(f"{where}: no field {name!r} ({option}); it has {', '.join(sorted(map(str, row)))}")
        value = value[part]
    if not isinstance(value, str):
        raise UserError(f"{where}: field {name!r} ({option}) must be text, not {type(value).__name__}")
    return value


def _files_below(paths: Sequence[Path]) -> tuple[list[tuple[str, Path]], int]:
    """(name relative to what was given, path) of every file, and how many hidden ones are left out."""
    files: list[tuple[str, Path]] = []
    n_hidden = 0
    for path in paths:
        if path.is_file():
            files.append((path.name, path))
        elif path.is_dir():
            below = sorted(p for p in path.rglob("*") if p.is_file())
            named = [(p.relative_to(path), p) for p in below]
            shown = [(n.as_posix(), p) for n, p in named if not any(part.startswith(".") for part in n.parts)]
            files += shown
            n_hidden += len(named) - len(shown)
        else:
            raise UserError(f"from path {path} not found: give a file or a folder")
    if not files:
        raise UserError(f"from path {paths[0] if paths else ''} holds no file")
    counts = Counter(name for name, _ in files)
    return [(name if counts[name] == 1 else path.as_posix(), path) for name, path in files], n_hidden


def _format_of(path: Path) -> str:
    """Return a file's format by what is in it: Parquet's mark, or a first line that is a JSON object.

    Raises UserError for a file called .json that is no JSON lines: whether it is one text or many is not ours to guess.
    """
    name = path.name.lower()
    if name.endswith(_JSONL):
        return "jsonl"
    with _opened(path) as file:
        if file.peek(4)[:4] == b"PAR1":
            return "parquet"
        if name.endswith(".parquet"):
            raise UserError(f"{path}: is not Parquet: it does not begin with PAR1")
        first = next((line for line in file if line.strip()), b"")
    try:
        is_record = isinstance(json.loads(first.decode("utf-8-sig")), dict)
    except (ValueError, RecursionError):
        is_record = False
    if not is_record and name.endswith((".json", ".json.gz")):
        raise UserError(
            f"{path}: is called .json and its first line is no JSON object; legal: JSON lines (an object a line), or "
            "--format text to take the file as one document"
        )
    return "jsonl" if is_record else "text"


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader[Any]]:
    """Open a file's bytes, unpacked where it is gzip. Raises UserError, naming it, for whatever reading meets."""
    try:
        with path.open("rb") as packed:
            if packed.peek(2)[:2] == b"\x1f\x8b" or path.name.endswith(".gz"):
                with gzip.open(packed) as file, io.BufferedReader(cast(io.RawIOBase, file)) as buffered:
                    yield buffered
            else:
                yield packed
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def _read_text(path: Path) -> str:
    with _opened(path) as file:
        content = file.read()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or name its --format") from error


def _jsonl_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    with _opened(path) as file:
        try:
            for number, line in enumerate(io.TextIOWrapper(file, encoding="utf-8-sig"), 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise UserError(f"{path}:{number}: must be a JSON object, not {type(row).__name__}")
                yield f"{path}:{number}", row
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: cannot be read: {error}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: is not JSON: {error}") from error


def _parquet_rows(path: Path, fields: tuple[str | None, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from error
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: is not Parquet: {error}") from error
    names = file.schema_arrow.names
    wanted = {f if f in names else f.split(".")[0] for f in fields if f is not None}
    if missing := sorted(wanted - set(names)):
        raise UserError(f"{path}: no column {missing[0]!r}; it has {', '.join(names)}")
    number = 0
    try:
        for batch in file.iter_batches(batch_size=1024, columns=sorted(wanted)):
            for row in batch.to_pylist():
                yield f"{path} row {number}", row
                number += 1
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read after row {number}: {error}") from error
