"""Names of the folders that tables and figures go into. Imports nothing, for the command line needs it at once."""

from __future__ import annotations

import re
import zlib

LONGEST = 100
"""Characters before a name is cut and numbered."""


def folder_name(label: str) -> str:
    """Return a folder's name for a combination: its settings with what no file system minds; "" for none."""
    name = re.sub(r"[^A-Za-z0-9_.=+-]+", "_", label.replace(" ", "+")).strip("_.")
    if name == label.replace(" ", "+") and len(name) <= LONGEST:
        return name
    return f"{name[:LONGEST]}-{zlib.crc32(label.encode()):08x}"
