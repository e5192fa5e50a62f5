"""Figures of the probes: one run, or several variants side by side. Each function draws one idea; `write` draws all.

Every function takes runs grouped by variant (`probe_files.by_variant`); with several seeds of a variant it draws their
mean as a line and each seed as a point. Letters: L layers, H heads, K keys, S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from gatebench import metrics
from gatebench.report.analysis import destinations, interventions
from gatebench.report.figures import destination_figure, gate_figures, head_maps, intervention_figure, save
from gatebench.report.figures.panels import grid, layer_axis, layers, legend_above, line_and_seeds, new_figure
from gatebench.report.figures.style import FLOOR_COLOR, PAGE_WIDTH, variant_style
from gatebench.report.read.probe_files import Groups, ProbedRun, by_variant, mean_over_seeds

OF_THE_PAPER = {
    "sink_heads": "first_token_share",
    "sdpa_output": "sdpa_abs_before",
    "activations": "activation_max",
    "massive_activations": "activation_top3",
}
"""Figures that the paper has, too (docs/tables.md), of what runs measure at their end; and the array that one takes."""
FIGURE_6 = ("attention output", "residual after attention", "FFN output", "residual after FFN")
STAGES = (("before", "before the gate", "--"), ("after", "after the gate", "-"), ("mean_gate", "x mean gate", ":"))


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
    drawings: dict[str, Callable[[Groups, Mapping[str, str]], Figure]] = {
        "sink_heads": head_maps.sink_heads,
        "first_keys": first_keys,
        "destinations": lambda _, words: destination_figure.draw(destinations.rows(runs, baseline), words),
        "activations": activations,
        "massive_activations": massive_activations,
        "sdpa_output": sdpa_output,
        "value_norms": value_norms,
    }
    if any(run.sites for run in runs):
        drawings |= {"gate_scores": gate_figures.scores, "gate_histograms": gate_figures.by_variant}
    if any(run.checkpoints for run in runs):
        drawings["over_training"] = over_training
    if any(run.effects for run in runs):
        effects = interventions.rows(runs, baseline)
        drawings["interventions"] = lambda _, words: intervention_figure.draw(effects, words)
    chosen = drawings if only is None else {name: drawings[name] for name in only}
    figures: dict[str, Callable[[], Figure]] = {name: partial(draw, groups, words) for name, draw in chosen.items()}
    for run in runs:
        if run.maps:
            stem = "attention_maps" if len(runs) == 1 else f"attention_maps_{run.variant}_s{run.seed}"
            figures[stem] = partial(head_maps.attention_maps, run, words[run.variant])
    return save.write(figures, directory)


def first_keys(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Attention on the first 1 .. K keys together, mean over layers and heads, over that of uniform attention."""
    figure = new_figure(PAGE_WIDTH * 0.6, 2.8)
    axes = figure.subplots()
    for name, runs in groups.items():
        by_seed = np.stack([run.arrays["first_keys_share"].mean(axis=(0, 1)) for run in runs])  # (seeds, K)
        line_and_seeds(axes, np.arange(1, by_seed.shape[1] + 1), by_seed, variant_style(name), labels[name])
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
    figure, panels = grid(4, 4, PAGE_WIDTH, 2.4, sharey=True, sharex=True)
    for place, (axes, title) in enumerate(zip(panels, FIGURE_6, strict=True)):
        for index, (name, runs) in enumerate(groups.items()):
            by_seed = np.stack([run.arrays["activation_max"][:, place] for run in runs])  # (seeds, L)
            places = layers(by_seed.shape[1], index, len(groups))
            line_and_seeds(axes, places, by_seed, variant_style(name), labels[name])
            layer_axis(axes, by_seed.shape[1])
        axes.set_yscale("log")
        axes.set_title(title)
    panels[0].set_ylabel("largest |activation|")
    figure.supxlabel("layer")
    legend_above(figure, panels[0])
    return figure


