"""What figures are made of: canvases, grids of panels, legends and axes that several of them share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from gatebench.report.figures.style import FLOOR_COLOR, VariantStyle

Array = npt.NDArray[np.float64]


def new_figure(width: float, height: float) -> Figure:
    """A figure of ``width`` x ``height`` inches that belongs to no window."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def grid(
    n: int, columns: int, width: float, row_height: float, margin: float = 0.0, **subplots: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of ``width`` inches with ``n`` panels in rows of at most ``columns``, and the panels.

    It is ``margin`` inches high, and ``row_height`` more a row; ``subplots`` go to ``Figure.subplots``.
    """
    columns = min(columns, n)
    rows = math.ceil(n / columns)
    figure = new_figure(width, margin + row_height * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False, **subplots).ravel())
    for axes in panels[n:]:
        axes.set_visible(False)
    return figure, panels[:n]


def legend_above(figure: Figure, axes: Axes, columns: int = 3) -> None:
    """Name what ``axes`` shows above all panels, in as many columns, ``columns`` at most, as the names leave room for.

    From the third row on the figure grows by the height of a row.
    """
    handles, names = axes.get_legend_handles_labels()
    for n in range(min(columns, len(names)), 0, -1):
        legend = figure.legend(handles, names, loc="outside upper center", ncols=n)
        if n == 1 or legend.get_window_extent().width <= figure.bbox.width:
            figure.set_figheight(figure.get_figheight() + 0.17 * max(0, math.ceil(len(names) / n) - 2))
            return
        legend.remove()


def name_variant(axes: Axes, style: VariantStyle, label: str) -> None:
    """Give a variant its place in the legend where no one line of it stands for all of them."""
    axes.plot([], [], **style.points, label=label)


def line_and_seeds(axes: Axes, x: Array, by_seed: Array, style: VariantStyle, label: str) -> None:
    """The mean over seeds as a line, each seed as a point; ``by_seed`` is (seeds, len(x))."""
    single = len(by_seed) == 1
    marker = style.marker if single or len(x) == 1 else None
    axes.plot(x, by_seed.mean(axis=0), **style.line, marker=marker, label=label)
    for values in () if single else by_seed:
        axes.plot(x, values, **style.hollow)


def beside(index: int, n: int, width: float = 0.7) -> float:
    """How far from its line the ``index``-th of ``n`` marks stands that share one, over ``width`` of its height."""
    return width * ((index + 0.5) / n - 0.5)


def name_lines(axes: Axes, names: Sequence[str], *, separated: bool = False) -> None:
    """One line for each of ``names``, from above down, with thin lines between them where ``separated``."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    for place in range(1, len(names)) if separated else ():
        axes.axhline(place - 0.5, color=FLOOR_COLOR, linewidth=0.4)


def layers(n_layers: int, index: int, n_variants: int) -> Array:
    """Where the ``index``-th of the variants stands: layers from 1, side by side where there is one layer."""
    spacing = min(0.12, 0.9 / n_variants) if n_layers == 1 else 0.0
    return np.arange(1, n_layers + 1, dtype=np.float64) + spacing * (index - (n_variants - 1) / 2)


def layer_axis(axes: Axes, n_layers: int) -> None:
    """Layers from 1, as many of them named as have room."""
    axes.set_xlim(0.5, n_layers + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))


def ratio_axis(axes: Axes, *, log: bool = True) -> None:
    """An axis of ratios: 0.5, 1, 2, 5."""
    axes.set_xscale("log" if log else "linear")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def fit(axes: Axes, parts: Iterable[Array], below: float, above: float) -> None:
    """End the vertical axis at these values, with ``below`` and ``above`` of their range as margins."""
    values = np.concatenate([np.ravel(part) for part in parts])
    values = values[np.isfinite(values)]
    if len(values) and np.ptp(values) > 0:
        axes.set_ylim(values.min() - below * np.ptp(values), values.max() + above * np.ptp(values))


def shares_per_bin(axes: Axes, shares: Array, edges: Array, color: str) -> None:
    """A histogram as steps, filled lightly."""
    axes.stairs(shares, edges, fill=True, color=color, alpha=0.25)
    axes.stairs(shares, edges, color=color, linewidth=1.0)
