"""Tables of a study whose runs `gatebench long` has measured: RULER, loss and sink by length, and declines.

Cells hold the mean over seeds with half its 95 % interval, and in brackets, as in the paper's Table 5, the change from
the same runs as they were trained, at the same length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from gatebench import metrics
from gatebench.report.analysis.comparison import SINK_EXCESS
from gatebench.report.analysis.estimate import Estimate, estimate
from gatebench.report.analysis.paper_tables import facts_of
from gatebench.report.read.long_results import conditions, in_words, multiples
from gatebench.report.tables.blocks import table
from gatebench.report.tables.document import Document, of_one_table
from gatebench.report.text import NOTHING, mean_and_interval, number

SHOWN = ("ruler", "long_loss", "long_share")
"""What has a table."""
MIN_VARIANTS = 4
"""Below which a line through variants says nothing."""


def documents(
    study: str, frame: pd.DataFrame, names: Sequence[str], labels: Mapping[str, str], baseline: str
) -> list[Document]:
    """Every table of one setting; none where no run has the loss at any length."""
    columns = list(map(str, frame.columns))
    if not multiples(columns, "long_loss"):
        return []
    made = [
        metric_table(study, frame, metric, names, labels, baseline) for metric in SHOWN if multiples(columns, metric)
    ]
    decline = decline_table(study, frame, baseline)
    return made if decline is None else [*made, decline]


def metric_table(
    study: str, frame: pd.DataFrame, metric: str, names: Sequence[str], labels: Mapping[str, str], baseline: str
) -> Document:
    """One metric by variant, condition and length in training windows."""
    shown = metrics.get(metric)
    lengths = multiples(map(str, frame.columns), metric)
    rows, records = [], []
    for name in names:
        runs = frame[frame["variant"] == name]
        plain = {x: estimate(runs, f"{metric}/{x:g}x") for x in lengths}
        for condition in conditions(map(str, frame.columns)):
            found = {x: estimate(runs, f"{metric}{condition}/{x:g}x") for x in lengths}
            if not any(each.n for each in found.values()):
                continue
            cells = [_cell(found[x], plain[x] if condition else None, shown.kind) for x in lengths]
            rows.append((labels.get(name, name), in_words(condition), *cells))
            for x in lengths:
                record = {"variant": name, "condition": condition, "windows": x, "n_seeds": found[x].n}
                record |= {"mean": found[x].mean, "half_width": found[x].half_width}
                records.append({**record, "change": _change(found[x], plain[x])})
    asked = sorted(set(frame.get("long_asked", pd.Series()).dropna()))
    return of_one_table(
        metric if metric.startswith("long_") else f"long_{metric}",
        f"{study}: {shown.words} by length",
        facts_of(frame, baseline),
        table(("variant", "condition", *(f"{x:g}x" for x in lengths)), rows, n_words=2),
        pd.DataFrame.from_records(records),
        "Lengths in training windows. Mean over seeds ± half its 95 % interval; in brackets the change from the same "
        "runs as they were trained, at the same length." + "".join(f" Measured: {how}." for how in asked),
    )


def _cell(found: Estimate, plain: Estimate | None, kind: str) -> str:
    if not found.n:
        return NOTHING
    text = mean_and_interval(found.mean, found.half_width, kind)
    change = math.nan if plain is None else _change(found, plain)
    return text if math.isnan(change) else f"{text} ({number(change, kind, signed=True)})"


def _change(found: Estimate, plain: Estimate) -> float:
    common = found.by_seed.keys() & plain.by_seed.keys()
    return float(np.mean([found.by_seed[s] - plain.by_seed[s] for s in common])) if common else math.nan


@dataclass(frozen=True)
class Line:
    """A least-squares line of a decline on the first-token share."""

    outcome: str
    n_runs: int
    n_variants: int
    slope: float
    """Change of the outcome for 0.1 more of the attention on the first token."""
    low: float
    high: float
    """95 %, errors clustered by variant, t with one degree of freedom less than variants."""
    r_squared: float
    between: float
    """The slope through the variants' means."""


