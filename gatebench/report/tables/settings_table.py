"""The variants of a study under each of its settings, a line each: what drives the sink, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from gatebench import metrics
from gatebench.report.analysis.estimate import Estimate
from gatebench.report.analysis.settings import RATIO, SHARE, SettingRow, SettingsTable
from gatebench.report.tables.blocks import Legend, Lines, Paragraph, notes, table
from gatebench.report.tables.document import Document
from gatebench.report.text import MAX_SEEDS_SHOWN, number, seed_counts


def document(found: SettingsTable) -> Document:
    """Lay the rows out, with what each setting changes below them."""
    changes = {row.setting: " ".join(row.overrides) or "nothing" for row in found.rows}
    n_seeds = len(found.facts["seeds"])
    counts = {f"{row.label}, {row.setting}": [e.n for e in row.estimates.values() if e.n] for row in found.rows}
    content = {"schema": 1, "study": found.name, "baseline": found.baseline, "facts": found.facts}
    return Document(
        name="settings",
        title=f"{found.name}: the first-token share under each setting",
        blocks=(
            table(["setting", "variant", *_titles(found)], [_cells(row) for row in found.rows], n_words=2),
            Paragraph("What each setting changes:", in_terminal=False),
            Lines(tuple(f"{name}: `{change}`" for name, change in changes.items()), in_terminal=False),
            notes(found.notes),
            Legend(
                "Floor: the first-token share of uniform causal attention, H_T/T; share / floor of 1 is no sink."
                + (f" Means over {seed_counts(counts)}." if n_seeds > 1 else "")
            ),
        ),
        facts=found.facts,
        frame=pd.DataFrame.from_records([_record(row, found.facts["seeds"]) for row in found.rows]),
        content={**content, "rows": [_content(row) for row in found.rows]},
    )


def _titles(found: SettingsTable) -> Iterator[str]:
    for key in found.columns:
        yield metrics.get(key).wrapped
        if key == SHARE:
            yield "floor"
        if key == RATIO:
            yield "by\nseed"


def _cells(row: SettingRow) -> list[str]:
    cells = [row.setting, row.label]
    for key, found in row.estimates.items():
        cells.append(metrics.get(key).text(found.mean))
        if key == SHARE:
            cells.append(number(row.floor, "floor"))
        if key == RATIO:
            cells.append(_by_seed(found))
    return cells


def _record(row: SettingRow, seeds: Sequence[int]) -> dict[str, Any]:
    """Every number unrounded, ``first_token_excess_seed_<s>`` a seed."""
    record: dict[str, Any] = {"setting": row.setting, "overrides": " ".join(row.overrides)}
    record |= {"variant": row.variant, "label": row.label, "n_seeds": row.ratio.n, "floor": row.floor}
    for key, found in row.estimates.items():
        record |= {key: found.mean, f"{key}_half_width": found.half_width}
    return record | {f"{RATIO}_seed_{seed}": row.ratio.by_seed.get(seed, math.nan) for seed in seeds}


def _content(row: SettingRow) -> dict[str, Any]:
    about = {"setting": row.setting, "overrides": row.overrides, "variant": row.variant, "label": row.label}
    return {
        **about,
        "first_token_floor": row.floor,
        **{
            key: {"mean": e.mean, "half_width": e.half_width, "by_seed": {str(s): v for s, v in e.by_seed.items()}}
            for key, e in row.estimates.items()
        },
    }


def _by_seed(found: Estimate) -> str:
    values = [number(value, "ratio") for _, value in sorted(found.by_seed.items())]
    if len(values) <= MAX_SEEDS_SHOWN:
        return ", ".join(values) or "-"
    return f"{number(min(found.by_seed.values()), 'ratio')} .. {number(max(found.by_seed.values()), 'ratio')}"
