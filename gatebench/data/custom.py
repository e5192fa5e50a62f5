"""Corpora from a user's own text, by the same pipeline as the presets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gatebench.data.corpus import BuildOptions, CorpusPlan, Log, build_if_stale
from gatebench.data.hub_documents import hub_source
from gatebench.data.presets import PRESETS
from gatebench.data.text_files import RecordReader, file_pins, local_source
from gatebench.data.tokens import corpora_dir
from gatebench.errors import UserError


@dataclass(frozen=True)
class HubPart:
    """Which part of a hub data set to read."""

    dataset: str
    config: str | None = None
    split: str = "train"
    max_docs: int | None = None
    max_bytes: int | None = None


_OPTIONS = BuildOptions()


def build_custom(
    name: str,
    *,
    paths: Sequence[Path] = (),
    hub: HubPart | None = None,
    format: str = "auto",
    records: RecordReader | None = None,
    options: BuildOptions = _OPTIONS,
    out: Path | None = None,
    force: bool = False,
    log: Log,
) -> tuple[Path, bool]:
    """Build a corpus from files and/or a hub data set unless it is up to date; (directory, whether it was built now).

    Raises:
        UserError: a name that is a preset's or no plain name, nothing to read, and all that reading can meet.
    """
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise UserError(f"name {name!r} must be letters, digits, '_', '-' and '.'")
    if name in PRESETS:
        raise UserError(f"name {name!r} is a preset's: take another one")
    sources = []
    records = records or RecordReader()
    fields = f"text_field={records.text_field!r}, domain_field={records.domain_field!r}, domain={records.domain!r}"
    pins: dict[str, object] = {"records": f"Records(format={format!r}, {fields})"}
    if paths:
        sources.append(local_source(paths, format=format, records=records))
        pins["files"] = file_pins(paths)
    if hub is not None:
        sources.append(
            hub_source(
                hub.dataset,
                config=hub.config,
                split=hub.split,
                records=records,
                max_docs=hub.max_docs,
                max_bytes=hub.max_bytes,
            )
        )
        pins["hub"] = repr(hub)
    if not sources:
        raise UserError("nothing to read: give --from PATH or --hub DATASET")
    out = corpora_dir() / name if out is None else out
    plan = CorpusPlan(name, tuple(sources), options, pins)
    return out, build_if_stale(plan, out, log=log, force=force)
