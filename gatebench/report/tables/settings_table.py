"""The variants of a study under each of its settings, a line each: what drives the sink, and what it costs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatebench.errors import UserError
from gatebench.report.analysis.comparison import is_synthetic, run_facts
from gatebench.report.tables.comparison_table import markdown_table, without_nan, write_forms
from gatebench.report.tables.paper_table import Column, Estimate
from gatebench.report.tables.paper_tables import estimate, run_notes
from gatebench.report.tables.text import MAX_SEEDS_SHOWN, header_lines, number

RATIO = "first_token_excess"
"""The column that is shown seed by seed, too."""


@dataclass(frozen=True)
class Setting:
    """One way in which a study sets up its recipe, and the finished runs under it."""

    label: str
    overrides: tuple[str, ...]
    """What it changes of the recipe that the other settings do not."""
    runs: pd.DataFrame
    """Of ``results.load``."""


@dataclass(frozen=True)
class SettingRow:
    """One variant under one setting."""

    setting: str
    overrides: tuple[str, ...]
    variant: str
    label: str
    floor: float
    """First-token share of uniform attention at this setting's context length."""
    estimates: Mapping[str, Estimate]
    """By the key of a column."""

    @property
    def ratio(self) -> Estimate:
        """First-token share over its floor."""
        return self.estimates[RATIO]


