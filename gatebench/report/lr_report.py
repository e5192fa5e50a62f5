"""Everything that a study over learning rates has beside what every study has: three tables and up to four figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from gatebench.report.analysis.lr_curves import LEARNING_RATE, lr_curves
from gatebench.report.figures import lr_figures
from gatebench.report.read import committed_frames as compact
from gatebench.report.read import results
from gatebench.report.tables.fair_tuning_table import fair_tuning_table
from gatebench.report.tables.lr_table import lr_table
from gatebench.report.tables.stability_table import stability_table
from gatebench.report.tables.text_table import TextTable
from gatebench.sweep.study import Study


def rates(study: Study) -> set[float]:
    """The learning rates of a study whose every setting, of its grid or named, says its own; else none."""
    found = [[w for w in c.overrides if w.startswith(LEARNING_RATE)] for c in study.combinations()]
    return {float(words[-1].removeprefix(LEARNING_RATE)) for words in found} if all(found) else set()


def write(
    study: Study,
    frame: pd.DataFrame,
    training: pd.DataFrame | None,
    labels: Mapping[str, str],
    tables: Path,
    figures: Path,
) -> tuple[list[TextTable], list[Path]]:
    """Write the tables and figures of the runs in ``frame``, which has the columns of ``spikes.with_spikes``.

    ``training`` is of ``compact.read_curves``, without which the run directories are read. A study with fewer learning
    rates than a sensitivity takes has the table of how training went alone.
    """
    measured = set(frame["variant"])
    names = [name for name in study.variant_names() if name in measured]
    baseline = study.variant_names()[0]
    made = [stability_table(study.name, frame, names, labels, baseline)]
    curves = lr_curves(frame, names, labels)
    files: list[Path] = []
    if curves:
        made.insert(0, lr_table(study.name, frame, curves, baseline))
        if (fair := fair_tuning_table(study.name, frame, curves, baseline)) is not None:
            made.insert(1, fair)
        if training is None:
            training = results.load_curves(sorted(set(frame["run_dir"]) - {""}))
        else:
            training = compact.with_labels(training, frame)
        files += lr_figures.write(frame, training, curves, baseline, figures)
    for table in made:
        files += table.write(tables)
    return made, files
