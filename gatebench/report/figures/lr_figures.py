"""The figures of a study over learning rates: loss over LR, where the best LR lies, spikes, batch size and LR."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from gatebench.report.analysis.lr_curves import AgainstBaseline, LrCurve, against_baseline, group_names, with_rates
from gatebench.report.analysis.spikes import CURVES, OLMO_CORE, steps
from gatebench.report.figures import save
from gatebench.report.figures.figure1 import DECAY, moving_average
from gatebench.report.figures.panels import fit, grid, legend_above, name_lines, new_figure, ratio_axis
from gatebench.report.figures.style import FLOOR_COLOR, PAGE_WIDTH, variant_style
from gatebench.report.text import learning_rate

MAX_PANELS = 12
"""Of a figure of training curves: a panel a learning rate."""


def write(
    frame: pd.DataFrame, training: pd.DataFrame, curves: Sequence[LrCurve], baseline: str, directory: Path
) -> list[Path]:
    """Draw what the curves allow and save it; return the paths.

    ``lr_loss.*`` and ``lr_spikes.*`` always, ``lr_optimum.*`` with another variant beside the baseline,
    ``lr_batch.*`` with several batch sizes. ``training`` is of ``committed_frames.with_labels`` or
    ``results.load_curves``.
    """
    figures: dict[str, Callable[[], Figure]] = {"lr_loss": lambda: loss_over_rates(curves, baseline)}
    if compared := against_baseline(curves, baseline):
        figures["lr_optimum"] = lambda: shifts(compared, curves, baseline)
    largest = [curve for curve in curves if curve.group == curves[0].group]
    figures["lr_spikes"] = lambda: spikes(frame, training, largest, baseline)
    if len({curve.batch_size for curve in curves}) > 1:
        figures["lr_batch"] = lambda: batch_maps(curves)
    return save.write(figures, directory)


def loss_over_rates(curves: Sequence[LrCurve], baseline: str) -> Figure:
    """Held-out loss over the learning rate, a panel a group: the mean over seeds, their range shaded.

    A cross at ln V is a run that diverged.
    """
    groups = group_names(curves)
    width = PAGE_WIDTH * (0.75 if len(groups) == 1 else 1)
    figure, panels = grid(len(groups), 2, width, 2.4, 0.6, sharex=True, sharey=True)
    for axes, (group, name) in zip(panels, groups.items(), strict=True):
        for curve in (c for c in curves if c.group == group):
            style = variant_style(curve.variant, baseline)
            mean, low, high = curve.losses.mean(), curve.losses.min(), curve.losses.max()
            axes.fill_between(curve.rates, low, high, color=style.color, alpha=0.15, linewidth=0)
            axes.plot(curve.rates, mean, **{**style.hollow, **style.line}, label=curve.label)
            for _, lr in sorted(curve.diverged):
                axes.plot([lr], [curve.ceiling], **{**style.points, "marker": "x"})
        _rate_axis(axes, curves)
        if len(groups) > 1:
            axes.set_title(f"batch {name}")
    panels[0].set_ylabel("held-out loss (nats per token)")
    figure.supxlabel("peak learning rate (line: mean over seeds; shaded: their range)")
    legend_above(figure, panels[0], columns=4)
    return figure


def shifts(compared: Sequence[AgainstBaseline], curves: Sequence[LrCurve], baseline: str) -> Figure:
    """By what factor each variant's best learning rate is larger than the baseline's: seeds, mean, 95 % interval."""
    groups = group_names(curves)
    figure = new_figure(PAGE_WIDTH * 0.7, 0.7 + 0.3 * len(compared))
    axes = figure.subplots()
    words = []
    for place, found in enumerate(compared):
        style = variant_style(found.curve.variant, baseline)
        factor, low, high = found.shift
        if not math.isnan(low):
            axes.plot([low, high], [place, place], color=style.color, linewidth=1.2)
        by_seed = np.exp(found.optimum.differences)
        axes.plot(by_seed, [place] * len(by_seed), **style.hollow, markersize=2.5)
        axes.plot([factor], [place], **style.points, markersize=6)
        words.append(found.curve.label + (f", batch {groups[found.curve.group]}" if len(groups) > 1 else ""))
    axes.axvline(1.0, color="black", linewidth=0.8)
    ratio_axis(axes)
    name_lines(axes, words)
    axes.grid(False, axis="y")
    axes.set_xlabel(f"best LR over {baseline}'s\n(small: a seed, large: their mean, line: 95 % interval)")
    return figure


def spikes(frame: pd.DataFrame, training: pd.DataFrame, curves: Sequence[LrCurve], baseline: str) -> Figure:
    """Training loss at each learning rate, a line a run; a mark where ``spikes.OLMO_CORE`` finds a spike.

    The mark is at the loss of the curve there, whether the spike is in the loss or in the gradient norm.
    """
    rates = curves[0].rates[-MAX_PANELS:]
    figure, panels = grid(len(rates), 4, PAGE_WIDTH, 1.5, 0.7, sharex=True, sharey=True)
    rated = with_rates(frame[frame["variant"].isin([curve.variant for curve in curves])])
    rated = rated[rated["group"] == curves[0].group]
    for axes, lr in zip(panels, rates, strict=True):
        for curve in curves:
            own = rated[(rated["lr"] == lr) & (rated["variant"] == curve.variant)].sort_values("seed")
            marks = own[[OLMO_CORE.column(name) for name in CURVES]].to_numpy()
            for index, (run, cells) in enumerate(zip(own["run"], marks, strict=True)):
                label = curve.label if index == 0 else None
                marked = sorted({step for cell in cells for step in steps(cell)})
                _training_curve(axes, training[training["run"] == run], marked, curve, baseline, label)
        axes.set_title(f"LR {learning_rate(lr)}")
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    lines = [np.asarray(line.get_ydata(), dtype=float) for axes in panels for line in axes.get_lines()]
    # The first 5 % of training, where all variants fall alike, are left above the frame.
    fit(panels[0], [line[len(line) // 20 :] for line in lines], 0.05, 0.05)
    figure.supylabel(f"training loss (nats), EMA {DECAY:g}")
    figure.supxlabel("training tokens (marks: spikes of loss or gradient norm, 6σ over 128 steps)")
    legend_above(figure, panels[0], columns=4)
    return figure


def batch_maps(curves: Sequence[LrCurve]) -> Figure:
    """Mean held-out loss by batch size and learning rate, a panel a variant, all in one colour scale; x diverged."""
    by_variant: dict[str, list[LrCurve]] = {}
    for curve in curves:
        by_variant.setdefault(curve.label, []).append(curve)
    rates = sorted({lr for curve in curves for lr in curve.rates})
    sizes = sorted({curve.batch_size for curve in curves})
    figure, panels = grid(len(by_variant), 3, PAGE_WIDTH, 0.7 + 0.3 * len(sizes), 0.8, sharex=True, sharey=True)
    means = {label: _map(own, sizes, rates) for label, own in by_variant.items()}
    low = min(float(np.nanmin(values)) for values in means.values())
    high = max(float(np.nanmax(values)) for values in means.values())
    for axes, (label, values) in zip(panels, means.items(), strict=True):
        image = axes.imshow(values, vmin=low, vmax=high, cmap="cividis_r", aspect="auto", origin="lower")
        best = np.unravel_index(np.nanargmin(values), values.shape)
        for (row, column), value in np.ndenumerate(values):
            if math.isfinite(value):
                dark = value - low < 0.5 * (high - low)  # low losses are light in cividis_r
                weight = "bold" if (row, column) == best else "normal"
                look: dict[str, Any] = {"fontsize": 5.5, "fontweight": weight, "color": "black" if dark else "white"}
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", **look)
        for curve in by_variant[label]:
            for _, lr in sorted(curve.diverged):
                axes.plot(rates.index(lr), sizes.index(curve.batch_size) - 0.3, "x", color="white", markersize=3)
        axes.set_xticks(range(len(rates)), [learning_rate(lr) for lr in rates], rotation=60)
        axes.set_yticks(range(len(sizes)), [str(size) for size in sizes])
        axes.grid(False)
        axes.set_title(label)
    figure.supxlabel("peak learning rate (bold: the best)")
    figure.supylabel("batch (sequences)")
    figure.colorbar(image, ax=list(panels), label="held-out loss (nats)")
    return figure


def _map(curves: Sequence[LrCurve], sizes: Sequence[int], rates: Sequence[float]) -> np.ndarray:
    """(sizes, rates) mean losses; of several groups with one batch size the smallest."""
    values = np.full((len(sizes), len(rates)), math.nan)
    for curve in curves:
        for lr, loss in zip(curve.rates, curve.losses.mean(), strict=True):
            place = sizes.index(curve.batch_size), rates.index(lr)
            values[place] = np.fmin(values[place], loss)
    return values


def _training_curve(
    axes: Axes, training: pd.DataFrame, marked: Sequence[int], curve: LrCurve, baseline: str, label: str | None
) -> None:
    training = training.sort_values("step")
    style = variant_style(curve.variant, baseline)
    tokens, at = training["tokens"].to_numpy(dtype=float), training["step"].to_numpy()
    average = moving_average(training["loss"].to_numpy(dtype=float))
    axes.plot(tokens, average, **style.line, linewidth=0.7, alpha=0.8, label=label)
    places = np.searchsorted(at, marked)  # the bin of a thinned curve that holds the step
    places = places[places < len(at)]
    axes.plot(tokens[places], average[places], **style.points, markersize=3)


def _rate_axis(axes: Axes, curves: Sequence[LrCurve]) -> None:
    rates = sorted({lr for curve in curves for lr in curve.rates})
    axes.set_xscale("log")
    axes.set_xticks(rates, [learning_rate(lr) for lr in rates])
    axes.xaxis.set_minor_locator(NullLocator())
    ceiling = curves[0].ceiling
    if any(curve.losses.to_numpy().max() > 0.97 * ceiling for curve in curves):
        axes.axhline(ceiling, color=FLOOR_COLOR, linestyle=":", linewidth=1.0)
        axes.annotate("ln V", (rates[0], ceiling), xytext=(0, 2), textcoords="offset points", fontsize=6)