@dataclass(frozen=True)
class SettingsTable:
    """Every setting and variant of a study; the methods give it in the forms that people and programs read."""

    name: str
    """Of the study."""
    baseline: str
    facts: Mapping[str, Any]
    """What every number depends on (``comparison.run_facts``), over all settings."""
    columns: tuple[Column, ...]
    rows: tuple[SettingRow, ...]
    notes: tuple[str, ...]

    def to_rich(self) -> Group:
        """For a terminal of 120 columns or more."""
        grid = Table(title=self._title(), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        grid.pad_edge, grid.collapse_padding = False, True
        for index, name in enumerate(self._headers("\n")):
            words = index < 2
            grid.add_column(name, justify="left" if words else "right", overflow="fold", no_wrap=not words)
        last = None
        for row in self.rows:
            if last not in (None, row.setting):
                grid.add_section()
            grid.add_row("" if last == row.setting else row.setting, *self._cells(row))
            last = row.setting
        parts: list[RenderableType] = [Text(line, style="dim") for line in header_lines(self.facts)]
        parts.append(grid)
        parts += [Text(f"! {note}", style="yellow") for note in self.notes]
        parts.append(Text(self._legend(), style="dim"))
        return Group(*parts)

    def to_markdown(self) -> str:
        """One Markdown document: the table, then what each setting changes."""
        lines = [f"# {self._title()}", ""]
        lines += [f"- {part}" for line in header_lines(self.facts) for part in line.split("; ")]
        cells = [[row.setting, *self._cells(row)] for row in self.rows]
        lines += [
            "",
            *markdown_table(self._headers(" "), cells, n_words=2, words_last=False),
            "",
            "What each setting changes:",
            "",
        ]
        changes = {row.setting: " ".join(row.overrides) or "nothing" for row in self.rows}
        lines += [f"- {setting}: `{change}`" for setting, change in changes.items()]
        if self.notes:
            lines += ["", *(f"- Note: {note}." for note in self.notes)]
        return "\n".join([*lines, "", self._legend()]) + "\n"

    def to_frame(self) -> pd.DataFrame:
        """A row a setting and variant, every number unrounded, ``first_token_excess_seed_<s>`` a seed."""
        records = []
        for row in self.rows:
            record: dict[str, Any] = {"setting": row.setting, "overrides": " ".join(row.overrides)}
            record |= {"variant": row.variant, "label": row.label, "n_seeds": row.ratio.n, "floor": row.floor}
            for column in self.columns:
                record[column.key] = row.estimates[column.key].mean
                record[f"{column.key}_half_width"] = row.estimates[column.key].half_width
            record |= {f"{RATIO}_seed_{s}": row.ratio.by_seed.get(s, math.nan) for s in self.facts["seeds"]}
            records.append(record)
        return pd.DataFrame.from_records(records)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is None."""
        rows = [
            {
                "setting": row.setting,
                "overrides": list(row.overrides),
                "variant": row.variant,
                "label": row.label,
                "first_token_floor": row.floor,
                **{
                    key: {
                        "mean": e.mean,
                        "half_width": e.half_width,
                        "by_seed": {str(s): v for s, v in e.by_seed.items()},
                    }
                    for key, e in row.estimates.items()
                },
            }
            for row in self.rows
        ]
        content = {"schema": 1, "study": self.name, "baseline": self.baseline, "facts": dict(self.facts), "rows": rows}
        plain: dict[str, Any] = without_nan({**content, "notes": list(self.notes)})
        return plain

    def write(self, directory: str | Path, stem: str = "settings") -> list[Path]:
        """Write ``stem``.md, .csv and .json into ``directory``; the same runs give the same bytes."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        return write_forms(Path(directory), stem, self.to_markdown(), self.to_frame(), text)

    def _title(self) -> str:
        return f"{self.name}: the first-token share under each setting"

    def _headers(self, space: str) -> list[str]:
        headers = ["setting", "variant"]
        for column in self.columns:
            headers.append(column.title.replace("\n", space))
            if column.key == "first_token_share":
                headers.append("floor")
            if column.key == RATIO:
                headers.append(f"by{space}seed")
        return headers

    def _cells(self, row: SettingRow) -> Iterator[str]:
        yield row.label
        for column in self.columns:
            found = row.estimates[column.key]
            yield number(found.mean, column.kind)
            if column.key == "first_token_share":
                yield number(row.floor, "floor")
            if column.key == RATIO:
                yield _by_seed(found)

    def _legend(self) -> str:
        n = len(self.facts["seeds"])
        means = f" Means over {n} seeds." if n > 1 else ""
        return f"Floor: the first-token share of uniform causal attention, H_T/T; share / floor of 1 is no sink.{means}"


def make(
    name: str,
    settings: Sequence[Setting],
    baseline: str,
    variants: Sequence[str],
    labels: Mapping[str, str] | None = None,
    *,
    overrides: Sequence[str] = (),
) -> SettingsTable:
    """Lay the runs of ``baseline`` and ``variants`` out, a row a setting and variant in the order given.

    ``overrides`` is what all settings have in common, for the header. Raises :class:`UserError` for a variant without a
    finished run under some setting.
    """
    names = [baseline, *(variant for variant in variants if variant != baseline)]
    together = pd.concat([setting.runs[setting.runs["variant"].isin(names)] for setting in settings], ignore_index=True)
    columns = _columns(together)
    rows, notes = [], []
    for setting in settings:
        runs = setting.runs[setting.runs["variant"].isin(names)]
        measured = set(runs["variant"])
        if missing := [variant for variant in names if variant not in measured]:
            raise UserError(f"setting '{setting.label}': no finished run of {', '.join(missing)}; legal: some of each")
        for variant in names:
            own = runs[runs["variant"] == variant]
            rows.append(
                SettingRow(
                    setting=setting.label,
                    overrides=setting.overrides,
                    variant=variant,
                    label=(labels or {}).get(variant, variant),
                    floor=float(own["first_token_floor"].mean()),
                    estimates={column.key: estimate(own, column.key) for column in columns},
                )
            )
        notes += [f"{setting.label}: {note}" for note in run_notes(runs, baseline, names)]
    base = together[together["variant"] == baseline]
    parameters = sorted(int(n) for n in base["n_params"].unique())
    facts = {
        **run_facts(together, base),
        "overrides": " ".join(overrides),
        "n_params": parameters[0] if len(parameters) == 1 else parameters,
    }
    return SettingsTable(name, baseline, facts, tuple(columns), tuple(rows), tuple(notes))


def _columns(runs: pd.DataFrame) -> list[Column]:
    columns = [
        Column("first_token_share", "share", "share"),
        Column(RATIO, "share /\nfloor", "ratio"),
        Column("m_act", "M-Act", "activation"),
        Column("gate_mean", "gate", "score"),
    ]
    if is_synthetic(runs):
        return [
            *columns,
            Column("excess_loss", "excess loss\n(nats)", "nats"),
            Column("copy_accuracy", "copy\naccuracy", "percent"),
        ]
    return [*columns, Column("avg_ppl", "Avg PPL", "perplexity")]


def _by_seed(found: Estimate) -> str:
    values = [number(value, "ratio") for _, value in sorted(found.by_seed.items())]
    if len(values) <= MAX_SEEDS_SHOWN:
        return ", ".join(values) or "-"
    return f"{number(min(found.by_seed.values()), 'ratio')} .. {number(max(found.by_seed.values()), 'ratio')}"
