"""The figures of a comparison: loss curves, first-token share per layer, gate scores per layer.

Each function draws one idea from data frames and arrays and returns a matplotlib figure; :func:`write` reads the runs,
draws what they allow and saves it as PNG, PDF and SVG.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from scipy import stats as scipy_stats

from gatebench.errors import UserError
from gatebench.report.figures.style import FLOOR_COLOR, PAGE_WIDTH, drawing, new_figure, save, variant_style
from gatebench.report.read.results import GateProbe, Probes, load_curves, load_probes

SMOOTHING_SHARE = 0.01
"""Time constant of the moving average, as a share of the steps of a run."""
DIFFERENCE_SMOOTHING_SHARE = 0.03
"""The same for a difference of two runs, which is small beside the noise of a step."""
MAX_RAW_POINTS = 500
"""Raw losses drawn a run; a longer run is thinned evenly, its average is not."""
MAX_GATE_PANELS = 12
"""Layers shown of a deep model, evenly spaced from the first to the last."""

Array = npt.NDArray[np.float64]


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
    folder = Path(directory)
    with drawing():
        losses = load_curves(runs["run_dir"]) if curves is None else curves
        paths = save(loss_curves(losses, baseline, variants, words), folder / "loss_curves")
        done = runs[(runs["status"] == "done") & (runs["run_dir"] != "")]
        probes = {
            name: {int(row["seed"]): load_probes(row["run_dir"]) for _, row in done[done["variant"] == name].iterrows()}
            for name in names
        }
        if any(probes.values()):
            floor = float(done["first_token_floor"].mean())
            paths += save(first_token_share(probes, floor, baseline, words), folder / "first_token_share")
        for name in variants:
            sites = sorted({site for found in probes[name].values() for site in found.gates})
            for site in sites:
                scores = {seed: found.gates[site] for seed, found in probes[name].items() if site in found.gates}
                figure = gate_histograms(scores, site, name, words[name])
                paths += save(figure, folder / (f"gate_{name}" if len(sites) == 1 else f"gate_{name}_{site}"))
    return paths


def smoothed(loss: Array, share: float = SMOOTHING_SHARE) -> Array:
    """Exponential moving average with a time constant of ``share`` of the run, without start-up bias.

    NaN where the loss is not finite, so that the curve of a diverged run ends where the run did.
    """
    span = max(1.0, share * len(loss))
    finite = pd.Series(loss).where(np.isfinite(loss))
    average = finite.ewm(alpha=1 - math.exp(-1 / span)).mean()
    return np.asarray(average.where(finite.notna()), dtype=np.float64)


def loss_curves(curves: pd.DataFrame, baseline: str, variants: Sequence[str], labels: Mapping[str, str]) -> Figure:
    """Training loss over tokens: every seed thin, the mean over seeds thick; below, the difference to the baseline.

    ``curves`` is the long frame of ``results.load_curves``. The shading around a difference is the 95 % t interval of
    three or more seeds; with two seeds each is drawn and no interval.
    """
    figure = new_figure(PAGE_WIDTH, 4.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    averages: dict[str, pd.DataFrame] = {}
    smoother: dict[str, pd.DataFrame] = {}
    for name in [baseline, *variants]:
        own = curves[curves["variant"] == name]
        if not len(own):
            continue
        averages[name] = _smoothed_by_seed(own, SMOOTHING_SHARE)
        smoother[name] = _smoothed_by_seed(own, DIFFERENCE_SMOOTHING_SHARE)
        _draw_losses(above, own, averages[name], name, baseline, labels[name])
    _fit_losses(above, averages)
    above.set_ylabel("training loss (nats per token)")
    above.legend(loc="upper right")
    drawn = False
    if baseline in smoother:
        for name in variants:
            if name in smoother:
                drawn |= _draw_loss_difference(below, smoother[name], smoother[baseline], name)
    below.axhline(0.0, color="black", linewidth=0.8)
    below.set_ylabel(f"loss minus {labels[baseline]}\n(same seed)")
    below.set_xlabel("training tokens")
    below.xaxis.set_major_formatter(EngFormatter(sep=" "))
    if drawn:
        _fit_differences(below)
    else:
        below.text(0.5, 0.6, "no seed with both runs", transform=below.transAxes, ha="center")
    return figure


def first_token_share(
    probes: Mapping[str, Mapping[int, Probes]], floor: float, baseline: str, labels: Mapping[str, str]
) -> Figure:
    """First-token attention share per layer: the mean over heads at each seed, their mean as a line, the floor.

    ``probes`` maps variant -> seed -> :class:`Probes`. ``floor`` is the share H_T/T of uniform causal attention.
    """
    figure = new_figure(PAGE_WIDTH * 0.75, 3.0)
    axes = figure.subplots()
    present = [name for name in probes if probes[name]]
    spacing = min(0.12, 0.7 / max(1, len(present)))
    for index, name in enumerate(present):
        style = variant_style(name, baseline)
        by_seed = np.stack([found.first_token_share.mean(axis=1) for found in probes[name].values()])  # (S, L)
        layers = np.arange(1, by_seed.shape[1] + 1) + spacing * (index - (len(present) - 1) / 2)
        color, marker = style.color, style.marker
        axes.plot(layers, by_seed.mean(axis=0), color=color, linestyle=style.linestyle)
        for values in by_seed:
            axes.plot(layers, values, linestyle="none", marker=marker, color=color, markerfacecolor="none", alpha=0.8)
        axes.plot(
            [], [], color=color, linestyle=style.linestyle, marker=marker, markerfacecolor="none", label=labels[name]
        )
    axes.axhline(floor, color=FLOOR_COLOR, linestyle=":", linewidth=1.2, label=f"uniform attention ({floor:.4f})")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer")
    axes.set_ylabel("first-token attention share\n(mean over heads; a point a seed)")
    _legend_above(figure, axes)
    return figure


def gate_histograms(scores: Mapping[int, GateProbe], site: str, name: str, label: str) -> Figure:
    """Distribution of gate scores per layer: a panel a layer, the mean over seeds as steps, their range shaded.

    ``scores`` maps seed -> :class:`GateProbe` of one site.
    """
    first = next(iter(scores.values()))
    n_layers = first.histogram.shape[0]
    shown = np.unique(np.linspace(0, n_layers - 1, min(n_layers, MAX_GATE_PANELS)).round().astype(int))
    columns = min(4, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(PAGE_WIDTH, 0.55 + 1.45 * rows)
    panels = np.atleast_1d(figure.subplots(rows, columns, sharex=True, sharey=True)).ravel()
    style = variant_style(name)
    for axes, layer in zip(panels, shown, strict=False):
        _draw_gate_panel(axes, scores, int(layer), style.color)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    panels[0].set_ylim(bottom=0)
    figure.supxlabel(f"gate score at {site.upper()}", fontsize=8)
    figure.supylabel("share of scores per bin (%)", fontsize=8)
    some = "" if len(shown) == n_layers else f"; {len(shown)} of {n_layers} layers"
    seeds = f"{len(scores)} seed{'s' if len(scores) != 1 else ''}"
    figure.suptitle(f"{label} ({seeds}{some}; dashed: mean)", fontsize=8)
    return figure


def _smoothed_by_seed(curves: pd.DataFrame, share: float) -> pd.DataFrame:
    """Tokens x seeds of the smoothed loss."""
    columns = {}
    for seed, run in curves.groupby("seed", sort=True):
        run = run.sort_values("step")
        columns[seed] = pd.Series(smoothed(run["loss"].to_numpy(dtype=float), share), index=run["tokens"].to_numpy())
    return pd.DataFrame(columns)


def _draw_losses(
    axes: Axes, curves: pd.DataFrame, averages: pd.DataFrame, name: str, baseline: str, label: str
) -> None:
    style = variant_style(name, baseline)
    for _, run in curves.groupby("seed", sort=True):
        thinned = run.sort_values("step").iloc[:: max(1, math.ceil(len(run) / MAX_RAW_POINTS))]
        axes.plot(thinned["tokens"], thinned["loss"], color=style.color, alpha=0.13, linewidth=0.5)
    for seed in averages.columns:
        axes.plot(
            averages.index, averages[seed], color=style.color, linestyle=style.linestyle, alpha=0.45, linewidth=0.7
        )
    n = len(averages.columns)
    text = f"{label} (mean of {n} seeds)" if n > 1 else f"{label} (1 seed)"
    axes.plot(averages.index, averages.mean(axis=1), color=style.color, linestyle=style.linestyle, label=text)


def _draw_loss_difference(axes: Axes, ours: pd.DataFrame, theirs: pd.DataFrame, name: str) -> bool:
    """Draw one variant's difference to the baseline over the seeds that both have; False when there is none."""
    difference = (ours - theirs).dropna(axis=1, how="all").dropna(axis=0)
    n = len(difference.columns)
    if n == 0 or not len(difference):
        return False
    style = variant_style(name)
    mean = difference.mean(axis=1)
    for seed in difference.columns if n > 1 else []:
        axes.plot(
            difference.index, difference[seed], color=style.color, linestyle=style.linestyle, alpha=0.45, linewidth=0.7
        )
    axes.plot(difference.index, mean, color=style.color, linestyle=style.linestyle)
    if n >= 3:
        half = scipy_stats.t.ppf(0.975, n - 1) * difference.std(axis=1, ddof=1) / math.sqrt(n)
        axes.fill_between(difference.index, mean - half, mean + half, color=style.color, alpha=0.15, linewidth=0)
    return True


