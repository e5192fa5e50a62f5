"""Everything that a study's runs give: its tables, figures and report, written below ``results/<study>/``.

First the compact frame is written, then everything else is made from it as it reads back (``compact``). Figures of
probes need the run directories; where those are not here, the committed ones stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import RenderableType

from gatebench import variants as registry
from gatebench.report.analysis import comparison, factors, spikes
from gatebench.report.analysis import paper_tables as tables
from gatebench.report.analysis.comparison import ComparisonTable
from gatebench.report.analysis.flags import distinct
from gatebench.report.analysis.lr_curves import LEARNING_RATE, MIN_RATES, lr_curves
from gatebench.report.analysis.settings import Setting, SettingsTable, across_settings
from gatebench.report.figures import comparison_figures as figures
from gatebench.report.figures import (
    factors_figure,
    figure1,
    long_figures,
    lr_figures,
    probe_figures,
    settings_figure,
)
from gatebench.report.folders import folder_name
from gatebench.report.read import committed_frames as compact
from gatebench.report.read import results
from gatebench.report.read.probe_files import at_the_end
from gatebench.report.read.study_runs import StudyRuns
from gatebench.report.tables import (
    benchmark_table,
    comparison_table,
    factors_table,
    long_table,
    paper_table,
    settings_table,
)
from gatebench.report.tables.document import Document
from gatebench.report.tables.fair_tuning_table import fair_tuning_table
from gatebench.report.tables.lr_table import lr_table
from gatebench.report.tables.stability_table import stability_table
from gatebench.sweep.study import Combination, Study

MAX_DRAWN = 12
"""Variants in a figure of curves or probes: the first of the study; more could not be told apart."""
MAX_SEEDS_DRAWN = 5
MAX_PROBED = 3
"""Variants with gates in a figure that has several lines or a panel for each."""


@dataclass(frozen=True)
class SettingReport:
    """What was made of the runs under one setting."""

    combination: Combination
    comparison: ComparisonTable | None
    """None without a finished run of the baseline and of another variant."""
    compared: Document | None
    """The comparison, as it is printed."""
    tables: tuple[Document, ...]
    """Of the paper."""
    benchmarks: Document | None
    """None without a run that was asked any."""
    factors: Document | None
    """None for a study that is no factorial."""
    long: tuple[Document, ...]
    """Of runs that `gatebench long` has measured."""
    files: tuple[Path, ...]

    @property
    def documents(self) -> list[Document]:
        """Everything that is written, in that order."""
        found = (self.compared, *self.tables, self.benchmarks, self.factors, *self.long)
        return [document for document in found if document is not None]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is None."""
        return {
            "setting": self.combination.label,
            "overrides": list(self.combination.settings.words),
            "tables": [table.to_dict() for table in self.tables],
            "comparison": None if self.compared is None else self.compared.to_dict(),
            "factors": None if self.factors is None else self.factors.to_dict(),
            **({"long": [table.to_dict() for table in self.long]} if self.long else {}),
        }


@dataclass(frozen=True)
class StudyReport:
    """What was made of a study's runs."""

    runs: StudyRuns
    settings: tuple[SettingReport, ...]
    across_settings: Document | None
    """None for a study with one setting."""
    tables_across: tuple[Document, ...]
    over_rates: tuple[Document, ...]
    """Of a study over learning rates."""
    files: tuple[Path, ...]

    @property
    def documents(self) -> list[Document]:
        """Everything that is written, in that order."""
        across = [] if self.across_settings is None else [self.across_settings]
        own = [document for setting in self.settings for document in setting.documents]
        return [*own, *self.tables_across, *across, *self.over_rates]

    def printed(self) -> Iterator[RenderableType]:
        """What a terminal shows: the paper's tables, or comparisons where the study names none; factors; settings."""
        documents: list[Document | None] = []
        for setting in self.settings:
            compared = None if self.runs.study.tables else setting.compared
            documents += [*setting.tables, compared, setting.factors, *setting.long]
        documents += [*self.tables_across, self.across_settings, *self.over_rates]
        return (document.to_rich() for document in documents if document is not None)


