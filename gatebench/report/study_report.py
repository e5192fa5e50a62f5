"""Everything that a study's runs give: its tables, figures and report, written below ``results/<study>/``.

First the compact frame is written, then everything else is made from it as it reads back (``compact``). Figures of
probes need the run directories; where those are not here, the committed ones stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import RenderableType

from gatebench import variants as registry
from gatebench.report import long_report, lr_report, page
from gatebench.report.analysis import comparison, factors, spikes
from gatebench.report.analysis.claims import ClaimResult
from gatebench.report.analysis.comparison import ComparisonTable
from gatebench.report.analysis.factors import FactorAnalysis
from gatebench.report.analysis.flags import distinct
from gatebench.report.analysis.lr_curves import MIN_RATES
from gatebench.report.figures import comparison_figures as figures
from gatebench.report.figures import figure1, probe_figures, settings_figure
from gatebench.report.folders import folder_name
from gatebench.report.read import committed_frames as compact
from gatebench.report.read import results
from gatebench.report.read.probe_files import at_the_end
from gatebench.report.read.study_runs import StudyRuns
from gatebench.report.tables import benchmark_table, settings_table
from gatebench.report.tables import paper_tables as tables
from gatebench.report.tables.comparison_table import without_nan
from gatebench.report.tables.paper_table import PaperTable
from gatebench.report.tables.settings_table import SettingsTable
from gatebench.report.tables.text_table import TextTable
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
    tables: tuple[PaperTable, ...]
    comparison: ComparisonTable | None
    """None without a finished run of the baseline and of another variant."""
    factors: FactorAnalysis | None
    """None for a study that is no factorial."""
    files: tuple[Path, ...]
    long: tuple[TextTable, ...] = ()
    """Of runs that `gatebench long` has measured."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that does not exist is None."""
        content = {
            "setting": self.combination.label,
            "overrides": list(self.combination.overrides),
            "tables": [table.to_dict() for table in self.tables],
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
            "factors": None if self.factors is None else self.factors.to_dict(),
            **({"long": [table.to_dict() for table in self.long]} if self.long else {}),
        }
        plain: dict[str, Any] = without_nan(content)
        return plain


@dataclass(frozen=True)
class StudyReport:
    """What was made of a study's runs."""

    runs: StudyRuns
    settings: tuple[SettingReport, ...]
    across_settings: SettingsTable | None
    """None for a study with one setting."""
    tables_across: tuple[PaperTable, ...]
    over_rates: tuple[TextTable, ...] = ()
    """Of a study over learning rates."""
    files: list[Path] = field(default_factory=list)

    def printed(self) -> Iterator[RenderableType]:
        """What a terminal shows: the paper's tables, or comparisons where the study names none; factors; settings."""
        for setting in self.settings:
            yield from (table.to_rich() for table in setting.tables)
            if setting.comparison is not None and not self.runs.study.tables:
                yield setting.comparison.to_rich()
            if setting.factors is not None:
                yield setting.factors.to_rich()
            yield from (table.to_rich() for table in setting.long)
        yield from (table.to_rich() for table in self.tables_across)
        if self.across_settings is not None:
            yield self.across_settings.to_rich()
        yield from (table.to_rich() for table in self.over_rates)