def _fit_losses(axes: Axes, averages: Mapping[str, pd.DataFrame]) -> None:
    """Leave the first 3 % of training, where all variants fall alike, above the frame."""
    tops, bottoms = [], []
    for average in averages.values():
        values = average.to_numpy()
        tops.append(np.nanmax(values[int(0.03 * len(values)) :], initial=-math.inf))
        bottoms.append(np.nanmin(values, initial=math.inf))
    if tops and math.isfinite(max(tops)) and max(tops) > min(bottoms):
        margin = 0.05 * (max(tops) - min(bottoms))
        axes.set_ylim(min(bottoms) - 2 * margin, max(tops) + margin)


def _fit_differences(axes: Axes) -> None:
    """Scale to the curves after the first 5 % of training, so that the noise of the start does not flatten the rest."""
    values = []
    for line in axes.get_lines():
        y = np.asarray(line.get_ydata(), dtype=float)
        values.append(y[int(0.05 * len(y)) :])
    joined = np.concatenate([part[np.isfinite(part)] for part in values])
    reach = float(np.abs(joined).max()) if len(joined) else 0.0
    if reach > 0:
        low, high = min(0.0, float(joined.min())), max(0.0, float(joined.max()))
        axes.set_ylim(low - 0.2 * reach, high + 0.2 * reach)


