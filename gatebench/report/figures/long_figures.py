"""Figures of runs that `gatebench long` has measured: RULER and loss by length, loss by position, needles by depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gatebench.report.analysis.estimate import Estimate, estimate
from gatebench.report.figures import save
from gatebench.report.figures.panels import Array, new_figure
from gatebench.report.figures.style import FLOOR_COLOR, PAGE_WIDTH, VariantStyle, variant_style
from gatebench.report.read import long_results

LINES = {"": "-", "_yarn": "--"}
LEGEND = "solid: as trained; dashed: YaRN"
MAX_MAPS = 6
"""Variants with heat maps: the first of the study."""

Records = Mapping[str, Sequence[dict[str, Any]]]
"""By variant, what every seed's runs left."""


def write(
    frame: pd.DataFrame, names: Sequence[str], labels: Mapping[str, str], baseline: str, directory: Path
) -> list[Path]:
    """Draw ``long_lengths.*`` from the frame and, of runs that are here, ``long_positions.*`` and ``long_depths.*``."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, run_dir in zip(frame["variant"], frame["run_dir"], strict=True):
        if run_dir:
            untouched = [record for record in long_results.records(run_dir) if record["intervention"] is None]
            found.setdefault(name, []).extend(untouched)
    here = {name: found[name] for name in names if found.get(name)}
    figures: dict[str, Callable[[], Figure]] = {"long_lengths": lambda: by_length(frame, names, labels, baseline)}
    if here:
        figures["long_positions"] = lambda: by_position(here, labels, baseline)
    mapped = {name: rows for name, rows in here.items() if any(_with_depths(record) for record in rows)}
    if mapped:
        figures["long_depths"] = lambda: by_depth(dict(list(mapped.items())[:MAX_MAPS]), labels)
    return save.write(figures, directory)


def by_length(frame: pd.DataFrame, names: Sequence[str], labels: Mapping[str, str], baseline: str) -> Figure:
    """RULER and the loss on the last quarter over the length; solid as trained, dashed with YaRN; bars are 95 %."""
    figure = new_figure(PAGE_WIDTH, 2.8)
    left, right = figure.subplots(1, 2)
    for axes, metric, title in ((left, "ruler", "RULER (points)"), (right, "long_loss", "loss, last quarter (nats)")):
        lengths = long_results.multiples(map(str, frame.columns), metric)
        for name in names:
            runs, style = frame[frame["variant"] == name], variant_style(name, baseline)
            for condition, line in LINES.items():
                found = {x: estimate(runs, f"{metric}{condition}/{x:g}x") for x in lengths}
                found = {x: each for x, each in found.items() if each.n}
                if found:
                    label = labels.get(name, name) if not condition else None
                    _curve(axes, found, style, linestyle=line, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{x:g}x" for x in lengths])
        axes.set_xlabel("length (training windows)")
        axes.set_ylabel(title)
        axes.set_title(LEGEND)
    left.set_ylim(-3, 103)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _curve(axes: Axes, found: Mapping[float, Estimate], style: VariantStyle, **look: Any) -> None:
    bars = np.nan_to_num([each.half_width for each in found.values()])
    means = [each.mean for each in found.values()]
    axes.errorbar(list(found), means, yerr=bars, elinewidth=0.7, **{**style.hollow, **look})


def by_position(found: Records, labels: Mapping[str, str], baseline: str) -> Figure:
    """The loss over the position in the longest window that all have; a line at the training window."""
    figure = new_figure(PAGE_WIDTH * 0.75, 2.8)
    axes = figure.subplots()
    longest = min(max(map(int, record["lengths"])) for records in found.values() for record in records)
    for name, records in found.items():
        style = variant_style(name, baseline)
        for condition, line in LINES.items():
            chosen = [
                r["lengths"][str(longest)]["text"]["bins"] for r in records if long_results.condition_of(r) == condition
            ]
            if chosen:
                middles = [(part["start"] + part["stop"]) / 2 for part in chosen[0]]
                losses = np.mean([[part["nats"] for part in bins] for bins in chosen], axis=0)
                label = labels.get(name, name) if not condition else None
                axes.plot(middles, losses, color=style.color, linestyle=line, label=label)
    axes.axvline(next(iter(found.values()))[0]["window"], color=FLOOR_COLOR, linestyle=":", linewidth=1)
    axes.set_xlabel(f"position in a window of {longest:,} tokens")
    axes.set_ylabel("loss (nats)")
    axes.set_title(LEGEND)
    axes.legend(ncols=2)
    return figure


def by_depth(found: Records, labels: Mapping[str, str]) -> Figure:
    """How often the needle is found, by its depth and the length: a row a variant, a column a condition."""
    used = [c for c in LINES if any(long_results.condition_of(r) == c for rows in found.values() for r in rows)]
    figure = new_figure(min(PAGE_WIDTH, 0.8 + 2.6 * len(used)), 0.5 + 1.5 * len(found))
    panels = np.atleast_2d(figure.subplots(len(found), len(used), sharex=True, sharey=True, squeeze=False))
    image = None
    for row, (name, records) in zip(panels, found.items(), strict=True):
        for axes, condition in zip(row, used, strict=True):
            chosen = [r for r in records if long_results.condition_of(r) == condition and _with_depths(r)]
            scores, lengths, depths = depth_map(chosen)
            axes.set_title(f"{labels.get(name, name)}, {long_results.in_words(condition)}")
            axes.grid(False)
            if not lengths:
                continue
            image = axes.imshow(scores, vmin=0, vmax=100, cmap="cividis", aspect="auto", origin="upper")
            axes.set_xticks(range(len(lengths)), [long_results.in_tokens(length) for length in lengths])
            axes.set_yticks(range(len(depths)), [f"{depth:.0%}" for depth in depths])
    for axes in panels[-1]:
        axes.set_xlabel("length (tokens)")
    for axes in panels[:, 0]:
        axes.set_ylabel("depth")
    if image is not None:
        figure.colorbar(image, ax=panels, label="found (%)")
    return figure


def depth_map(records: Sequence[dict[str, Any]]) -> tuple[Array, list[int], list[float]]:
    """Mean score over ``records`` (depths, lengths), with lengths in tokens and depths; what one lacks is left out."""
    lengths = sorted(set.intersection(*map(_with_depths, records))) if records else []
    if not lengths:
        return np.empty((0, 0)), [], []
    depths = [row["depth"] for row in records[0]["lengths"][str(lengths[0])]["depths"]["rows"]]
    scores = [
        [[row["score"] for row in record["lengths"][str(n)]["depths"]["rows"]] for n in lengths] for record in records
    ]
    return np.mean(scores, axis=0).T, lengths, depths


def _with_depths(record: dict[str, Any]) -> set[int]:
    """The lengths, in tokens, at which a needle was hidden at several depths."""
    return {int(length) for length, row in record["lengths"].items() if row["depths"]}