def massive_activations(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """The three largest |h| of the residual stream and its median, mean over windows and seeds: a panel a variant."""
    width = PAGE_WIDTH * (0.25 + 0.75 * min(4, len(groups)) / 4)
    figure, panels = grid(len(groups), 4, width, 1.9, 0.5, sharey=True)
    for axes, (name, runs) in zip(panels, groups.items(), strict=True):
        top = mean_over_seeds(runs, "activation_top3")[:, -1]  # (L, 3)
        median = mean_over_seeds(runs, "activation_median")[:, -1]
        places = np.arange(1, len(median) + 1)
        for rank, (marker, line) in enumerate((("o", "-"), ("s", "--"), ("^", "-."))):
            look = {**variant_style(name).hollow, "marker": marker, "linestyle": line}
            axes.plot(places, top[:, rank], **look, label=f"largest {rank + 1}")
        axes.plot(places, median, color=FLOOR_COLOR, marker="x", linestyle=":", label="median")
        axes.set_yscale("log")
        axes.set_title(f"{labels[name]}\nlargest / median: {float((top[:, 0] / median).max()):.0f}")
        layer_axis(axes, len(median))
    figure.supylabel("|residual stream|")
    figure.supxlabel("layer")
    legend_above(figure, panels[0], columns=4)
    return figure


def sdpa_output(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Mean |SDPA output| and its near-zero share before the gate, after it, and with the gate at its mean."""
    figure, panels = grid(3, 3, PAGE_WIDTH, 3.0, sharex=True)
    for index, (name, runs) in enumerate(groups.items()):
        gated = "sdpa_abs_mean_gate" in runs[0].arrays
        style = variant_style(name)
        for stage, words, line in STAGES if gated else STAGES[:1]:
            look: dict[str, Any] = {
                "color": style.color,
                "linestyle": line if gated else "-",
                "marker": "x" if stage == "mean_gate" else style.marker,
                "markerfacecolor": "none" if gated and stage == "before" else style.color,
                "label": f"{labels[name]}, {words}" if gated else labels[name],
            }
            magnitude = mean_over_seeds(runs, f"sdpa_abs_{stage}")
            below = mean_over_seeds(runs, f"sdpa_below_{stage}")  # (L, 2)
            for axes, values in zip(panels, (magnitude, below[:, 0], below[:, 1]), strict=True):
                axes.plot(layers(len(values), index, len(groups)), values, **look)
                layer_axis(axes, len(values))
    panels[0].set_yscale("log")
    panels[0].set_ylabel("mean |SDPA output|")
    for axes, threshold in zip(panels[1:], ("0.01", "0.001"), strict=True):
        axes.set_ylabel(f"share of elements below {threshold}")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(bottom=0)
    figure.supxlabel("layer")
    legend_above(figure, panels[0])
    return figure


def value_norms(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """Norm of the first token's value against the mean of the others', after G2, by layer (mean over KV heads)."""
    figure, panels = grid(2, 2, PAGE_WIDTH * 0.75, 2.8, sharex=True, sharey=True)
    for axes, which, title in zip(panels, ("first", "rest"), ("first token", "other tokens (mean)"), strict=True):
        for index, (name, runs) in enumerate(groups.items()):
            by_seed = np.stack([run.arrays[f"value_norm_{which}"].mean(axis=1) for run in runs])  # (seeds, L)
            places = layers(by_seed.shape[1], index, len(groups))
            line_and_seeds(axes, places, by_seed, variant_style(name), labels[name])
            layer_axis(axes, by_seed.shape[1])
        axes.set_title(title)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("norm of the value, after G2")
    figure.supxlabel("layer")
    legend_above(figure, panels[0])
    return figure


def over_training(groups: Groups, labels: Mapping[str, str]) -> Figure:
    """First-token share over its floor, M-Act and mean gate at every kept checkpoint: when a sink appears."""
    kept = {name: [run for run in runs if run.checkpoints] for name, runs in groups.items()}
    gated = any(run.sites for runs in kept.values() for run in runs)
    share, m_act, gate = map(metrics.get, ("first_token_share", "m_act", "gate_mean"))
    figure, panels = grid(3, 3, PAGE_WIDTH, 2.6, sharex=True)
    for axes, title in zip(panels, (f"{share.words} / floor", m_act.title, gate.words), strict=True):
        axes.set_title(title)
    for name, runs in kept.items():
        style = variant_style(name)
        for index, run in enumerate(runs):
            found = run.checkpoints
            excess = found["first_token_share"].mean(axis=(1, 2)) / run.summary["first_token_floor"]  # (S,)
            series = [excess, found["max_activation"].mean(axis=1)]
            if run.sites:
                series.append(np.mean([found[f"gate_{site}_mean"] for site in run.sites], axis=0).mean(axis=1))
            label = labels[name] if index == 0 else None
            for axes, values in zip(panels, series, strict=False):
                axes.plot(found["step"], values, **style.line, marker=style.marker, markersize=3, label=label)
    for axes in panels:
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(5))
    panels[0].axhline(1.0, color=FLOOR_COLOR, linestyle=":", label="uniform attention")
    panels[2].set_visible(gated)
    figure.supxlabel("training step")
    legend_above(figure, panels[0])
    return figure