def _draw_gate_panel(axes: Axes, scores: Mapping[int, GateProbe], layer: int, color: str) -> None:
    shares = []
    for probe in scores.values():
        counts = probe.histogram[layer]
        shares.append(100 * counts / max(1.0, float(counts.sum())))
    stacked = np.stack(shares)  # (S, 50)
    edges = next(iter(scores.values())).edges
    mean = stacked.mean(axis=0)
    axes.stairs(mean, edges, fill=True, color=color, alpha=0.25)
    axes.stairs(mean, edges, color=color, linewidth=1.0)
    if len(stacked) > 1:
        axes.stairs(stacked.max(axis=0), edges, baseline=stacked.min(axis=0), fill=True, color="black", alpha=0.2)
    within = float(edges[0]) <= 0.1 and float(edges[-1]) >= 0.9
    for threshold in (0.1, 0.9) if within else ():
        axes.axvline(threshold, color=FLOOR_COLOR, linestyle=":", linewidth=0.8)
    average = float(np.mean([probe.mean[layer] for probe in scores.values()]))
    axes.axvline(average, color="black", linestyle="--", linewidth=0.9)
    axes.set_title(f"layer {layer + 1}, mean {average:.2f}")


def _legend_above(figure: Figure, axes: Axes) -> None:
    handles, words = axes.get_legend_handles_labels()
    longest = max(map(len, words), default=1)
    columns = max(1, min(3, len(words), int(figure.get_figwidth() * 18 / (longest + 5))))
    figure.set_figheight(figure.get_figheight() + 0.17 * max(0, math.ceil(len(words) / columns) - 2))
    figure.legend(handles, words, loc="outside upper center", ncols=columns)
