"""Run directories as data frames: a row a run, or a row a step.

The files and every field are described in docs/results.md. Reading decides nothing: a run is finished when its
``summary.json`` is there, and a directory without one is passed over. A folder of many runs keeps what was read of it
in a Parquet file, which counts only while every summary's path, size and time of change are what they were.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from gatebench.errors import UserError
from gatebench.evaluation.benchmarks.suites import FOLDER
from gatebench.evaluation.long_context import FOLDER as LONG_FOLDER
from gatebench.files import read_object, read_text
from gatebench.metrics import FRAME, SCHEMA, known, measured
from gatebench.recipes import Settings
from gatebench.report.read import benchmark_results, long_results

CACHE = ".runs.parquet"
"""What :func:`load` leaves in a folder of runs."""
MIN_CACHED = 100
"""Runs below which reading them again is as fast as a cache."""

COLUMNS = tuple(metric.key for metric in FRAME)
"""The columns of :func:`load` that every frame has, in order; ``<prefix>/<domain>`` columns and ``run_dir`` follow."""
TEXT, WHOLE, FLAGS, REAL = (
    tuple(metric.key for metric in FRAME if metric.dtype == dtype) for dtype in ("text", "whole", "flag", "real")
)
DOMAIN_PREFIXES = tuple(f"{metric.key}/" for metric in measured("domain"))
_LATER = (*(f"{metric.key}/" for metric in measured("benchmark")), *long_results.METRICS)
"""How columns of numbers begin that are measured after a run."""

CURVE_COLUMNS = ("run", "variant", "seed", "step", "tokens", "loss", "grad_norm", "lr", "tokens_per_s")

_REQUIRED = ("run", "status", "variant", "recipe", "seed")


def load(source: str | Path | Iterable[str | Path]) -> pd.DataFrame:
    """Read every finished run below ``source`` into one tidy frame, a row a run.

    ``source`` is a folder of run directories at any depth, one run directory, or several of either. Rows come in the
    order (recipe, variant, seed, run). Numbers that a run does not have (a diverged run's perplexity, the gate mean of
    a model without gates) are NaN. ``overrides`` is one string, the settings joined by a space.

    A single folder of :data:`MIN_CACHED` runs or more is read from its :data:`CACHE` while no run of it has changed.

    Raises :class:`UserError` for a folder that does not exist, an unreadable summary and an unknown schema.
    """
    directories = list(_run_directories(source))
    if not isinstance(source, (str, Path)) or len(directories) < MIN_CACHED:
        return _read(directories)
    cache, stamp = Path(source) / CACHE, _stamp(directories)
    frame = _cached(cache, stamp)
    if frame is None:
        frame = _read(directories)
        _keep(frame, cache, stamp)
    return frame


def load_curves(run_dirs: Iterable[str | Path]) -> pd.DataFrame:
    """Read ``metrics.jsonl`` of the given finished runs into one long frame with the columns :data:`CURVE_COLUMNS`.

    A last line cut short by a kill is left out; any other line that is not JSON is a :class:`UserError`.
    """
    frames = []
    for directory in map(Path, run_dirs):
        summary = _read_summary(directory / "summary.json")
        records = _read_json_lines(directory / "metrics.jsonl")
        frame = pd.DataFrame.from_records(records, columns=list(CURVE_COLUMNS[3:]))
        for name in CURVE_COLUMNS[5:]:
            frame[name] = frame[name].astype("float64")
        frame.insert(0, "seed", int(summary["seed"]))
        frame.insert(0, "variant", str(summary["variant"]))
        frame.insert(0, "run", str(summary["run"]))
        frames.append(frame)
    if not frames:
        return pd.DataFrame(columns=list(CURVE_COLUMNS))
    return pd.concat(frames, ignore_index=True)


def domains(frame: pd.DataFrame) -> list[str]:
    """The evaluation domains of a frame from :func:`load`, sorted by name."""
    return sorted(str(name)[4:] for name in frame.columns if str(name).startswith("ppl/"))


def _run_directories(source: str | Path | Iterable[str | Path]) -> Iterator[Path]:
    """Finished run directories below each source, each once, in path order."""
    roots = [Path(source)] if isinstance(source, (str, Path)) else [Path(item) for item in source]
    found: dict[Path, None] = {}
    for root in roots:
        if not root.is_dir():
            raise UserError(f"results: {root} is no directory; legal is a run directory or a folder of them")
        for directory in _walk(root):
            found.setdefault(directory)
    yield from sorted(found)


def _walk(root: Path) -> Iterator[Path]:
    """Every folder with a summary.json, without looking inside run directories and hidden folders (submissions)."""
    pending = [str(root)]
    while pending:
        folder = pending.pop()
        with os.scandir(folder) as entries:
            inside = list(entries)
        names = {entry.name for entry in inside}
        if "summary.json" in names:
            yield Path(folder)
        elif "metrics.jsonl" not in names:
            below = (entry for entry in inside if not entry.name.startswith("."))
            pending.extend(entry.path for entry in below if entry.is_dir(follow_symlinks=False))


def _read(directories: Sequence[Path]) -> pd.DataFrame:
    return as_frame(
        [
            _read_summary(folder / "summary.json")
            | benchmark_results.columns(folder)
            | long_results.columns(folder)
            | {"run_dir": str(folder)}
            for folder in directories
        ]
    )


def _stamp(directories: Sequence[Path]) -> str:
    """A hash over what a frame depends on: the columns, and path, size and time of change of every summary and of the
    folders of what was measured later, whose files are written by rename."""
    digest = hashlib.sha256(repr((SCHEMA, COLUMNS)).encode())
    for directory in directories:
        found = os.stat(directory / "summary.json")
        measured = [_changed(directory / name) for name in (FOLDER, LONG_FOLDER)]
        digest.update(f"{directory}\0{found.st_size}\0{found.st_mtime_ns}\0{measured}\n".encode())
    return digest.hexdigest()


def _changed(folder: Path) -> int:
    """When a folder was last changed, in nanoseconds; 0 where there is none."""
    try:
        return os.stat(folder).st_mtime_ns
    except FileNotFoundError:
        return 0


def _cached(path: Path, stamp: str) -> pd.DataFrame | None:
    """The frame in the cache; None where there is none, it is of other runs, or it cannot be read."""
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError):  # not there, or cut short
        return None
    if frame.attrs.pop("stamp", None) != stamp:
        return None
    return frame


def _keep(frame: pd.DataFrame, path: Path, stamp: str) -> None:
    """Write the cache by rename. A folder that cannot be written to, or a field without a Parquet type, has none."""
    written = path.with_name(f"{path.name}.{os.getpid()}")
    stamped = frame.copy(deep=False)
    stamped.attrs["stamp"] = stamp
    try:
        stamped.to_parquet(written, index=False)
        os.replace(written, path)
    except (OSError, ValueError, TypeError):
        written.unlink(missing_ok=True)


def _read_summary(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path}: not found; a run is finished only when its summary.json is there")
    summary = read_object(path, "delete the file and run the same line again")
    schema = summary.get("schema")
    if schema != SCHEMA:
        raise UserError(f"{path}: schema {schema!r} is unknown; this version of gatebench reads schema {SCHEMA}")
    for key in _REQUIRED:
        if summary.get(key) is None:
            raise UserError(f"{path}: the field {key!r} is missing; docs/results.md lists what must be there")
    return summary


def _read_json_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise UserError(f"{path}: not found; every run directory has one")
    lines = read_text(path).splitlines()
    try:
        return list(json.loads("[" + ",".join(line for line in lines if line) + "]"))
    except ValueError:
        pass
    records = []
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            records.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise UserError(f"{path}: line {number} is not JSON ({error})") from None
    return records


def as_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Summaries as the tidy frame of :func:`load`."""
    return tidy(pd.DataFrame([{**row, "overrides": _text_of(row.get("overrides") or "")} for row in rows]))


