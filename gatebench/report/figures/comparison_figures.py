"""The figures of a comparison, from the runs of its variants: loss curves, first-token share and gates by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gatebench.errors import UserError
from gatebench.report.figures import gate_figures, loss_curves, save
from gatebench.report.figures.panels import layer_axis, legend_above, new_figure
from gatebench.report.figures.style import FLOOR_COLOR, PAGE_WIDTH, variant_style
from gatebench.report.read.probe_files import Groups, at_the_end
from gatebench.report.read.results import load_curves


def write(
    frame: pd.DataFrame,
    baseline: str,
    variants: Sequence[str],
    labels: Mapping[str, str] | None,
    directory: str | Path,
    curves: pd.DataFrame | None = None,
) -> list[Path]:
    """Draw and save every figure that the finished runs in ``frame`` (``results.load``) allow; return the paths.

    ``loss_curves.*`` from all runs, or from ``curves`` where those are given; from the runs that did not diverge and
    are here (``run_dir`` is not empty), ``first_token_share.*`` and, for a variant with gates, ``gate_<variant>.*``
    (``gate_<variant>_<site>.*`` where it has several sites). Raises :class:`UserError` when ``frame`` has no run of any
    of the variants.
    """
    names = [baseline, *variants]
    words = {name: (labels or {}).get(name, name) for name in names}
    runs = frame[frame["variant"].isin(names)]
    if not len(runs):
        raise UserError(f"figures: no finished run of {', '.join(names)}; there is nothing to draw")
    losses = load_curves(runs["run_dir"]) if curves is None else curves
    figures: dict[str, Callable[[], Figure]] = {
        "loss_curves": partial(loss_curves.draw, losses, baseline, variants, words)
    }
    done = runs[(runs["status"] == "done") & (runs["run_dir"] != "")]
    groups = {name: [at_the_end(run_dir) for run_dir in done["run_dir"][done["variant"] == name]] for name in names}
    groups = {name: probed for name, probed in groups.items() if probed}
    if groups:
        floor = float(done["first_token_floor"].mean())
        figures["first_token_share"] = partial(first_token_share, groups, floor, baseline, words)
    for name, probed in groups.items():
        sites = sorted({site for run in probed for site in run.sites}) if name != baseline else []
        for site in sites:
            gated = [run for run in probed if site in run.sites]
            stem = f"gate_{name}" if len(sites) == 1 else f"gate_{name}_{site}"
            figures[stem] = partial(gate_figures.by_layer, gated, site, words[name])
    return save.write(figures, directory)


def first_token_share(groups: Groups, floor: float, baseline: str, labels: Mapping[str, str]) -> Figure:
    """First-token attention share by layer: the mean over heads at each seed, their mean as a line, the floor.

    ``floor`` is the share H_T/T of uniform causal attention.
    """
    figure = new_figure(PAGE_WIDTH * 0.75, 3.0)
    axes = figure.subplots()
    spacing = min(0.12, 0.7 / len(groups))
    for index, (name, runs) in enumerate(groups.items()):
        style = variant_style(name, baseline)
        by_seed = np.stack([run.arrays["first_token_share"].mean(axis=1) for run in runs])  # (seeds, L)
        layers = np.arange(1, by_seed.shape[1] + 1) + spacing * (index - (len(groups) - 1) / 2)
        axes.plot(layers, by_seed.mean(axis=0), **style.line)
        for values in by_seed:
            axes.plot(layers, values, **style.hollow, alpha=0.8)
        axes.plot([], [], **style.line, marker=style.marker, markerfacecolor="none", label=labels[name])
        layer_axis(axes, by_seed.shape[1])
    axes.axhline(floor, color=FLOOR_COLOR, linestyle=":", linewidth=1.2, label=f"uniform attention ({floor:.4f})")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("layer")
    axes.set_ylabel("first-token attention share\n(mean over heads; a point a seed)")
    legend_above(figure, axes)
    return figure