def write(runs: StudyRuns, *, margin: float | None = None, commit: bool = True) -> StudyReport:
    """Write tables and figures of a study with finished runs; :func:`write_page` adds the page.

    ``margin`` asks for an equivalence test of Avg PPL, as a share of the baseline's. Without ``commit``, for a study
    that the command line changed, the compact frame is left as it is. Raises :class:`UserError` for runs that cannot
    be compared.
    """
    out, files, curves = runs.folder, [], None
    n_rates = len(lr_report.rates(runs.study))
    if n_rates > 1:
        runs = replace(runs, frame=spikes.with_spikes(runs.frame))
    if commit:
        files = compact.write(runs.frame, out)
        curves = compact.read_curves(out)
        runs = replace(runs, frame=_as_committed(runs.frame, out))
    parts = [(combination, runs.of(combination)) for combination in runs.study.combinations()]
    parts = [(combination, frame) for combination, frame in parts if len(frame)]
    one = len(parts) < 2
    how: dict[str, Any] = {"curves": curves, "one": one, "margin": margin, "drawn": n_rates < MIN_RATES}
    settings = [write_setting(runs.study, combination, frame, out, **how) for combination, frame in parts]
    across = None if one else _across_settings(runs.study, parts)
    together = [] if one else _tables_across(runs.study, parts)
    files += [file for setting in settings for file in setting.files]
    folder = folder_name(runs.study.fixed.label)
    for table in together:
        files += table.write(out / "tables" / folder)
    if across:
        files += across.write(out / "tables" / folder) + settings_figure.write(across, out / "figures" / folder)
    over_rates: list[TextTable] = []
    if n_rates > 1:
        labels = {name: registry.get(name).label for name in runs.study.variant_names()}
        places = out / "tables" / folder, out / "figures" / folder
        over_rates, written = lr_report.write(runs.study, runs.frame, curves, labels, *places)
        files += written
    return StudyReport(runs, tuple(settings), across, tuple(together), tuple(over_rates), files)


def write_page(report: StudyReport, claims: Sequence[ClaimResult]) -> Path:
    """Write ``report.html`` of a study and return its path."""
    path = report.runs.folder / "report.html"
    path.write_text(page.render(report, claims), encoding="utf-8", newline="\n")
    return path


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
    folder, files, made = folder_name(combination.label), [], []
    compared = analysis = None
    if baseline in names:
        if len(names) > 1:
            compared = comparison.compare(frame, baseline, names[1:], labels, margin=margin)
            files += compared.write(out / "tables" / folder)
        numbers = [number for number in study.tables if one or not tables.with_settings(number)]
        for number in numbers:
            rows = _beside_the_papers(study, frame) if tables.with_settings(number) else frame.assign(setting="")
            made.append(tables.make(number, rows, baseline, names[1:], labels, compared))
        files += [path for table in made for path in table.write(out / "tables" / folder)]
        if benchmarks := benchmark_table.make(frame, baseline, names[1:], labels):
            files += benchmarks.write(out / "tables" / folder)
    if factors.is_factorial(frame):
        analysis = factors.analyse(frame)
        files += analysis.write(out / "tables" / folder, out / "figures" / folder)
    if drawn:
        files += _write_figures(frame, baseline, names, labels, out / "figures" / folder, curves)
    long: list[TextTable] = []
    if baseline in names and long_report.is_measured(frame):
        places = out / "tables" / folder, out / "figures" / folder
        long, written = long_report.write(study.name, frame, names, labels, baseline, *places)
        files += written
    return SettingReport(combination, tuple(made), compared, analysis, tuple(files), tuple(long))


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
        at_the_end(run["run_dir"], name, run["seed"])
        for name in [baseline, *gated[:MAX_PROBED]]
        for run in here[here["variant"] == name].to_dict("records")
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
        apart = tuple(word for word in combination.overrides if word not in fixed.overrides)
        label = combination.label.removesuffix(fixed.label).strip()
        settings.append(settings_table.Setting(label, apart, frame))
    labels = {name: registry.get(name).label for name in names}
    return settings_table.make(study.name, settings, baseline, names[1:], labels, overrides=fixed.overrides)


def _tables_across(study: Study, parts: Sequence[tuple[Combination, pd.DataFrame]]) -> list[PaperTable]:
    """The paper's tables that show all settings of a study."""
    numbers = [number for number in study.tables if tables.with_settings(number)]
    together = _beside_the_papers(study, pd.concat([frame for _, frame in parts], ignore_index=True))
    measured = set(together["variant"])
    names = [name for name in study.variant_names() if name in measured]
    if not names or names[0] != study.variant_names()[0]:
        return []
    labels = {name: registry.get(name).label for name in names}
    return [tables.make(number, together, names[0], names[1:], labels) for number in numbers]


def _beside_the_papers(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """The runs with their settings as the study names them, which may be the paper's names.

    What the command line adds to a label is left out: it is the same for all, and the header of a table states it.
    """
    asked = study.fixed.label
    return frame.assign(setting=[label.removesuffix(asked).strip() for label in frame["setting"]])