def _text_of(overrides: str | list[str] | dict[str, Any]) -> str:
    """Settings as ``settings_of_text`` reads them back: a summary has a list of words, or values by key."""
    if isinstance(overrides, str):
        return overrides
    return " ".join(Settings.of(overrides).words if isinstance(overrides, dict) else overrides)


def tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """The columns, types and order of rows that :func:`load` promises, whatever ``frame`` lacks of them."""
    extra = sorted(set(map(str, frame.columns)) - set(COLUMNS) - {"run_dir"})
    by_domain = [key for prefix in DOMAIN_PREFIXES for key in extra if key.startswith(prefix)]
    others = [key for key in extra if key not in set(by_domain)]
    frame = frame.reindex(columns=[*COLUMNS, *by_domain, *others, "run_dir"])
    typed: dict[str, Any] = {name: frame[name].astype(object).fillna("").astype(str) for name in (*TEXT, "run_dir")}
    typed |= {name: frame[name].astype(object).fillna(0).astype("int64") for name in WHOLE}
    typed |= {name: frame[name].astype(object).fillna(False).astype(bool) for name in FLAGS}
    typed |= {name: frame[name].astype("float64") for name in (*REAL, *by_domain)}
    typed |= {name: frame[name].astype("float64") for name in others if name.startswith(_LATER) or _is_real(name)}
    return frame.assign(**typed).copy().sort_values(["recipe", "variant", "seed", "run"], ignore_index=True)


def _is_real(column: str) -> bool:
    metric = known(column)
    return metric is not None and metric.dtype == "real"
