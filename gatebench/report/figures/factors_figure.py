"""The effects of a factor analysis with their intervals: one figure."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from gatebench.report.analysis.factors import FactorAnalysis
from gatebench.report.figures import save
from gatebench.report.figures.panels import new_figure
from gatebench.report.figures.style import PAGE_WIDTH


def write(analysis: FactorAnalysis, directory: str | Path) -> list[Path]:
    """Draw the effects and save them as ``factors``.png, .pdf and .svg; return the paths."""
    return save.write({"factors": lambda: draw(analysis)}, directory)


def draw(analysis: FactorAnalysis) -> Figure:
    """Effects with their intervals, main effects above and interactions below; filled where resolved."""
    main = [e for e in analysis.effects if e.kind == "main"]
    rest = [e for e in analysis.effects if e.kind == "interaction"]
    figure = new_figure(PAGE_WIDTH, 0.9 + 0.155 * len(analysis.effects))
    panels = figure.subplots(2, 1, height_ratios=(len(main), len(rest)), sharex=True)
    for axes, effects, color in zip(panels, (main, rest), ("#0072B2", "#D55E00"), strict=True):
        for index, e in enumerate(reversed(effects)):
            axes.plot([e.low, e.high], [index, index], color=color, linewidth=1.2)
            face = color if e.resolved else "white"
            axes.plot(e.percent, index, "o", color=color, markerfacecolor=face, markersize=3.5)
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(effects)), [f"{e.factor}: {e.level}" for e in reversed(effects)], fontsize=5.5)
        axes.set_ylim(-0.7, len(effects) - 0.3)
    panels[0].set_title("main effects (filled: told from zero, Holm)")
    panels[1].set_title("two-way interactions")
    panels[1].set_xlabel("change of Avg PPL (%), 95 % interval; left is better")
    return figure