def write(runs: StudyRuns, *, margin: float | None = None, commit: bool = True) -> StudyReport:
    """Write tables and figures of a study with finished runs; ``page.write`` adds the page.

    ``margin`` asks for an equivalence test of Avg PPL, as a share of the baseline's. Without ``commit``, for a study
    that the command line changed, the compact frame is left as it is. Raises :class:`UserError` for runs that cannot
    be compared.
    """
    study, out, files, curves = runs.study, runs.folder, [], None
    n_rates = len(learning_rates(study))
    if n_rates > 1:
        runs = replace(runs, frame=spikes.with_spikes(runs.frame))
    if commit:
        files = compact.write(runs.frame, out)
        curves = compact.read_curves(out)
        runs = replace(runs, frame=_as_committed(runs.frame, out))
    parts = [(combination, runs.of(combination)) for combination in study.combinations()]
    parts = [(combination, frame) for combination, frame in parts if len(frame)]
    one = len(parts) < 2
    how: dict[str, Any] = {"curves": curves, "one": one, "margin": margin, "drawn": n_rates < MIN_RATES}
    settings = [write_setting(study, combination, frame, out, **how) for combination, frame in parts]
    files += [file for setting in settings for file in setting.files]
    folder = folder_name(study.fixed.label)
    together = [] if one else _tables_across(study, parts)
    across = None if one else _across_settings(study, parts)
    laid_out = None if across is None else settings_table.document(across)
    if across:
        files += settings_figure.write(across, out / "figures" / folder)
    over_rates: list[Document] = []
    if n_rates > 1:
        over_rates, drawn = _over_rates(study, runs.frame, curves, out / "figures" / folder)
        files += drawn
    for table in (*together, laid_out, *over_rates):
        files += table.write(out / "tables" / folder) if table else []
    return StudyReport(runs, tuple(settings), laid_out, tuple(together), tuple(over_rates), tuple(files))


def write_setting(
    study: Study,
    combination: Combination,
    frame: pd.DataFrame,
    out: Path,
    *,
    curves: pd.DataFrame | None = None,
    one: bool = True,
    margin: float | None = None,
    drawn: bool = True,
) -> SettingReport:
    """Write the tables and figures of the runs under one setting into ``out``/tables and ``out``/figures.

    Variants without a finished run are left out. ``one`` says that the study has no other setting; ``curves`` are those
    of ``compact``, without which they are read from the run directories. A study over learning rates has figures of its
    own, and no setting of it is ``drawn``.
    """
    measured = set(frame["variant"])
    names = [name for name in study.variant_names() if name in measured]
    labels = {name: registry.get(name).label for name in names}
    baseline = study.variant_names()[0]
    folder = folder_name(combination.label)
    pictures = out / "figures" / folder
    compared = None
    made: list[Document] = []
    long: list[Document] = []
    benchmarks = None
    if baseline in names:
        if len(names) > 1:
            compared = comparison.compare(frame, baseline, names[1:], labels, margin=margin)
        for number in study.tables:
            if one or not tables.with_settings(number):
                rows = _beside_the_papers(study, frame) if tables.with_settings(number) else frame.assign(setting="")
                table = tables.make(number, rows, baseline, names[1:], labels, compared)
                made.append(paper_table.document(table))
        if found := benchmark_table.make(frame, baseline, names[1:], labels):
            benchmarks = benchmark_table.document(found)
        long = long_table.documents(study.name, frame, names, labels, baseline)
    analysis = factors.analyse(frame) if factors.is_factorial(frame) else None
    report = SettingReport(
        combination=combination,
        comparison=compared,
        compared=comparison_table.document(compared) if compared else None,
        tables=tuple(made),
        benchmarks=benchmarks,
        factors=factors_table.document(analysis) if analysis else None,
        long=tuple(long),
        files=(),
    )
    files = [path for document in report.documents for path in document.write(out / "tables" / folder)]
    files += factors_figure.write(analysis, pictures) if analysis else []
    files += _write_figures(frame, baseline, names, labels, pictures, curves) if drawn else []
    files += long_figures.write(frame, names, labels, baseline, pictures) if long else []
    return replace(report, files=tuple(files))


def learning_rates(study: Study) -> set[float]:
    """The learning rates of a study whose every setting, of its grid or named, says its own; else none."""
    settings = [combination.settings for combination in study.combinations()]
    return {float(one[LEARNING_RATE]) for one in settings} if all(LEARNING_RATE in one for one in settings) else set()


