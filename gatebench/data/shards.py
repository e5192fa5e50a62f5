"""Writing tokens: one stream per (split, domain), cut into files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

SHARD_BYTES = 1 << 30


class ShardWriter:
    """Appends documents to `<split>/<domain>-00000.bin`, -00001 and so on, and `<split>/<domain>.docs.npy`."""

    def __init__(
        self, root: Path, split: str, domain: str, dtype: np.dtype[np.unsignedinteger], shard_bytes: int
    ) -> None:
        self._root = root
        self._stem = f"{split}/{domain}"
        self._dtype = dtype
        self._tokens_per_shard = max(shard_bytes // dtype.itemsize, 1)
        self._offsets = [0]
        self._file: BinaryIO | None = None
        self._room = 0
        self.shards: list[str] = []
        (root / split).mkdir(parents=True, exist_ok=True)

    def add(self, ids: NDArray[np.int64]) -> None:
        """Append one document, its EOS included."""
        self._offsets.append(self._offsets[-1] + len(ids))
        while len(ids):
            if self._room == 0:
                self._next_file()
            assert self._file is not None
            piece, ids = ids[: self._room], ids[self._room :]
            self._file.write(piece.astype(self._dtype).tobytes())
            self._room -= len(piece)

    def close(self) -> dict[str, object]:
        """Flush, write the document index; the split's part of the manifest."""
        if self._file is None:
            self._next_file()
        assert self._file is not None
        self._file.close()
        np.save(self._root / f"{self._stem}.docs.npy", np.array(self._offsets, np.int64))
        return {
            "documents": len(self._offsets) - 1,
            "tokens": self._offsets[-1],
            "shards": self.shards,
            "document_index": f"{self._stem}.docs.npy",
        }

    def _next_file(self) -> None:
        if self._file is not None:
            self._file.close()
        name = f"{self._stem}-{len(self.shards):05d}.bin"
        self._file = (self._root / name).open("wb")
        self.shards.append(name)
        self._room = self._tokens_per_shard


def file_facts(path: Path) -> dict[str, object]:
    """Size and sha256 of a file, as the manifest holds them."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}
