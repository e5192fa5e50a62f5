"""The first-token share under each setting of a study, over its floor: one figure."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gatebench.report.figures.style import FLOOR_COLOR, PAGE_WIDTH, drawing, new_figure, save, variant_style
from gatebench.report.tables.settings_table import SettingsTable

MARGIN = 1.3
"""How far the axis goes beyond the outermost value, as a factor."""


def write(table: SettingsTable, directory: str | Path) -> list[Path]:
    """Draw the table and save it as ``settings``.png, .pdf and .svg; return the paths."""
    with drawing():
        return save(draw(table), Path(directory) / "settings")


def draw(table: SettingsTable) -> Figure:
    """Share over floor on a log axis: a line a setting, a colour a variant, small points seeds, large ones means."""
    settings = list(dict.fromkeys(row.setting for row in table.rows))
    labels = {row.variant: row.label for row in table.rows}
    variants = list(labels)
    height = len(settings) * max(0.26, 0.13 * len(variants))
    figure = new_figure(PAGE_WIDTH * 0.85, 0.9 + height + 0.17 * math.ceil(len(variants) / 3))
    axes = figure.subplots()
    for row in table.rows:
        values = [value for value in row.ratio.by_seed.values() if value > 0]
        if not values:
            continue
        style = variant_style(row.variant, table.baseline)
        y = settings.index(row.setting) + 0.7 * ((variants.index(row.variant) + 0.5) / len(variants) - 0.5)
        axes.plot([min(values), max(values)], [y, y], color=style.color, linewidth=0.8, alpha=0.6)
        axes.plot(values, [y] * len(values), color=style.color, marker=style.marker, markersize=2.5, linestyle="none",
                  markerfacecolor="none", markeredgewidth=0.7)  # fmt: skip
        axes.plot([row.ratio.mean], [y], color=style.color, marker=style.marker, markersize=5.5, linestyle="none")
    for name in variants:
        style = variant_style(name, table.baseline)
        axes.plot([], [], color=style.color, marker=style.marker, linestyle="none", label=labels[name])
    axes.axvline(1.0, color=FLOOR_COLOR, linestyle=":", linewidth=1.2, label="uniform attention (1)")
    _ratio_axis(axes, table)
    for place in range(1, len(settings)):
        axes.axhline(place - 0.5, color=FLOOR_COLOR, linewidth=0.4)
    axes.set_yticks(range(len(settings)), settings)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.set_xlabel("first-token share / floor (small: a seed, large: their mean)")
    figure.legend(loc="outside upper center", ncols=min(3, len(variants) + 1))
    return figure


def _ratio_axis(axes: Axes, table: SettingsTable) -> None:
    values = [value for row in table.rows for value in row.ratio.by_seed.values() if value > 0]
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, *values, 1.0) / MARGIN, max(2.0, *values, 1.0) * MARGIN)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
