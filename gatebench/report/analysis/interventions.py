"""What the sink does for each variant: interventions on trained models, over variants and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gatebench import metrics
from gatebench.report.analysis.stats import mean_interval
from gatebench.report.read.probe_files import ProbedRun, by_variant

NONE = "none"
ALL, COPY, OTHER = "all", "copy", "other"
INVISIBLE = 5e-5
"""Nats per token that the tables' four decimals do not show."""


@dataclass(frozen=True)
class Change:
    """Change in mean loss, nats per token, with its 95 % interval (None where there is nothing to take one over)."""

    change: float
    low: float | None
    high: float | None
    by_seed: tuple[float, ...] = ()


@dataclass(frozen=True)
class Row:
    """One intervention on one variant: means over seeds."""

    variant: str
    intervention: str
    n_seeds: int
    applies: bool
    loss: float | None = None
    changes: dict[str, Change] | None = None
    """By group of targets, `all` first. The interval is over seeds from two on, over windows with one."""
    figures: dict[str, float | None] = field(default_factory=dict)
    """The probes under the intervention (`metrics.followed`)."""

    @property
    def effect(self) -> str:
        """What it does to the loss, in words; a claim takes two seeds (design, contract 5)."""
        if not self.applies:
            return "no gate"
        if self.intervention == NONE or self.changes is None:
            return ""
        whole = self.changes[ALL]
        if self.n_seeds < 2 or whole.low is None or whole.high is None:
            return "one seed"
        if whole.low > -INVISIBLE and whole.high < INVISIBLE:
            return "nothing"
        if whole.low > 0:
            return "costs"
        if whole.high < 0:
            return "helps"
        return "not resolvable"


def rows(runs: Sequence[ProbedRun], baseline: str = "baseline") -> list[Row]:
    """Return a row for every (variant, intervention) that any run has, in the order in which they were measured."""
    found = []
    for variant, seeds in by_variant([run for run in runs if run.effects], baseline).items():
        names: dict[str, None] = {}
        for run in seeds:
            names.update(dict.fromkeys(effect["intervention"] for effect in run.effects))
        for name in names:
            effects = [e for run in seeds for e in run.effects if e["intervention"] == name]
            found.append(_row(variant, name, effects))
    return found


def _row(variant: str, name: str, found: list[dict[str, Any]]) -> Row:
    if not all(effect["applies"] for effect in found):
        return Row(variant, name, len(found), applies=False)
    groups = [group for group in found[0]["losses"] if all(group in effect["losses"] for effect in found)]
    changes = {group: _change([effect["losses"][group] for effect in found]) for group in groups}
    figures = {}
    for metric in metrics.followed():
        values = [effect[metric.key] for effect in found]
        figures[metric.key] = None if None in values else float(np.mean(values))
    loss = float(np.mean([effect["losses"][ALL]["loss"] for effect in found]))
    return Row(variant, name, len(found), True, loss=loss, changes=changes, figures=figures)


def _change(found: list[dict[str, Any]]) -> Change:
    values = tuple(float(one["change"]) for one in found)
    if len(values) < 2:
        return Change(found[0]["change"], found[0]["low"], found[0]["high"], values)
    mean, half = mean_interval(values)
    return Change(mean, mean - half, mean + half, values)
