"""Heat maps of attention: the first-token share of every layer and head, and whole maps of a few layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatebench import metrics
from gatebench.report.figures.panels import Array, grid, new_figure
from gatebench.report.figures.style import PAGE_WIDTH
from gatebench.report.read.probe_files import Groups, ProbedRun, mean_over_seeds

MAX_ANNOTATED = 64
"""Cells of a map up to which each has its number written in."""


def sink_heads(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """First-token share of every layer and head, mean over seeds: a panel a variant, one colour scale."""
    shares = {name: mean_over_seeds(runs, "first_token_share") for name, runs in groups.items()}  # (L, H)
    floor = float(np.mean([run.summary["first_token_floor"] for runs in groups.values() for run in runs]))
    height = max(1.2, min(3.2, 0.28 * max(share.shape[0] for share in shares.values()) + 0.7))
    width = PAGE_WIDTH * (0.25 + 0.75 * min(4, len(shares)) / 4)
    figure, panels = grid(len(shares), 4, width, height, 0.5)
    top = max(0.05, *(float(share.max()) for share in shares.values()))
    for axes, (name, share) in zip(panels, shares.items(), strict=True):
        image = axes.imshow(share, cmap="cividis", vmin=0, vmax=top, aspect="auto", origin="lower")
        _write_in(axes, share, top)
        axes.set_xticks(range(share.shape[1]), [str(n + 1) for n in range(share.shape[1])])
        axes.set_yticks(range(share.shape[0]), [str(n + 1) for n in range(share.shape[0])])
        axes.grid(False)
        axes.set_title(labels[name])
    bar = figure.colorbar(image, ax=figure.axes, label=metrics.get("first_token_share").words, shrink=0.9)
    bar.ax.axhline(floor, color="white", linewidth=1.5)
    bar.ax.axhline(floor, color="black", linewidth=0.7, linestyle=":")
    figure.supxlabel(f"head (line on the bar: uniform attention, {floor:.4f})")
    figure.supylabel("layer")
    return figure


def _write_in(axes: Axes, values: Array, top: float) -> None:
    for (row, column), value in np.ndenumerate(values if values.size <= MAX_ANNOTATED else np.empty((0, 0))):
        color = "black" if value > 0.55 * top else "white"
        axes.text(column, row, f"{value:.3f}", ha="center", va="center", fontsize=6, color=color)


def attention_maps(run: ProbedRun, label: str) -> Figure:
    """Attention maps of the chosen layers, mean over windows: a row a layer, a column a head, square-root colours."""
    maps, layers = run.maps["maps"], run.maps["layers"]
    n_heads = min(8, maps.shape[1])
    size = min(1.6, (PAGE_WIDTH - 0.8) / n_heads)
    figure = new_figure(0.9 + size * max(n_heads, 2), 0.7 + size * len(layers))
    panels = figure.subplots(len(layers), n_heads, squeeze=False)
    for row, layer in enumerate(layers):
        for head, axes in enumerate(panels[row]):
            image = axes.imshow(np.sqrt(maps[row, head]), cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks([]), axes.set_yticks([])
            axes.grid(False)
            if row == 0:
                axes.set_title(f"head {head + 1}")
        panels[row][0].set_ylabel(f"layer {layer}\nquery")
    panels[-1][0].set_xlabel("key")
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.8, label="attention")
    shares = (0.0, 0.01, 0.1, 0.3, 1.0)
    bar.set_ticks([math.sqrt(share) for share in shares], labels=[f"{share:g}" for share in shares])
    figure.suptitle(f"{label}, seed {run.seed}, first {maps.shape[-1]} tokens")
    return figure
