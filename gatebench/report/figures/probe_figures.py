"""Figures of the probes: one run, or several variants side by side. Each function draws one idea; `write` draws all.

Every function takes runs grouped by variant (`probe_files.by_variant`); with several seeds of a variant it draws their
mean as a line and each seed as a point. Letters: L layers, H heads, K keys, S steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator, PercentFormatter

from gatebench.report.figures import destination_figure
from gatebench.report.figures.style import FLOOR_COLOR, PAGE_WIDTH, drawing, new_figure, save, variant_style
from gatebench.report.read.probe_files import Arrays, ProbedRun, by_variant
from gatebench.report.tables import destination_table
from gatebench.report.tables.intervention_table import ALL, COPY, NONE, OTHER, Row
from gatebench.report.tables.intervention_table import rows as intervention_rows

Array = npt.NDArray[np.float64]
Groups = Mapping[str, Sequence[ProbedRun]]

OF_THE_PAPER = {
    "sink_heads": "first_token_share",
    "sdpa_output": "sdpa_abs_before",
    "activations": "activation_max",
    "massive_activations": "activation_top3",
}
"""Figures that the paper has, too (docs/tables.md), of what runs measure at their end; and the array that one takes."""
FIGURE_6 = ("attention output", "residual after attention", "FFN output", "residual after FFN")
STAGES = (("before", "before the gate", "--"), ("after", "after the gate", "-"), ("mean_gate", "x mean gate", ":"))
DODGE = 0.12
"""How far apart variants stand at one layer, where there is one layer only."""
LINEAR_BELOW = 1e-2
"""Changes of the loss within this are drawn to a linear scale, others to a logarithmic one."""
MAX_ANNOTATED = 64
"""Cells of a heat map up to which each has its number written in."""


def write(
    runs: Sequence[ProbedRun],
    labels: Mapping[str, str],
    directory: str | Path,
    baseline: str = "baseline",
    only: Collection[str] | None = None,
) -> list[Path]:
    """Draw and save (PNG, PDF, SVG) every figure that the runs have data for, or `only` these; return the paths."""
    groups = by_variant(runs, baseline)
    words = {name: labels.get(name, name) for name in groups}
    folder = Path(directory)
    figures: dict[str, Callable[[], Figure]] = {
        "sink_heads": lambda: sink_heads(groups, words),
        "first_keys": lambda: first_keys(groups, words),
        "destinations": lambda: destination_figure.draw(destination_table.rows(runs, baseline), words),
        "activations": lambda: activations(groups, words),
        "massive_activations": lambda: massive_activations(groups, words),
        "sdpa_output": lambda: sdpa_output(groups, words),
        "value_norms": lambda: value_norms(groups, words),
    }
    if any(run.sites for run in runs):
        figures["gate_scores"] = lambda: gate_scores(groups, words)
        figures["gate_histograms"] = lambda: gate_histograms(groups, words)
    if any(run.checkpoints for run in runs):
        figures["over_training"] = lambda: over_training(groups, words)
    if any(run.effects for run in runs):
        figures["interventions"] = lambda: interventions(intervention_rows(runs, baseline), words)
    paths = []
    with drawing():
        for name in figures if only is None else only:
            paths += save(figures[name](), folder / name)
        mapped = [run for run in runs if run.maps]
        for run in mapped:
            stem = "attention_maps" if len(runs) == 1 else f"attention_maps_{run.variant}_s{run.seed}"
            paths += save(attention_maps(run, words[run.variant]), folder / stem)
    return paths


def sink_heads(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """First-token share of every layer and head, mean over seeds: a panel a variant, one colour scale."""
    shares = {name: _mean(runs, "first_token_share") for name, runs in groups.items()}  # (L, H)
    floor = float(np.mean([run.summary["first_token_floor"] for runs in groups.values() for run in runs]))
    columns = min(4, len(shares))
    n_rows = math.ceil(len(shares) / columns)
    height = max(1.2, min(3.2, 0.28 * max(share.shape[0] for share in shares.values()) + 0.7))
    figure = new_figure(PAGE_WIDTH * (0.25 + 0.75 * columns / 4), n_rows * height + 0.5)
    panels = np.atleast_1d(figure.subplots(n_rows, columns, squeeze=False)).ravel()
    top = max(0.05, *(float(share.max()) for share in shares.values()))
    image = None
    for axes, (name, share) in zip(panels, shares.items(), strict=False):
        image = axes.imshow(share, cmap="cividis", vmin=0, vmax=top, aspect="auto", origin="lower")
        _label_cells(axes, share, top)
        axes.set_xticks(range(share.shape[1]), [str(n + 1) for n in range(share.shape[1])])
        axes.set_yticks(range(share.shape[0]), [str(n + 1) for n in range(share.shape[0])])
        axes.grid(False)
        axes.set_title(labels[name])
    for axes in panels[len(shares) :]:
        axes.set_visible(False)
    if image is not None:
        bar = figure.colorbar(image, ax=list(panels), label="first-token share", shrink=0.9)
        bar.ax.axhline(floor, color="white", linewidth=1.5)
        bar.ax.axhline(floor, color="black", linewidth=0.7, linestyle=":")
    figure.supxlabel(f"head (line on the bar: uniform attention, {floor:.4f})", fontsize=8)
    figure.supylabel("layer", fontsize=8)
    return figure


def first_keys(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Attention on the first 1 .. K keys together, mean over layers and heads, over that of uniform attention."""
    figure = new_figure(PAGE_WIDTH * 0.6, 2.8)
    axes = figure.subplots()
    for name, runs in groups.items():
        by_seed = np.stack([run.arrays["first_keys_share"].mean(axis=(0, 1)) for run in runs])  # (seeds, K)
        _line(axes, np.arange(1, by_seed.shape[1] + 1), by_seed, name, labels[name])
    floor = next(iter(groups.values()))[0].arrays["first_keys_floor"]
    axes.plot(np.arange(1, len(floor) + 1), floor, color=FLOOR_COLOR, linestyle=":", label="uniform attention")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("first k keys")
    axes.set_ylabel("share of the attention on them")
    axes.legend()
    return figure


