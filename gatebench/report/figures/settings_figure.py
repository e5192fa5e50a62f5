"""The first-token share under each setting of a study, over its floor: one figure."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from gatebench import metrics
from gatebench.report.analysis.settings import RATIO, SettingsTable
from gatebench.report.figures import save
from gatebench.report.figures.panels import beside, legend_above, name_lines, name_variant, new_figure, ratio_axis
from gatebench.report.figures.style import FLOOR_COLOR, PAGE_WIDTH, variant_style

MARGIN = 1.3
"""How far the axis goes beyond the outermost value, as a factor."""


def write(table: SettingsTable, directory: str | Path) -> list[Path]:
    """Draw the table and save it as ``settings``.png, .pdf and .svg; return the paths."""
    return save.write({"settings": lambda: draw(table)}, directory)


def draw(table: SettingsTable) -> Figure:
    """Share over floor on a log axis: a line a setting, a colour a variant, small points seeds, large ones means."""
    settings = list(dict.fromkeys(row.setting for row in table.rows))
    labels = {row.variant: row.label for row in table.rows}
    variants = list(labels)
    height = len(settings) * max(0.26, 0.13 * len(variants))
    figure = new_figure(PAGE_WIDTH * 0.85, 1.07 + height)
    axes = figure.subplots()
    for row in table.rows:
        values = [value for value in row.ratio.by_seed.values() if value > 0]
        if not values:
            continue
        style = variant_style(row.variant, table.baseline)
        y = settings.index(row.setting) + beside(variants.index(row.variant), len(variants))
        axes.plot([min(values), max(values)], [y, y], color=style.color, linewidth=0.8, alpha=0.6)
        axes.plot(values, [y] * len(values), **style.hollow, markersize=2.5, markeredgewidth=0.7)
        axes.plot([row.ratio.mean], [y], **style.points, markersize=5.5)
    for name in variants:
        name_variant(axes, variant_style(name, table.baseline), labels[name])
    axes.axvline(1.0, color=FLOOR_COLOR, linestyle=":", linewidth=1.2, label="uniform attention (1)")
    ratio_axis(axes, log=metrics.get(RATIO).log)
    every = [value for row in table.rows for value in row.ratio.by_seed.values() if value > 0]
    axes.set_xlim(min(0.5, *every, 1.0) / MARGIN, max(2.0, *every, 1.0) * MARGIN)
    name_lines(axes, settings, separated=True)
    axes.grid(False, axis="y")
    axes.set_xlabel("first-token share / floor (small: a seed, large: their mean)")
    legend_above(figure, axes)
    return figure
