"""What the sink does for each variant: interventions on trained models as one table over variants and seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table
from scipy import stats as scipy_stats

from gatebench.report.read.probe_files import ProbedRun, by_variant, context
from gatebench.report.tables.comparison_table import markdown_table

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
    first_token_share: float | None = None
    first_token_excess: float | None = None
    sink_rate: float | None = None
    m_act: float | None = None
    gate_mean: float | None = None

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
    table = []
    for variant, seeds in by_variant([run for run in runs if run.effects], baseline).items():
        names: dict[str, None] = {}
        for run in seeds:
            names.update(dict.fromkeys(effect["intervention"] for effect in run.effects))
        for name in names:
            found = [e for run in seeds for e in run.effects if e["intervention"] == name]
            table.append(_row(variant, name, found))
    return table


def _row(variant: str, name: str, found: list[dict[str, Any]]) -> Row:
    if not all(effect["applies"] for effect in found):
        return Row(variant, name, len(found), applies=False)
    groups = [group for group in found[0]["losses"] if all(group in effect["losses"] for effect in found)]
    changes = {group: _change([effect["losses"][group] for effect in found]) for group in groups}
    figures = {}
    for key in ("first_token_share", "first_token_excess", "sink_rate", "m_act", "gate_mean"):
        values = [effect[key] for effect in found]
        figures[key] = None if None in values else float(np.mean(values))
    loss = float(np.mean([effect["losses"][ALL]["loss"] for effect in found]))
    return Row(variant, name, len(found), True, loss=loss, changes=changes, **figures)


def _change(found: list[dict[str, Any]]) -> Change:
    values = np.array([one["change"] for one in found])
    if len(values) < 2:
        return Change(found[0]["change"], found[0]["low"], found[0]["high"], tuple(values.tolist()))
    half = float(scipy_stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))
    mean = float(values.mean())
    return Change(mean, mean - half, mean + half, tuple(values.tolist()))


def to_dicts(table: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as plain data, `effect` included, for JSON."""
    return [{**asdict(row), "effect": row.effect} for row in table]


def to_rich(table: Sequence[Row]) -> Table:
    """Return the table for a terminal: losses in nats per token, changes with half of the 95 % interval."""
    copies = any(row.changes and COPY in row.changes for row in table)
    rich = Table(title="Held-out loss under interventions (nats per token), change ± half the 95 % interval")
    rich.add_column("intervention", no_wrap=True)
    rich.add_column("loss, change", justify="right", no_wrap=True)
    for heading in (*(["copies", "elsewhere"] if copies else []), "share / floor", "M-Act"):
        rich.add_column(heading, justify="right")
    rich.add_column("effect")
    last = None
    for row in table:
        if last != row.variant:
            if last is not None:
                rich.add_section()
            rich.add_row(f"{row.variant}, {row.n_seeds} seed{'s' if row.n_seeds > 1 else ''}", style="bold")
        last = row.variant
        changes = row.changes or {}
        rich.add_row(
            f"  {row.intervention}",
            _number(row.loss, ".4f") if row.intervention == NONE else _words(changes.get(ALL)),
            *(_plain(row, changes.get(group)) for group in ((COPY, OTHER) if copies else ())),
            _number(row.first_token_excess, ".2f"),
            _number(row.m_act, ".1f"),
            row.effect,
        )
    return rich


def _plain(row: Row, change: Change | None) -> str:
    if row.intervention == NONE:
        return ""
    return "-" if change is None else _signed(change.change)


def _words(change: Change | None) -> str:
    if change is None:
        return "-"
    if change.low is None or change.high is None:
        return _signed(change.change)
    return f"{_signed(change.change)} ± {(change.high - change.low) / 2:.4f}"


def _signed(value: float) -> str:
    return f"{round(value, 4) + 0.0:+.4f}"  # no -0.0000


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def to_markdown(table: Sequence[Row], runs: Sequence[ProbedRun]) -> str:
    """Return two tables in Markdown: the change in loss at a glance, and what each intervention does to each variant.

    Sink rate, gate and every seed are in the JSON form.
    """
    copies = any(row.changes and COPY in row.changes for row in table)
    names = [name for name in dict.fromkeys(row.intervention for row in table) if name != NONE]
    cells: dict[str, dict[str, str]] = {}
    for row in table:
        cells.setdefault(row.variant, {})[row.intervention] = _at_a_glance(row, COPY if copies else ALL)
    where = "on copies" if copies else "over all tokens"
    lines = [
        "# Interventions",
        "",
        context(runs),
        "",
        "Change in held-out loss, nats per token, ± half the 95 % interval (over seeds from two on, else windows). The "
        f"effect is nothing where the whole interval lies within ±{INVISIBLE:.5f}.",
        "",
        f"## Change in loss {where}",
        "",
        *markdown_table(
            ["variant", *names],
            [[variant, *(found.get(name, "-") for name in names)] for variant, found in cells.items()],
            words_last=False,
        ),
        "",
        "## Loss, sink and largest activations under each intervention",
        "",
    ]
    columns = ["variant", "intervention", "loss", "change", *(["copies", "elsewhere"] if copies else [])]
    columns += ["first-token share", "share / floor", "M-Act", "effect"]
    found, last = [], None
    for row in table:
        changes, untouched = row.changes or {}, row.intervention == NONE
        seeds = f", {row.n_seeds} seed{'s' if row.n_seeds > 1 else ''}"
        found.append(
            [
                f"**{row.variant}**{seeds}" if row.variant != last else "",
                row.intervention,
                _number(row.loss, ".4f"),
                *("" if untouched else _words(changes.get(g)) for g in (ALL, *((COPY, OTHER) if copies else ()))),
                _number(row.first_token_share, ".4f"),
                _number(row.first_token_excess, ".2f"),
                _number(row.m_act, ".1f"),
                row.effect,
            ]
        )
        last = row.variant
    return "\n".join([*lines, *markdown_table(columns, found, n_words=2)]) + "\n"


def _at_a_glance(row: Row, group: str) -> str:
    return "no gate" if not row.applies else _words((row.changes or {}).get(group))