def activations(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Largest |activation| of the paper's Figure 6 quantities, by layer: a panel a quantity, a line a variant."""
    figure = new_figure(PAGE_WIDTH, 2.4)
    panels = figure.subplots(1, 4, sharey=True, sharex=True)
    for place, (axes, title) in enumerate(zip(panels, FIGURE_6, strict=True)):
        for index, (name, runs) in enumerate(groups.items()):
            by_seed = np.stack([run.arrays["activation_max"][:, place] for run in runs])
            _line(axes, _layers(by_seed[0], index, len(groups)), by_seed, name, labels[name])
        axes.set_yscale("log")
        axes.set_title(title)
        _layer_axis(axes, by_seed.shape[1])
    panels[0].set_ylabel("largest |activation|")
    figure.supxlabel("layer", fontsize=8)
    _legend_above(figure, panels[0])
    return figure


def massive_activations(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """The three largest |h| of the residual stream and its median, mean over windows and seeds: a panel a variant."""
    columns = min(4, len(groups))
    n_rows = math.ceil(len(groups) / columns)
    figure = new_figure(PAGE_WIDTH * (0.25 + 0.75 * columns / 4), 0.5 + 1.9 * n_rows)
    panels = np.atleast_1d(figure.subplots(n_rows, columns, sharey=True, squeeze=False)).ravel()
    for axes, (name, runs) in zip(panels, groups.items(), strict=False):
        top = _mean(runs, "activation_top3")[:, -1]  # (L, 3)
        median = _mean(runs, "activation_median")[:, -1]
        layers = np.arange(1, len(median) + 1)
        for rank, (marker, line) in enumerate((("o", "-"), ("s", "--"), ("^", "-."))):
            axes.plot(layers, top[:, rank], color=variant_style(name).color, marker=marker, linestyle=line,
                      markerfacecolor="none", label=f"largest {rank + 1}")  # fmt: skip
        axes.plot(layers, median, color=FLOOR_COLOR, marker="x", linestyle=":", label="median")
        axes.set_yscale("log")
        axes.set_title(f"{labels[name]}\nlargest / median: {float((top[:, 0] / median).max()):.0f}")
        _layer_axis(axes, len(median))
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    figure.supylabel("|residual stream|", fontsize=8)
    figure.supxlabel("layer", fontsize=8)
    _legend_above(figure, panels[0], columns=4)
    return figure


def sdpa_output(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Mean |SDPA output| and its near-zero share before the gate, after it, and with the gate at its mean."""
    figure = new_figure(PAGE_WIDTH, 3.0)
    panels = figure.subplots(1, 3, sharex=True)
    for index, (name, runs) in enumerate(groups.items()):
        gated = "sdpa_abs_mean_gate" in runs[0].arrays
        for stage, words, line in STAGES if gated else STAGES[:1]:
            text = f"{labels[name]}, {words}" if gated else labels[name]
            magnitude = _mean(runs, f"sdpa_abs_{stage}")
            below = _mean(runs, f"sdpa_below_{stage}")  # (L, 2)
            style = variant_style(name)
            marker = "x" if stage == "mean_gate" else style.marker
            face = "none" if gated and stage == "before" else style.color
            for axes, values in zip(panels, (magnitude, below[:, 0], below[:, 1]), strict=True):
                axes.plot(_layers(values, index, len(groups)), values, color=style.color, marker=marker,
                          linestyle=line if gated else "-", markerfacecolor=face, label=text)  # fmt: skip
                _layer_axis(axes, len(values))
    panels[0].set_yscale("log")
    panels[0].set_ylabel("mean |SDPA output|")
    for axes, threshold in zip(panels[1:], ("0.01", "0.001"), strict=True):
        axes.set_ylabel(f"share of elements below {threshold}")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(bottom=0)
    figure.supxlabel("layer", fontsize=8)
    _legend_above(figure, panels[0])
    return figure


def value_norms(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Norm of the first token's value against the mean of the others', after G2, by layer (mean over KV heads)."""
    figure = new_figure(PAGE_WIDTH * 0.75, 2.8)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, which, title in zip(panels, ("first", "rest"), ("first token", "other tokens (mean)"), strict=True):
        for index, (name, runs) in enumerate(groups.items()):
            by_seed = np.stack([run.arrays[f"value_norm_{which}"].mean(axis=1) for run in runs])
            _line(axes, _layers(by_seed[0], index, len(groups)), by_seed, name, labels[name])
            _layer_axis(axes, by_seed.shape[1])
        axes.set_title(title)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("norm of the value, after G2")
    figure.supxlabel("layer", fontsize=8)
    _legend_above(figure, panels[0])
    return figure


def gate_scores(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Gate score by layer: mean as points, one standard deviation as a thick bar, least and largest as a thin one."""
    figure = new_figure(PAGE_WIDTH * 0.75, 2.8)
    axes = figure.subplots()
    drawn = [(name, site) for name, runs in groups.items() for site in runs[0].sites]
    n_layers = 1
    for index, (name, site) in enumerate(drawn):
        runs = groups[name]
        mean, std = _mean(runs, f"gate_{site}_mean"), _mean(runs, f"gate_{site}_std")
        low = np.min([run.arrays[f"gate_{site}_min"] for run in runs], axis=0)
        high = np.max([run.arrays[f"gate_{site}_max"] for run in runs], axis=0)
        n_layers = len(mean)
        layers = np.arange(1, n_layers + 1) + 0.6 * (index + 0.5 - len(drawn) / 2) / max(len(drawn), 1)
        style = variant_style(name)
        text = f"{labels[name]} at {site.upper()}, mean {mean.mean():.2f}"
        axes.vlines(layers, low, high, color=style.color, linewidth=0.8, alpha=0.6)
        axes.vlines(
            layers,
            np.maximum(low, mean - std),
            np.minimum(high, mean + std),
            color=style.color,
            linewidth=3,
            alpha=0.35,
        )
        axes.plot(layers, mean, color=style.color, marker=style.marker, linestyle="none", label=text)
    _layer_axis(axes, n_layers)
    axes.set_xlabel("layer")
    axes.set_ylabel("gate score (thick: 1 sd, thin: range)")
    _legend_above(figure, axes, columns=2)
    return figure


def gate_histograms(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Distribution of all gate scores of a model, layers together: a panel a variant and site, seeds pooled."""
    drawn = [(name, site) for name, runs in groups.items() for site in runs[0].sites]
    columns = min(3, len(drawn))
    n_rows = math.ceil(len(drawn) / columns)
    figure = new_figure(PAGE_WIDTH * (0.25 + 0.25 * columns), 0.5 + 1.6 * n_rows)
    panels = np.atleast_1d(figure.subplots(n_rows, columns, squeeze=False)).ravel()
    for axes, (name, site) in zip(panels, drawn, strict=False):
        runs = groups[name]
        counts = np.sum([run.arrays[f"gate_{site}_hist"].sum(axis=0) for run in runs], axis=0)
        edges, color = runs[0].arrays[f"gate_{site}_edges"], variant_style(name).color
        axes.stairs(100 * counts / counts.sum(), edges, fill=True, color=color, alpha=0.25)
        axes.stairs(100 * counts / counts.sum(), edges, color=color, linewidth=1.0)
        mean = float(_mean(runs, f"gate_{site}_mean").mean())
        axes.axvline(mean, color="black", linestyle="--", linewidth=0.9)
        closed = 100 * float(_mean(runs, f"gate_{site}_closed").mean())
        axes.set_title(f"{labels[name]} ({site.upper()})\nmean {mean:.2f}, {closed:.0f} % below 0.1")
        axes.set_ylim(bottom=0)
    for axes in panels[len(drawn) :]:
        axes.set_visible(False)
    figure.supxlabel("gate score (dashed: mean)", fontsize=8)
    figure.supylabel("share of scores per bin (%)", fontsize=8)
    return figure


def over_training(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """First-token share over its floor, M-Act and mean gate at every kept checkpoint: when a sink appears."""
    figure = new_figure(PAGE_WIDTH, 2.6)
    panels = figure.subplots(1, 3, sharex=True)
    titles = ("first-token share / floor", "M-Act", "mean gate score")
    for name, runs in groups.items():
        kept = [run for run in runs if run.checkpoints]
        if not kept:
            continue
        series = [_excess(kept), [run.checkpoints["max_activation"].mean(axis=1) for run in kept]]
        if kept[0].sites:
            series.append([_mean_gate(run.checkpoints, run.sites) for run in kept])
        for axes, values in zip(panels, series, strict=False):
            for run, curve in zip(kept, values, strict=True):
                style = variant_style(name)
                label = labels[name] if run is kept[0] else None
                axes.plot(run.checkpoints["step"], curve, color=style.color, linestyle=style.linestyle,
                          marker=style.marker, markersize=3, label=label)  # fmt: skip
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(5))
    panels[0].axhline(1.0, color=FLOOR_COLOR, linestyle=":", label="uniform attention")
    if not any(run.sites for runs in groups.values() for run in runs if run.checkpoints):
        panels[2].set_visible(False)
    figure.supxlabel("training step", fontsize=8)
    _legend_above(figure, panels[0])
    return figure


def interventions(table: Sequence[Row], labels: Mapping[str, str]) -> Figure:
    """Change in held-out loss under each intervention: a colour a variant, a panel a group of targets.

    With one seed the 95 % interval is over windows, with three or more over seeds; with two each seed is drawn.
    """
    shown = [row for row in table if row.intervention != NONE and row.changes]
    grouped = [ALL, *(group for group in (COPY, OTHER) if any(group in (row.changes or {}) for row in shown))]
    names = [n for n in dict.fromkeys(row.intervention for row in table) if any(row.intervention == n for row in shown)]
    variants = list(dict.fromkeys(row.variant for row in shown))
    figure = new_figure(PAGE_WIDTH, 1.0 + len(names) * max(0.32, 0.11 * len(variants)))
    panels = np.atleast_1d(figure.subplots(1, len(grouped), sharey=True, squeeze=False)).ravel()
    titles = {ALL: "all tokens", COPY: "copies (after a trigger)", OTHER: "elsewhere"}
    for axes, group in zip(panels, grouped, strict=True):
        for row in shown:
            offset = 0.7 * ((variants.index(row.variant) + 0.5) / len(variants) - 0.5)
            _draw_change(axes, row, group, names.index(row.intervention) + offset)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_title(titles[group])
        _change_axis(axes, shown)
        for place in range(1, len(names)):
            axes.axhline(place - 0.5, color=FLOOR_COLOR, linewidth=0.4)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    figure.supxlabel(f"change in loss (nats per token; linear within ±{LINEAR_BELOW:g})", fontsize=8)
    for name in variants:
        style = variant_style(name)
        panels[0].plot([], [], color=style.color, marker=style.marker, linestyle="none", label=labels[name])
    _legend_above(figure, panels[0])
    return figure


def attention_maps(run: ProbedRun, label: str) -> Figure:
    """Attention maps of the chosen layers, mean over windows: a row a layer, a column a head, square-root colours."""
    maps, layers = run.maps["maps"], run.maps["layers"]
    n_heads = min(8, maps.shape[1])
    size = min(1.6, (PAGE_WIDTH - 0.8) / n_heads)
    figure = new_figure(0.9 + size * max(n_heads, 2), 0.7 + size * len(layers))
    panels = figure.subplots(len(layers), n_heads, squeeze=False)
    image = None
    for row, layer in enumerate(layers):
        for head in range(n_heads):
            axes = panels[row][head]
            image = axes.imshow(np.sqrt(maps[row, head]), cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks([]), axes.set_yticks([])
            axes.grid(False)
            if row == 0:
                axes.set_title(f"head {head + 1}")
        panels[row][0].set_ylabel(f"layer {layer}\nquery")
    panels[-1][0].set_xlabel("key")
    if image is not None:
        bar = figure.colorbar(image, ax=panels.ravel().tolist(), shrink=0.8, label="attention")
        shares = (0.0, 0.01, 0.1, 0.3, 1.0)
        bar.set_ticks([math.sqrt(share) for share in shares], labels=[f"{share:g}" for share in shares])
    figure.suptitle(f"{label}, seed {run.seed}, first {maps.shape[-1]} tokens", fontsize=8)
    return figure


def _mean(runs: Sequence[ProbedRun], name: str) -> Array:
    """Mean over seeds of one array."""
    return np.asarray(np.mean([run.arrays[name] for run in runs], axis=0), dtype=np.float64)


def _excess(runs: Sequence[ProbedRun]) -> list[Array]:
    return [run.checkpoints["first_token_share"].mean(axis=(1, 2)) / run.summary["first_token_floor"] for run in runs]


def _mean_gate(arrays: Arrays, sites: Sequence[str]) -> Array:
    return np.asarray(np.mean([arrays[f"gate_{site}_mean"] for site in sites], axis=0).mean(axis=1))


def _line(axes: Axes, x: Array, by_seed: Array, name: str, label: str) -> None:
    """The mean over seeds as a line, each seed as a point. `by_seed` is (seeds, len(x))."""
    style = variant_style(name)
    single = len(by_seed) == 1
    axes.plot(x, by_seed.mean(axis=0), color=style.color, linestyle=style.linestyle,
              marker=style.marker if single or len(x) == 1 else None, label=label)  # fmt: skip
    for values in () if single else by_seed:
        axes.plot(x, values, linestyle="none", marker=style.marker, color=style.color, markerfacecolor="none")


def _layers(values: Array, index: int, n_variants: int) -> Array:
    """Layer numbers from 1; variants of a one-layer model stand side by side."""
    dodge = DODGE * (index - (n_variants - 1) / 2) if len(values) == 1 else 0.0
    return np.arange(1, len(values) + 1, dtype=np.float64) + dodge


def _layer_axis(axes: Axes, n_layers: int) -> None:
    axes.set_xlim(0.5, n_layers + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))


def _label_cells(axes: Axes, values: Array, top: float) -> None:
    if values.size > MAX_ANNOTATED:
        return
    for (row, column), value in np.ndenumerate(values):
        color = "black" if value > 0.55 * top else "white"
        axes.text(column, row, f"{value:.3f}", ha="center", va="center", fontsize=6, color=color)


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
        axes.plot(change.by_seed, [y, y], color=style.color, marker=style.marker, markersize=3,
                  markerfacecolor="none", linewidth=0.8)  # fmt: skip
    elif change.low is not None and change.high is not None:
        axes.hlines(y, change.low, change.high, color=style.color, linewidth=1.2)
    axes.plot([change.change], [y], color=style.color, marker=style.marker, linestyle="none")


def _legend_above(figure: Figure, axes: Axes, columns: int = 3) -> None:
    handles, words = axes.get_legend_handles_labels()
    if words:
        figure.legend(handles, words, loc="outside upper center", ncols=min(columns, len(words)))
