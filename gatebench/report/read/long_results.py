"""What `gatebench long` left in runs as columns of `results.load`: `<run>/long/<condition>.json`.

A column is `<metric><condition>/<length>`: `ruler/4x` is the run as it was trained, `ruler_yarn/4x` with YaRN,
`ruler+block-first/4x` under an intervention, at four training windows. RULER's also stand under the length in tokens
(`ruler/1k`), as in the paper's Table 5. Of several factors of YaRN the largest counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gatebench import metrics
from gatebench.errors import UserError
from gatebench.evaluation.long_context import FOLDER
from gatebench.files import read_object

METRICS = (*(metric.key for metric in metrics.measured("long")), *(metric.long for metric in metrics.followed()))
"""Mean RULER score; loss over the last quarter of a window; and of the probes what `metrics.followed` names."""
COLUMN = re.compile(rf"({'|'.join(METRICS)})((?:_yarn)?(?:\+[^/]+)?)/(\d+(?:\.\d+)?)x")
"""Metric, condition and length in training windows of a column."""


def columns(run_dir: str | Path) -> dict[str, float | str | None]:
    """The columns of one run; none where it was not measured. Raises :class:`UserError` for a file that is none.

    RULER's mean is over the tasks that every condition and length has; `long_asked` names them.
    """
    found: dict[str, float | str | None] = {}
    known = records(run_dir)
    tasks = common_tasks(known)
    for record in known:
        condition = condition_of(record)
        for length, row in record["lengths"].items():
            probes = row["text"]["probes"]
            score = sum(row["ruler"][task]["score"] for task in tasks) / len(tasks) if tasks else None
            values = {"ruler": score, "long_loss": row["text"]["tail"]["nats"]}
            values |= {metric.long: probes[metric.key] for metric in metrics.followed()}
            multiple = f"{int(length) / record['window']:g}x"
            found |= {f"{metric}{condition}/{multiple}": value for metric, value in values.items()}
            found[f"ruler{condition}/{in_tokens(int(length))}"] = score
    if known:
        found["long_asked"] = _asked(known, tasks)
    return found


def common_tasks(found: Iterable[dict[str, Any]]) -> list[str]:
    """The tasks that every condition and length has, which a mean RULER score is over."""
    rows = [row for record in found for row in record["lengths"].values()]
    return sorted(set.intersection(*(set(row["ruler"]) for row in rows))) if rows else []


def _asked(found: Iterable[dict[str, Any]], tasks: Sequence[str]) -> str:
    """How a run's scores were got, in words: every way in which a task was asked, with these tasks."""
    rows = [row for record in found for row in record["lengths"].values()]
    parts = {f"{row['text']['asked']['tokens']} tokens": None for row in rows}
    ways: dict[str, list[str]] = {}
    for task in tasks:
        for how in {_way(row["ruler"][task]["asked"]): None for row in rows}:
            ways.setdefault(how, []).append(task)
    return "; ".join([*parts, *(f"{how}: {' '.join(names)}" for how, names in ways.items())])


def _way(asked: dict[str, Any]) -> str:
    digits = f" numbers of {asked['digits']} digits" if "digits" in asked else ""
    return f"{asked['samples']} samples seed {asked['seed']} wording {asked['wording']}{digits}"


def records(run_dir: str | Path) -> list[dict[str, Any]]:
    """The results of every condition, that without YaRN first. Raises :class:`UserError` for a file that is none."""
    found = []
    for path in sorted((Path(run_dir) / FOLDER).glob("*.json")):
        try:
            record = read_object(path, "delete it and measure again")
            key = record["rope_scaling"]["factor"] if record["rope_scaling"] else 0.0, record["intervention"] or ""
            found.append((key, record))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: no result of `gatebench long` ({error!r}); delete it and measure again") from None
    return [record for _, record in sorted(found, key=lambda item: item[0])]


def condition_of(record: dict[str, Any]) -> str:
    """The condition's part of a column's name; empty for the run as it was trained."""
    stretch = "_yarn" if record["rope_scaling"] else ""
    return f"{stretch}+{record['intervention']}" if record["intervention"] else stretch


def in_tokens(length: int) -> str:
    """4096 is 4k, 256 is 256."""
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def conditions(names: Iterable[str]) -> list[str]:
    """The conditions among column names: without YaRN first, interventions after what they change."""
    found = {match[2] for name in names if (match := COLUMN.fullmatch(name))}
    return sorted(found, key=lambda condition: (condition.partition("+")[2], condition))


def multiples(names: Iterable[str], metric: str) -> list[float]:
    """The lengths, in training windows, at which any column has the metric."""
    matches = (COLUMN.fullmatch(name) for name in names)
    return sorted({float(match[3]) for match in matches if match and match[1] == metric})


def in_words(condition: str) -> str:
    """What a table calls a condition."""
    stretch, _, intervention = condition.partition("+")
    return " ".join(filter(None, ("YaRN" if stretch else "as trained", intervention and f"({intervention})")))
