"""Documents from local files: JSON lines, Parquet, plain text."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gatebench.data.documents import Document, TextSource
from gatebench.errors import UserError

FORMATS = ("auto", "jsonl", "parquet", "text")
_JSONL = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_NOT_A_NAME = re.compile(r"[^\w.-]+")


def local_source(
    paths: Sequence[Path],
    *,
    format: str = "auto",
    text_field: str = "text",
    domain_field: str | None = None,
    domain: str = "text",
) -> TextSource:
    """Files and folders (read recursively, in sorted order) as one source.

    `text_field`, `domain_field`: columns of JSON lines and Parquet; a dot enters an object (`meta.set_name`).
    `domain`: the domain of everything where `domain_field` is None.

    Raises:
        UserError: a path that is not there, an unknown format, and while reading: bad JSON, a missing field,
            text that is not UTF-8, each naming file and line.
    """
    if format not in FORMATS:
        raise UserError(f"unknown format {format!r}: legal are {', '.join(FORMATS)}")
    files = _files_below(paths)
    formats = {path: _format_of(path) if format == "auto" else format for _, path in files}
    if domain_field is not None and (text := [path for path, f in formats.items() if f == "text"]):
        raise UserError(
            f"domain-field {domain_field!r} needs JSONL or Parquet, and {text[0]} is plain text: use --domain"
        )

    def read() -> Iterator[Document]:
        seen: Counter[str] = Counter()
        for name, path in files:
            if formats[path] == "text":
                yield Document(name, _read_text(path), domain)
                continue
            rows = _jsonl_rows(path) if formats[path] == "jsonl" else _parquet_rows(path, (text_field, domain_field))
            for where, row in rows:
                yield document_of(row, where, seen, text_field=text_field, domain_field=domain_field, domain=domain)

    facts: dict[str, object] = {
        "kind": "local files",
        "domain": domain if domain_field is None else f"by {domain_field}",
        "files": [name for name, _ in files],
        "licence": "not stated: the files are yours",
    }
    return TextSource("local files", read, facts)


def file_pins(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    """(path, bytes, modification time in ns) of every file below the paths: what a build key needs."""
    return [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for _, p in _files_below(paths)]


def document_of(
    row: dict[str, Any],
    where: str,
    seen: Counter[str],
    *,
    text_field: str,
    domain_field: str | None,
    domain: str,
) -> Document:
    """The document of one record; its key is the text's hash, so that the order of records decides nothing."""
    text = _field(row, text_field, where, "text-field")
    if domain_field is not None:
        domain = _NOT_A_NAME.sub("_", _field(row, domain_field, where, "domain-field").strip().lower()).strip("._-")
        if not domain:
            raise UserError(f"{where}: domain-field {domain_field!r} is empty")
    key = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
    seen[key] += 1
    return Document(key if seen[key] == 1 else f"{key}#{seen[key]}", text, domain)


def _field(row: dict[str, Any], name: str, where: str, option: str) -> str:
    value: Any = row
    for part in [name] if name in row else name.split("."):
        if not isinstance(value, dict) or part not in value:
            raise UserError(f"{where}: no field {name!r} ({option}); it has {', '.join(sorted(map(str, row)))}")
        value = value[part]
    if not isinstance(value, str):
        raise UserError(f"{where}: field {name!r} ({option}) must be text, not {type(value).__name__}")
    return value


def _files_below(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """(name relative to what was given, path) of every file; hidden ones left out."""
    files: list[tuple[str, Path]] = []
    for path in paths:
        if path.is_file():
            files.append((path.name, path))
        elif path.is_dir():
            below = sorted(p for p in path.rglob("*") if p.is_file())
            named = [(p.relative_to(path), p) for p in below]
            files += [(n.as_posix(), p) for n, p in named if not any(part.startswith(".") for part in n.parts)]
        else:
            raise UserError(f"from path {path} not found: give a file or a folder")
    if not files:
        raise UserError(f"from path {paths[0] if paths else ''} holds no file")
    counts = Counter(name for name, _ in files)
    return [(name if counts[name] == 1 else path.as_posix(), path) for name, path in files]


def _format_of(path: Path) -> str:
    name = path.name.lower()
    if name.endswith(_JSONL):
        return "jsonl"
    return "parquet" if name.endswith(".parquet") else "text"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): convert it, or name its --format") from error


def _jsonl_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    opened: Callable[..., Any] = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise UserError(f"{path}:{number}: must be a JSON object, not {type(row).__name__}")
                yield f"{path}:{number}", row
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: is not JSON: {error}") from error
        except (UnicodeDecodeError, OSError, EOFError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from error


def _parquet_rows(path: Path, fields: tuple[str | None, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from error
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: is not Parquet: {error}") from error
    names = file.schema_arrow.names
    wanted = {f if f in names else f.split(".")[0] for f in fields if f is not None}
    if missing := sorted(wanted - set(names)):
        raise UserError(f"{path}: no column {missing[0]!r}; it has {', '.join(names)}")
    number = 0
    for batch in file.iter_batches(batch_size=1024, columns=sorted(wanted)):
        for row in batch.to_pylist():
            yield f"{path} row {number}", row
            number += 1
