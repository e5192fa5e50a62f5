"""Change in held-out loss under each intervention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gatebench.report.analysis.interventions import ALL, COPY, NONE, OTHER, Row
from gatebench.report.figures.panels import beside, legend_above, name_lines, name_variant, new_figure
from gatebench.report.figures.style import PAGE_WIDTH, variant_style

LINEAR_BELOW = 1e-2
"""Changes of the loss within this are drawn to a linear scale, others to a logarithmic one."""
TITLES = {ALL: "all tokens", COPY: "copies (after a trigger)", OTHER: "elsewhere"}
"""By group of targets."""


def draw(table: Sequence[Row], labels: Mapping[str, str]) -> Figure:
    """A line an intervention, a colour a variant, a panel a group of targets.

    With one seed the 95 % interval is over windows, with three or more over seeds; with two each seed is drawn.
    """
    shown = [row for row in table if row.intervention != NONE and row.changes]
    groups = [group for group in TITLES if group == ALL or any(group in (row.changes or {}) for row in shown)]
    with_changes = {row.intervention for row in shown}
    names = [name for name in dict.fromkeys(row.intervention for row in table) if name in with_changes]
    variants = list(dict.fromkeys(row.variant for row in shown))
    figure = new_figure(PAGE_WIDTH, 1.0 + len(names) * max(0.32, 0.11 * len(variants)))
    panels = list(figure.subplots(1, len(groups), sharey=True, squeeze=False).ravel())
    for axes, group in zip(panels, groups, strict=True):
        for row in shown:
            place = names.index(row.intervention) + beside(variants.index(row.variant), len(variants))
            _draw_change(axes, row, group, place)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_title(TITLES[group])
        _change_axis(axes, shown)
        name_lines(axes, names, separated=True)
    figure.supxlabel(f"change in loss (nats per token; linear within ±{LINEAR_BELOW:g})")
    for name in variants:
        name_variant(panels[0], variant_style(name), labels[name])
    legend_above(figure, panels[0])
    return figure


def _change_axis(axes: Axes, shown: Sequence[Row]) -> None:
    """Linear near zero, logarithmic beyond, wide enough for every seed of every row."""
    values = [value for row in shown for change in (row.changes or {}).values() for value in change.by_seed]
    low, high = min(-LINEAR_BELOW, *values), max(LINEAR_BELOW, *values)
    axes.set_xscale("symlog", linthresh=LINEAR_BELOW)
    axes.set_xlim(1.6 * low, 1.6 * high)
    ticks = {-1.0: "-1", -0.1: "-0.1", -0.01: "", 0.0: "0", 0.01: "0.01", 0.1: "0.1", 1.0: "1"}
    inside = {tick: word for tick, word in ticks.items() if 1.6 * low < tick < 1.6 * high}
    axes.set_xticks(list(inside), list(inside.values()))
    axes.xaxis.set_minor_locator(NullLocator())


def _draw_change(axes: Axes, row: Row, group: str, y: float) -> None:
    change = (row.changes or {}).get(group)
    if change is None:
        return
    style = variant_style(row.variant)
    if len(change.by_seed) == 2:
        pair = {**style.hollow, "linestyle": "-"}
        axes.plot(change.by_seed, [y, y], **pair, markersize=3, linewidth=0.8)
    elif change.low is not None and change.high is not None:
        axes.hlines(y, change.low, change.high, color=style.color, linewidth=1.2)
    axes.plot([change.change], [y], **style.points)
