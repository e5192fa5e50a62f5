"""Training loss of the variants of a comparison, and below it what each has less or more than the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from gatebench.report.analysis.stats import half_width
from gatebench.report.figures.panels import Array, fit, new_figure
from gatebench.report.figures.style import PAGE_WIDTH, variant_style

SMOOTHING_SHARE = 0.01
"""Time constant of the moving average, as a share of the steps of a run."""
DIFFERENCE_SMOOTHING_SHARE = 0.03
"""The same for a difference of two runs, which is small beside the noise of a step."""
MAX_RAW_POINTS = 500
"""Raw losses drawn a run; a longer run is thinned evenly, its average is not."""
SEED: dict[str, Any] = {"alpha": 0.45, "linewidth": 0.7}


def draw(curves: pd.DataFrame, baseline: str, variants: Sequence[str], labels: Mapping[str, str]) -> Figure:
    """Training loss over tokens: every seed thin, the mean over seeds thick; below, the difference to the baseline.

    ``curves`` is the long frame of ``results.load_curves``. The shading around a difference is the 95 % t interval of
    three or more seeds; with two seeds each is drawn and no interval.
    """
    figure = new_figure(PAGE_WIDTH, 4.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    runs = {name: curves[curves["variant"] == name] for name in [baseline, *variants]}
    runs = {name: own for name, own in runs.items() if len(own)}
    averages = {name: _smoothed_by_seed(own, SMOOTHING_SHARE) for name, own in runs.items()}
    for name, own in runs.items():
        _draw_losses(above, own, averages[name], name, baseline, labels[name])
    # The first 3 % of training, where all variants fall alike, are left above the frame.
    late = [average.to_numpy()[int(0.03 * len(average)) :] for average in averages.values()]
    fit(above, late, below=0.1, above=0.05)
    above.set_ylabel("training loss (nats per token)")
    above.legend(loc="upper right")
    smoother = {name: _smoothed_by_seed(own, DIFFERENCE_SMOOTHING_SHARE) for name, own in runs.items()}
    theirs = smoother.pop(baseline, pd.DataFrame())
    drawn = [_draw_difference(below, ours, theirs, name) for name, ours in smoother.items()]
    below.axhline(0.0, color="black", linewidth=0.8)
    below.set_ylabel(f"loss minus {labels[baseline]}\n(same seed)")
    below.set_xlabel("training tokens")
    below.xaxis.set_major_formatter(EngFormatter(sep=" "))
    if any(drawn):
        _fit_differences(below)
    else:
        below.text(0.5, 0.6, "no seed with both runs", transform=below.transAxes, ha="center")
    return figure


def smoothed(loss: Array, share: float = SMOOTHING_SHARE) -> Array:
    """Exponential moving average with a time constant of ``share`` of the run, without start-up bias.

    NaN where the loss is not finite, so that the curve of a diverged run ends where the run did.
    """
    span = max(1.0, share * len(loss))
    finite = pd.Series(loss).where(np.isfinite(loss))
    average = finite.ewm(alpha=1 - math.exp(-1 / span)).mean()
    return np.asarray(average.where(finite.notna()), dtype=np.float64)


def _smoothed_by_seed(curves: pd.DataFrame, share: float) -> pd.DataFrame:
    """Tokens x seeds of the smoothed loss."""
    columns = {}
    for seed, run in curves.sort_values("step").groupby("seed", sort=True):
        columns[seed] = pd.Series(smoothed(run["loss"].to_numpy(dtype=float), share), index=run["tokens"].to_numpy())
    return pd.DataFrame(columns)


def _draw_losses(
    axes: Axes, curves: pd.DataFrame, averages: pd.DataFrame, name: str, baseline: str, label: str
) -> None:
    style = variant_style(name, baseline)
    for _, run in curves.sort_values("step").groupby("seed", sort=True):
        thinned = run.iloc[:: max(1, math.ceil(len(run) / MAX_RAW_POINTS))]
        axes.plot(thinned["tokens"], thinned["loss"], color=style.color, alpha=0.13, linewidth=0.5)
    for seed in averages.columns:
        axes.plot(averages.index, averages[seed], **style.line, **SEED)
    n = len(averages.columns)
    text = f"{label} (mean of {n} seeds)" if n > 1 else f"{label} (1 seed)"
    axes.plot(averages.index, averages.mean(axis=1), **style.line, label=text)


def _draw_difference(axes: Axes, ours: pd.DataFrame, theirs: pd.DataFrame, name: str) -> bool:
    """Draw one variant's difference to the baseline over the seeds that both have; False when there is none."""
    difference = (ours - theirs).dropna(axis=1, how="all").dropna(axis=0)
    n = len(difference.columns)
    if n == 0 or not len(difference):
        return False
    style = variant_style(name)
    mean = difference.mean(axis=1)
    for seed in difference.columns if n > 1 else []:
        axes.plot(difference.index, difference[seed], **style.line, **SEED)
    axes.plot(difference.index, mean, **style.line)
    if n >= 3:
        half = half_width(1.0, n) * difference.std(axis=1, ddof=1)
        axes.fill_between(difference.index, mean - half, mean + half, color=style.color, alpha=0.15, linewidth=0)
    return True


def _fit_differences(axes: Axes) -> None:
    """Scale to the curves after the first 5 % of training, so that the noise of the start does not flatten the rest."""
    curves = [np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()]
    late = np.concatenate([curve[int(0.05 * len(curve)) :] for curve in curves])
    late = late[np.isfinite(late)]
    reach = float(np.abs(late).max(initial=0.0))
    if reach > 0:
        axes.set_ylim(late.min(initial=0.0) - 0.2 * reach, late.max(initial=0.0) + 0.2 * reach)
