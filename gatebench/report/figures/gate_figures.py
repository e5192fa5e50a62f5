"""Gate scores: by layer of one variant, and of several variants side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatebench.report.figures.panels import Array, beside, grid, layer_axis, legend_above, new_figure, shares_per_bin
from gatebench.report.figures.style import FLOOR_COLOR, PAGE_WIDTH, variant_style
from gatebench.report.read.probe_files import Groups, ProbedRun, mean_over_seeds

MAX_LAYERS = 12
"""Layers shown of a deep model, evenly spaced from the first to the last."""
MEAN: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 0.9}


def by_layer(runs: Sequence[ProbedRun], site: str, label: str) -> Figure:
    """Distribution of gate scores: a panel a layer, the mean over seeds as steps, their range shaded.

    ``runs`` are those of one variant, one a seed, all with gates at the site.
    """
    n_layers = len(runs[0].arrays[f"gate_{site}_mean"])
    shown = np.unique(np.linspace(0, n_layers - 1, min(n_layers, MAX_LAYERS)).round().astype(int))
    figure, panels = grid(len(shown), 4, PAGE_WIDTH, 1.45, 0.55, sharex=True, sharey=True)
    for axes, layer in zip(panels, shown, strict=True):
        _draw_layer(axes, runs, site, int(layer))
    panels[0].set_ylim(bottom=0)
    figure.supxlabel(f"gate score at {site.upper()}")
    figure.supylabel("share of scores per bin (%)")
    some = "" if len(shown) == n_layers else f"; {len(shown)} of {n_layers} layers"
    seeds = f"{len(runs)} seed{'s' if len(runs) != 1 else ''}"
    figure.suptitle(f"{label} ({seeds}{some}; dashed: mean)")
    return figure


def _draw_layer(axes: Axes, runs: Sequence[ProbedRun], site: str, layer: int) -> None:
    counts = np.stack([run.arrays[f"gate_{site}_hist"][layer] for run in runs]).astype(np.float64)  # (seeds, 50)
    by_seed = 100 * counts / np.maximum(1.0, counts.sum(axis=1, keepdims=True))
    edges = runs[0].arrays[f"gate_{site}_edges"]
    shares_per_bin(axes, by_seed.mean(axis=0), edges, variant_style(runs[0].variant).color)
    if len(by_seed) > 1:
        axes.stairs(by_seed.max(axis=0), edges, baseline=by_seed.min(axis=0), fill=True, color="black", alpha=0.2)
    within = float(edges[0]) <= 0.1 and float(edges[-1]) >= 0.9
    for threshold in (0.1, 0.9) if within else ():
        axes.axvline(threshold, color=FLOOR_COLOR, linestyle=":", linewidth=0.8)
    average = float(mean_over_seeds(runs, f"gate_{site}_mean")[layer])
    axes.axvline(average, **MEAN)
    axes.set_title(f"layer {layer + 1}, mean {average:.2f}")


def scores(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Gate score by layer: mean as points, one standard deviation as a thick bar, least and largest as a thin one."""
    figure = new_figure(PAGE_WIDTH * 0.75, 2.8)
    axes = figure.subplots()
    drawn = [(name, site) for name, runs in groups.items() for site in runs[0].sites]
    for index, (name, site) in enumerate(drawn):
        runs, style = groups[name], variant_style(name)
        mean, std = (mean_over_seeds(runs, f"gate_{site}_{which}") for which in ("mean", "std"))
        low: Array = np.min([run.arrays[f"gate_{site}_min"] for run in runs], axis=0)
        high: Array = np.max([run.arrays[f"gate_{site}_max"] for run in runs], axis=0)
        places = np.arange(1, len(mean) + 1) + beside(index, len(drawn), width=0.6)
        axes.vlines(places, low, high, color=style.color, linewidth=0.8, alpha=0.6)
        thick = np.maximum(low, mean - std), np.minimum(high, mean + std)
        axes.vlines(places, *thick, color=style.color, linewidth=3, alpha=0.35)
        axes.plot(places, mean, **style.points, label=f"{labels[name]} at {site.upper()}, mean {mean.mean():.2f}")
        layer_axis(axes, len(mean))
    axes.set_xlabel("layer")
    axes.set_ylabel("gate score (thick: 1 sd, thin: range)")
    legend_above(figure, axes, columns=2)
    return figure


def by_variant(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Distribution of all gate scores of a model, layers together: a panel a variant and site, seeds pooled."""
    drawn = [(name, site) for name, runs in groups.items() for site in runs[0].sites]
    figure, panels = grid(len(drawn), 3, PAGE_WIDTH * (0.25 + 0.25 * min(3, len(drawn))), 1.6, 0.5)
    for axes, (name, site) in zip(panels, drawn, strict=True):
        runs = groups[name]
        counts = np.sum([run.arrays[f"gate_{site}_hist"].sum(axis=0) for run in runs], axis=0)
        edges = runs[0].arrays[f"gate_{site}_edges"]
        shares_per_bin(axes, 100 * counts / counts.sum(), edges, variant_style(name).color)
        mean = float(mean_over_seeds(runs, f"gate_{site}_mean").mean())
        axes.axvline(mean, **MEAN)
        closed = 100 * float(mean_over_seeds(runs, f"gate_{site}_closed").mean())
        axes.set_title(f"{labels[name]} ({site.upper()})\nmean {mean:.2f}, {closed:.0f} % below 0.1")
        axes.set_ylim(bottom=0)
    figure.supxlabel("gate score (dashed: mean)")
    figure.supylabel("share of scores per bin (%)")
    return figure
