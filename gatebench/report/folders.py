"""Names of the folders that tables and figures go into. Imports nothing, for the command line needs it at once."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

LONGEST = 100
"""Characters before a name is cut and numbered."""
LONGEST_COMPARISON = 200
"""The same of the folder of a comparison."""


def folder_name(label: str) -> str:
    """Return a folder's name for a combination: its settings with what no file system minds; "" for none."""
    name = re.sub(r"[^A-Za-z0-9_.=+-]+", "_", label.replace(" ", "+")).strip("_.")
    if name == label.replace(" ", "+") and len(name) <= LONGEST:
        return name
    return f"{name[:LONGEST]}-{zlib.crc32(label.encode()):08x}"


def comparison_folder(baseline: str, chosen: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return the folder's name for a comparison, another for every other one: its variants, settings and baseline."""
    listed = ",".join(chosen)
    name = listed if len(chosen) <= 2 else f"{len(chosen)}_variants-{zlib.crc32(listed.encode()):08x}"
    if overrides:
        name += f"-{folder_name(' '.join(overrides))}"
    if baseline != "baseline":
        name += f"-vs-{baseline}"
    return name if len(name) <= LONGEST_COMPARISON else f"{name[:LONGEST_COMPARISON]}-{zlib.crc32(name.encode()):08x}"