def _over_rates(
    study: Study, frame: pd.DataFrame, training: pd.DataFrame | None, pictures: Path
) -> tuple[list[Document], list[Path]]:
    """The tables over learning rates of ``frame``, which has the columns of ``spikes.with_spikes``, and their figures.

    ``training`` is of ``compact.read_curves``, without which the run directories are read. A study with fewer learning
    rates than a sensitivity takes has the table of how training went alone.
    """
    measured = set(frame["variant"])
    names = [name for name in study.variant_names() if name in measured]
    labels = {name: registry.get(name).label for name in study.variant_names()}
    baseline = study.variant_names()[0]
    stability = stability_table(study.name, frame, names, labels, baseline)
    curves = lr_curves(frame, names, labels)
    if not curves:
        return [stability], []
    fair = fair_tuning_table(study.name, frame, curves, baseline)
    made = [lr_table(study.name, frame, curves, baseline), *([] if fair is None else [fair]), stability]
    if training is None:
        training = results.load_curves(sorted(set(frame["run_dir"]) - {""}))
    else:
        training = compact.with_labels(training, frame)
    return made, lr_figures.write(frame, training, curves, baseline, pictures)


def _as_committed(frame: pd.DataFrame, out: Path) -> pd.DataFrame:
    """The frame as ``runs.csv`` reads back, with the run directories that are here."""
    committed = compact.read_runs(out)
    assert committed is not None
    here = dict(zip(frame["run"], frame["run_dir"], strict=True))
    return committed.assign(run_dir=[here[run] for run in committed["run"]])


def _write_figures(
    frame: pd.DataFrame,
    baseline: str,
    names: Sequence[str],
    labels: dict[str, str],
    folder: Path,
    curves: pd.DataFrame | None,
) -> list[Path]:
    drawn = names[: MAX_DRAWN + 1]
    seeds = sorted(set(frame["seed"]))[:MAX_SEEDS_DRAWN]
    shown = frame[frame["variant"].isin(drawn) & frame["seed"].isin(seeds)]
    losses = results.load_curves(shown["run_dir"]) if curves is None else compact.with_labels(curves, shown)
    others = [name for name in drawn if name != baseline]
    words = {baseline: baseline, **labels}
    paths = figures.write(shown, baseline, others, words, folder, curves=losses)
    paths += figure1.write(frame, losses, baseline, folder)
    here = shown[(shown["status"] == "done") & (shown["run_dir"] != "")]
    measured = set(here["variant"])
    gated = [name for name in distinct(here, others) if registry.get(name).gates and name in measured]
    probed = [
        at_the_end(run_dir)
        for name in [baseline, *gated[:MAX_PROBED]]
        for run_dir in here["run_dir"][here["variant"] == name]
    ]
    drawable = [n for n, array in probe_figures.OF_THE_PAPER.items() if all(array in run.arrays for run in probed)]
    return paths + probe_figures.write(probed, words, folder, baseline, drawable) if probed else paths


def _across_settings(study: Study, parts: Sequence[tuple[Combination, pd.DataFrame]]) -> SettingsTable | None:
    """The table over all settings, of the variants that have runs under each; None without the baseline."""
    common = set.intersection(*(set(frame["variant"]) for _, frame in parts))
    names = [name for name in study.variant_names() if name in common]
    baseline = study.variant_names()[0]
    if baseline not in names:
        return None
    fixed = study.fixed
    settings = []
    for combination, frame in parts:
        apart = tuple(word for word in combination.settings.words if word not in fixed.settings.words)
        label = combination.label.removesuffix(fixed.label).strip()
        settings.append(Setting(label, apart, frame))
    labels = {name: registry.get(name).label for name in names}
    return across_settings(study.name, settings, baseline, names[1:], labels)


def _tables_across(study: Study, parts: Sequence[tuple[Combination, pd.DataFrame]]) -> list[Document]:
    """The paper's tables that show all settings of a study."""
    numbers = [number for number in study.tables if tables.with_settings(number)]
    together = _beside_the_papers(study, pd.concat([frame for _, frame in parts], ignore_index=True))
    baseline, *others = study.variant_names()
    measured = set(together["variant"])
    if baseline not in measured:
        return []
    names = [baseline, *(name for name in others if name in measured)]
    labels = {name: registry.get(name).label for name in names}
    made = [tables.make(number, together, names[0], names[1:], labels) for number in numbers]
    return [paper_table.document(table) for table in made]


def _beside_the_papers(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """The runs with their settings as the study names them, which may be the paper's names.

    What the command line adds to a label is left out: it is the same for all, and the header of a table states it.
    """
    asked = study.fixed.label
    return frame.assign(setting=[label.removesuffix(asked).strip() for label in frame["setting"]])
