"""Where the attention of idle queries goes: one stacked bar a variant, or a layer where there is one variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from gatebench.report.analysis.destinations import DESTINATIONS, Row
from gatebench.report.figures.panels import legend_above, name_lines, new_figure
from gatebench.report.figures.style import PAGE_WIDTH

NAMES = {
    "first": "first token",
    "self": "itself",
    "previous": "token before",
    "trigger": "other triggers",
    "rest": "rest",
    "none": "no token",
}
LABELLED = 0.06
"""Segments from this share on have their number written in."""


def draw(table: Sequence[Row], labels: Mapping[str, str]) -> Figure:
    """Mean over heads and seeds; the lightness of a destination is the same in every figure."""
    variants = list(dict.fromkeys(row.variant for row in table))
    idle = [row for row in table if row.queries != "trigger"]
    by_layer = len(variants) == 1 and len(idle) > 1
    bars = [row for row in idle if (row.layer is not None) == by_layer]
    words = [f"layer {row.layer}" if by_layer else labels[row.variant] for row in bars]
    figure = new_figure(PAGE_WIDTH * 0.85, 0.95 + 0.27 * len(bars))
    axes = figure.subplots()
    colors = mpl.colormaps["cividis"]
    left = [0.0] * len(bars)
    for place, name in enumerate(DESTINATIONS):
        if not any(name in row.shares for row in bars):
            continue
        shade = place / (len(DESTINATIONS) - 1)
        widths = [row.shares.get(name, 0.0) for row in bars]
        look: dict[str, Any] = {"color": colors(shade), "edgecolor": "white", "linewidth": 0.5}
        axes.barh(range(len(bars)), widths, left=left, **look, label=NAMES[name])
        for y, (start, width) in enumerate(zip(left, widths, strict=True)):
            if width >= LABELLED:
                color = "white" if shade < 0.5 else "black"
                axes.text(start + width / 2, y, f"{100 * width:.0f}", color=color, ha="center", va="center", fontsize=6)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    name_lines(axes, words)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.grid(False)
    queries = "all queries" if any(row.queries == "all" for row in bars) else "idle queries"
    axes.set_xlabel(f"attention of {queries} on it")
    legend_above(figure, axes, columns=5)
    return figure