def lines(frame: pd.DataFrame) -> list[Line]:
    """Fit each outcome that the runs have, over all runs that did not diverge; nothing below four variants.

    Outcomes compare the longest length that was measured with one training window, with YaRN where there is some.
    """
    names = list(map(str, frame.columns))
    if "long_share/1x" not in names:
        return []
    found = []
    for metric, words in (("ruler", "RULER points lost"), ("long_loss", "loss gained, nats")):
        for condition in [c for c in conditions(names) if "+" not in c]:
            longest = [x for x in multiples(names, metric) if x > 1 and f"{metric}{condition}/{x:g}x" in names]
            if not longest or f"{metric}/1x" not in names:
                continue
            change = frame[f"{metric}{condition}/{longest[-1]:g}x"] - frame[f"{metric}/1x"]
            decline = -change if metric == "ruler" else change
            data = pd.DataFrame({"x": frame["long_share/1x"], "y": decline, "variant": frame["variant"]}).dropna()
            line = _line(data, f"{words}, {longest[-1]:g}x {in_words(condition)} against 1x")
            found += [line] if line is not None else []
    return found


def _line(data: pd.DataFrame, outcome: str) -> Line | None:
    n_variants = data["variant"].nunique()
    if n_variants < MIN_VARIANTS or data["x"].std() == 0:
        return None
    import statsmodels.api as sm  # a second that other tables need not wait for

    design = sm.add_constant(data[["x"]] * 10)
    codes = data["variant"].astype("category").cat.codes
    fit: Any = sm.OLS(data["y"], design).fit(cov_type="cluster", cov_kwds={"groups": codes}, use_t=True)
    low, high = fit.conf_int().loc["x"]
    means = data.groupby("variant")[["x", "y"]].mean()
    between = float(np.polyfit(means["x"] * 10, means["y"], 1)[0])
    slope = float(fit.params["x"])
    return Line(outcome, len(data), n_variants, slope, float(low), float(high), float(fit.rsquared), between)


def decline_table(study: str, frame: pd.DataFrame, baseline: str) -> Document | None:
    """The lines as a table; None where there is none to fit."""
    found = lines(frame)
    if not found:
        return None
    columns = ("decline", "runs", "variants", "for 0.1 more share\n[95 %]", "through\nmeans", "R²")
    rows = [
        (
            *(line.outcome, str(line.n_runs), str(line.n_variants)),
            f"{line.slope:+.3g} [{line.low:+.3g}, {line.high:+.3g}]",
            *(f"{line.between:+.3g}", f"{line.r_squared:.2f}"),
        )
        for line in found
    ]
    return of_one_table(
        "long_decline",
        f"{study}: decline over the first-token share at one window",
        facts_of(frame, baseline),
        table(columns, rows),
        pd.DataFrame([vars(line) for line in found]),
        " ".join(_reading(line) for line in found)
        + _without_sinks(frame)
        + " Runs that score little at one window have little to lose. Variants differ in more than the sink, so that a "
        "line through them shows no cause; what the same runs lose with the first token blocked or its value zero "
        "stands in the other tables.",
    )


def _without_sinks(frame: pd.DataFrame) -> str:
    """Say so where no run has a sink to lose; empty where one has."""
    excess = frame.get("long_excess/1x", pd.Series(dtype=float)).max()
    if not excess < SINK_EXCESS:
        return ""
    return (
        f" No run has a sink at one window (the largest share is {excess:.2f} times its floor, below {SINK_EXCESS:g}): "
        "the lines say nothing about losing one."
    )


def _reading(line: Line) -> str:
    if line.low <= 0 <= line.high:
        return f"{line.outcome}: no association is resolved over {line.n_variants} variants."
    word = "more" if line.slope > 0 else "less"
    return f"{line.outcome}: variants with more sink decline {word}."
