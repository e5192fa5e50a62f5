"""The variants of a study under each of its settings: what drives the sink, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gatebench.errors import UserError
from gatebench.report.analysis.comparison import is_synthetic
from gatebench.report.analysis.estimate import Estimate, estimate
from gatebench.report.analysis.paper_tables import facts_of, run_notes

SHARE, RATIO = "first_token_share", "first_token_excess"
"""The columns beside which the floor, and the number at each seed, stand."""
COLUMNS = (SHARE, RATIO, "m_act", "gate_mean")
OF_SYNTHETIC_DATA = ("excess_loss", "copy_accuracy")
OF_TEXT = ("avg_ppl",)


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
    """By metric."""

    @property
    def ratio(self) -> Estimate:
        """First-token share over its floor."""
        return self.estimates[RATIO]


@dataclass(frozen=True)
class SettingsTable:
    """Every setting and variant of a study."""

    name: str
    """Of the study."""
    baseline: str
    facts: Mapping[str, Any]
    """What every number depends on (``comparison.run_facts``), over all settings."""
    columns: tuple[str, ...]
    """Keys of metrics."""
    rows: tuple[SettingRow, ...]
    notes: tuple[str, ...]


def across_settings(
    name: str,
    settings: Sequence[Setting],
    baseline: str,
    variants: Sequence[str],
    labels: Mapping[str, str] | None = None,
) -> SettingsTable:
    """Lay the runs of ``baseline`` and ``variants`` out, a row a setting and variant in the order given.

    Raises :class:`UserError` for a variant without a finished run under some setting.
    """
    names = [baseline, *(variant for variant in variants if variant != baseline)]
    by_label = {s.label: s.runs[s.runs["variant"].isin(names)].assign(setting=s.label) for s in settings}
    together = pd.concat(by_label.values(), ignore_index=True)
    columns = (*COLUMNS, *(OF_SYNTHETIC_DATA if is_synthetic(together) else OF_TEXT))
    rows, notes = [], []
    for setting in settings:
        runs = by_label[setting.label]
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
                    estimates={column: estimate(own, column) for column in columns},
                )
            )
        notes += [f"{setting.label}: {note}" for note in run_notes(runs, baseline, names)]
    return SettingsTable(name, baseline, facts_of(together, baseline), columns, tuple(rows), tuple(notes))
