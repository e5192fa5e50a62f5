"""Files that appear whole or not at all, and that are what was written when they are read back.

Everything that writes a file that others read writes it through here. A large one has its sha256 beside it, in
`<name>.sha256`; the results of a finished run have theirs in one `SHA256SUMS`. Both are in the form of `sha256sum -c`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gatebench.errors import UserError

SUMS = "SHA256SUMS"
_SEAL = "sha256"
WAY_OUT = "restore it, or delete it and run again"


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` so that a reader, or a crash, sees the old file or the new one and never a part."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    data = content.encode() if isinstance(content, str) else content
    try:
        with open(temporary, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """Return the sha256 (hex) of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def checksum_path(path: Path) -> Path:
    """Return where the sha256 of a large file stands."""
    return path.with_name(f"{path.name}.sha256")


def publish(temporary: Path, path: Path) -> None:
    """Rename a large file that is written whole to its name, its sha256 first.

    A crash between the two leaves a file that its sha256 is not of: it counts as damaged.
    """
    write_atomic(checksum_path(path), f"{sha256_of(temporary)}  {path.name}\n")
    os.replace(temporary, path)


def remove(path: Path) -> None:
    """Remove a large file and its sha256."""
    path.unlink(missing_ok=True)
    checksum_path(path).unlink(missing_ok=True)


def is_intact(path: Path) -> bool:
    """Return whether a large file is what was written; one without a sha256 beside it is taken to be."""
    stated = _stated(checksum_path(path))
    return path.name not in stated or stated[path.name] == sha256_of(path)


def check_intact(path: Path) -> None:
    """Raise UserError for a large file that is not what was written."""
    if not is_intact(path):
        raise damaged(path, checksum_path(path).name)


def write_sums(folder: Path, files: Mapping[str, Path]) -> None:
    """Write `SHA256SUMS` over those of `files` that are there, by their names below `folder`."""
    lines = []
    for name, path in files.items():
        if path.is_file():
            stated = _stated(checksum_path(path)).get(path.name)
            lines.append(f"{stated or sha256_of(path)}  {name}\n")
    write_atomic(folder / SUMS, "".join(lines))


def read_checked(path: Path) -> bytes:
    """Return a file's bytes, which are those that `SHA256SUMS` beside it states, where it states any.

    Raises UserError for other bytes, and OSError as `read_bytes` does.
    """
    content = path.read_bytes()
    if _stated(path.parent / SUMS).get(path.name) not in (None, hashlib.sha256(content).hexdigest()):
        raise damaged(path, SUMS)
    return content


def read_text(path: Path, way_out: str = WAY_OUT) -> str:
    """Return a text file, checked as `read_checked` does. Raises UserError with the way out."""
    try:
        return read_checked(path).decode("utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {way_out}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); {way_out}") from None


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the sha256 of the rest under `sha256`: for a file that has no sums beside it."""
    return {**content, _SEAL: _digest(content)}


def read_object(path: Path, way_out: str = WAY_OUT) -> dict[str, Any]:
    """Return the JSON object in a file, its seal verified and taken off.

    Raises UserError, with the way out, for anything else, and for one that is not what was written.
    """
    try:
        content = json.loads(read_text(path, way_out))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); {way_out}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: no JSON object; {way_out}")
    if content.pop(_SEAL, None) not in (None, _digest(content)):
        raise UserError(f"{path}: damaged, its sha256 is not that of its content; {way_out}")
    return content


def damaged(path: Path, stated_in: str) -> UserError:
    """Return the error for a file that is not what was written."""
    return UserError(f"{path}: damaged, its sha256 is not that in {stated_in}; {WAY_OUT}")


def _digest(content: Mapping[str, Any]) -> str:
    # through JSON, so that keys that are numbers count as what they are read back as
    return hashlib.sha256(json.dumps(json.loads(json.dumps(content)), sort_keys=True).encode()).hexdigest()


def _stated(path: Path) -> dict[str, str]:
    """Return sha256 by name; empty where there is no such file. A line that is none states nothing."""
    try:
        lines = path.read_bytes().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
