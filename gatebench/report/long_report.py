"""Everything that a study has beside what every study has, once `gatebench long` has measured its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from gatebench.report.figures import long_figures
from gatebench.report.read.long_results import multiples
from gatebench.report.tables.long_table import SHOWN, decline_table, metric_table
from gatebench.report.tables.text_table import TextTable


def is_measured(frame: pd.DataFrame) -> bool:
    """Whether any run has the loss at any length."""
    return bool(multiples(map(str, frame.columns), "long_loss"))


def write(
    study: str,
    frame: pd.DataFrame,
    names: Sequence[str],
    labels: Mapping[str, str],
    baseline: str,
    tables: Path,
    figures: Path,
) -> tuple[list[TextTable], list[Path]]:
    """Write the tables and figures of the measured runs among those of one setting."""
    made = [
        metric_table(study, frame, metric, names, labels, baseline)
        for metric in SHOWN
        if multiples(map(str, frame.columns), metric)
    ]
    decline = decline_table(study, frame, baseline)
    made += [decline] if decline is not None else []
    files = [path for table in made for path in table.write(tables)]
    return made, files + long_figures.write(frame, names, labels, baseline, figures)
