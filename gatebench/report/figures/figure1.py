"""The paper's Figure 1 with our runs: perplexity by gate position, and loss curves with their spikes.

Left panel of theirs: bars of average perplexity for the baseline and an elementwise gate at G1 to G5. Right panel: the
training loss of the baseline and the G1 gate, smoothed with s_t = 0.9 s_{t-1} + 0.1 x_t, where spikes show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from gatebench.metrics import number
from gatebench.paper import paper_rows
from gatebench.report.analysis.estimate import Estimate, estimate
from gatebench.report.figures import save
from gatebench.report.figures.panels import Array, fit, new_figure
from gatebench.report.figures.style import PAGE_WIDTH, variant_style

POSITIONS = {
    "baseline": "none",
    "g1_elementwise": "G1\nSDPA output",
    "g2_elementwise": "G2\nvalue",
    "g3_elementwise": "G3\nkey",
    "g4_elementwise": "G4\nquery",
    "g5_elementwise": "G5\noutput",
}
DECAY = 0.9
"""Of the exponential moving average, as the paper's plot has it."""


def write(frame: pd.DataFrame, curves: pd.DataFrame, baseline: str, directory: str | Path) -> list[Path]:
    """Draw what the runs of one setting allow and save it; return the paths.

    ``figure1_positions.*`` needs the baseline and two positions, ``figure1_losses.*`` the baseline and a gate at G1.
    """
    figures: dict[str, Callable[[], Figure]] = {}
    present, curved = set(frame[frame["status"] == "done"]["variant"]), set(curves["variant"])
    if baseline == "baseline" and baseline in present and len(present & set(POSITIONS)) >= 3:
        figures["figure1_positions"] = lambda: positions(frame)
    gated = [name for name in ("g1_elementwise", "g1_headwise") if name in curved]
    if gated and baseline in curved:
        figures["figure1_losses"] = lambda: losses(curves, baseline, gated[0])
    return save.write(figures, directory)


def positions(frame: pd.DataFrame) -> Figure:
    """Avg PPL by position: ours with a point a seed and the 95 % interval of the mean, the paper's in a panel beside.

    ``frame`` is of ``results.load``; positions without a run are left out of our panel.
    """
    figure = new_figure(PAGE_WIDTH, 2.6)
    ours, theirs = figure.subplots(1, 2)
    measured = {name: estimate(frame[frame["variant"] == name], "avg_ppl") for name in POSITIONS}
    measured = {name: found for name, found in measured.items() if found.n}
    _bars(ours, measured)
    seeds = sorted({seed for found in measured.values() for seed in found.by_seed})
    ours.set_title(f"ours ({len(seeds)} seed{'s' if len(seeds) != 1 else ''})")
    ours.set_ylabel("Avg PPL (lower is better)")
    printed = {row.variant: row.numbers["avg_ppl"] for row in paper_rows(1) if row.variant in POSITIONS}
    _bars(theirs, {name: Estimate({0: printed[name]}) for name in POSITIONS if name in printed})
    theirs.set_title("the paper (15A2B MoE, one run each)")
    return figure


def losses(curves: pd.DataFrame, baseline: str, gated: str) -> Figure:
    """Training loss over tokens at each seed: the moving average as a line, the largest loss of each bin as dots.

    ``curves`` is of ``committed_frames.with_labels``. A dot stands where the largest loss of a bin is more than 7
    standard deviations of the bins' largest losses before it above their mean, as a spike score would count it.
    """
    figure = new_figure(PAGE_WIDTH * 0.75, 2.8)
    axes = figure.subplots()
    for name in (baseline, gated):
        style = variant_style(name, baseline)
        runs = curves[curves["variant"] == name].sort_values("step")
        n_seeds = runs["seed"].nunique()
        for index, (_, run) in enumerate(runs.groupby("seed", sort=True)):
            loss, tokens = run["loss"].to_numpy(dtype=float), run["tokens"].to_numpy(dtype=float)
            label = f"{name} ({n_seeds} seed{'s' if n_seeds != 1 else ''})" if index == 0 else None
            axes.plot(tokens, moving_average(loss), **style.line, linewidth=1.0, label=label)
            largest = run["loss_max"].to_numpy(dtype=float) if "loss_max" in run else loss
            at = spikes(largest)
            axes.plot(tokens[at], largest[at], **style.points, markersize=3)
    # The first 3 % of training, where all variants fall alike, are left above the frame.
    shown = curves[curves["variant"].isin([baseline, gated])]
    fit(axes, [shown[shown["tokens"] > 0.03 * shown["tokens"].max()]["loss"].to_numpy(dtype=float)], 0.05, 0.1)
    axes.set_xlabel("training tokens")
    axes.set_ylabel(f"training loss (nats), EMA {DECAY:g}")
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.legend(loc="upper right")
    return figure


def moving_average(values: Array) -> Array:
    """s_t = 0.9 s_{t-1} + 0.1 x_t from s_1 = x_1; NaN from the first value that is not finite."""
    averaged = pd.Series(values).ewm(alpha=1 - DECAY, adjust=False).mean().to_numpy(dtype=float)
    broken = ~np.isfinite(np.cumsum(values))
    return np.where(broken, math.nan, averaged)


def spikes(values: Array, window: int = 40, n_sigma: float = 7.0) -> list[int]:
    """Indices of values more than ``n_sigma`` deviations above the mean of the ``window`` before them."""
    before = pd.Series(values).shift(1).rolling(window)
    limit = before.mean() + n_sigma * before.std(ddof=0)
    return [int(index) for index in np.flatnonzero((pd.Series(values) > limit).to_numpy())]


def _bars(axes: Axes, estimates: Mapping[str, Estimate]) -> None:
    """One bar a position; an interval and a point a seed where there are several."""
    in_bar: dict[str, Any] = {"xytext": (0, 3), "textcoords": "offset points", "xycoords": ("data", "axes fraction")}
    look: dict[str, Any] = {"ha": "center", "color": "white", "fontsize": 6.5}
    for index, (name, ours) in enumerate(estimates.items()):
        axes.bar(index, ours.mean, color=variant_style(name).color, alpha=0.75, width=0.7)
        if math.isfinite(ours.half_width):
            axes.errorbar(index, ours.mean, yerr=ours.half_width, color="black", linewidth=1, capsize=2)
            axes.plot([index] * ours.n, list(ours.by_seed.values()), linestyle="none", marker=".", color="black")
        axes.annotate(number(ours.mean, "perplexity"), (index, 0), **in_bar, **look)
    means = [ours.mean for ours in estimates.values()]
    reach = max(means) - min(means) or 0.1 * max(means)
    spread = max((e.half_width for e in estimates.values() if math.isfinite(e.half_width)), default=0.0)
    axes.set_ylim(min(means) - 0.6 * reach - min(spread, reach), max(means) + 0.3 * reach + min(spread, 2 * reach))
    axes.set_xticks(range(len(means)), [POSITIONS[name] for name in estimates], fontsize=6)
    axes.grid(axis="x", visible=False)
