"""Benchmarks of a study's runs: every task's score and bits per byte of the right answer, paired by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gatebench.report.analysis.comparison import run_facts
from gatebench.report.analysis.flags import blocking_texts, comparison_flags
from gatebench.report.analysis.stats import Comparison, judge, judge_family, paired_comparison
from gatebench.report.read import benchmark_results as results
from gatebench.report.tables.comparison_table import markdown_table, without_nan, write_forms
from gatebench.report.tables.paper_table import Estimate
from gatebench.report.tables.paper_table_rendering import AT_CHANCE, MARKS
from gatebench.report.tables.paper_tables import estimate
from gatebench.report.tables.text import NOTHING, header_lines, mean_and_interval, number

STEM = "benchmarks"
GUESSED = "variant and baseline are at chance"
ASKED_DIFFERENTLY = "the runs were not asked the same items in the same way"
MEASURES = {
    results.SCORE: ("score", "Score, percent", "points"),
    results.BITS: ("answer_bpb", "Bits per byte of the right answer", "bits"),
}
"""By prefix of the columns: a name, a heading and a kind of ``wording.number``."""


@dataclass(frozen=True)
class Entry:
    """One variant on one task, by one measure."""

    variant: str
    task: str
    measure: str
    """A prefix of :data:`MEASURES`."""
    estimate: Estimate
    at_chance: bool
    """Whether guessing lies within the score's interval; False for bits per byte."""
    comparison: Comparison | None
    """With the baseline, paired by seed; None for the baseline itself."""


@dataclass(frozen=True)
class BenchmarkTable:
    """All of them; the methods give it in the forms that people and programs read."""

    baseline: str
    labels: Mapping[str, str]
    facts: Mapping[str, Any]
    """What every number depends on, as ``comparison.run_facts`` gives it."""
    tasks: Mapping[str, Mapping[str, Any]]
    """By name: `n` items, `chance` in percent, and how they were `asked`, in words, several where runs differ."""
    entries: tuple[Entry, ...]

    def entry(self, variant: str, task: str, measure: str = results.SCORE) -> Entry:
        """One of the entries."""
        return next(e for e in self.entries if (e.variant, e.task, e.measure) == (variant, task, measure))

    def to_rich(self) -> Group:
        """For a terminal: a table a measure."""
        parts: list[Any] = []
        for measure, (_, title, _) in MEASURES.items():
            grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
            headers, rows = self._grid(measure)
            for place, header in enumerate(headers):
                grid.add_column(header, justify="right" if place else "left", overflow="fold")
            for cells in rows:
                grid.add_row(*cells)
            parts += [grid] if rows else []
        return Group(*parts, Text(self._legend(), style="dim"))

    def to_markdown(self) -> str:
        """One Markdown document."""
        lines = ["# Benchmarks", ""]
        lines += [f"- {part}" for line in header_lines(self.facts) for part in line.split("; ")]
        for measure, (_, title, _) in MEASURES.items():
            headers, rows = self._grid(measure)
            if rows:
                lines += ["", f"## {title}", "", *markdown_table(headers, rows, words_last=False)]
        cells = [
            [name, f"{task['n']:,}", number(task["chance"], "points"), "; ".join(task["asked"])]
            for name, task in self.tasks.items()
        ]
        lines += ["", "## Tasks", "", *markdown_table(["task", "items", "chance", "asked"], cells)]
        return "\n".join([*lines, "", self._legend()]) + "\n"

    def to_frame(self) -> pd.DataFrame:
        """A row a variant, task and measure, every number unrounded."""
        return pd.DataFrame.from_records([self._numbers(entry) for entry in self.entries])

    def to_json(self) -> str:
        """Plain values as text; a number that does not exist is null."""
        content = {
            "schema": 1,
            "baseline": self.baseline,
            "facts": dict(self.facts),
            "tasks": {name: dict(task) for name, task in self.tasks.items()},
            "entries": [self._numbers(e) | {"by_seed": _by_seed(e.estimate)} for e in self.entries],
        }
        return json.dumps(without_nan(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, directory: Path) -> list[Path]:
        """Write benchmarks.md, .csv and .json; the same runs give the same bytes."""
        return write_forms(directory, STEM, self.to_markdown(), self.to_frame(), self.to_json())

    def _grid(self, measure: str) -> tuple[list[str], list[list[str]]]:
        """A row a variant, a column a task that the measure exists for."""
        own = [entry for entry in self.entries if entry.measure == measure]
        tasks = [name for name in self.tasks if any(e.task == name and e.estimate.n for e in own)]
        rows = [
            [label, *(self._cell(self.entry(variant, task, measure)) for task in tasks)]
            for variant, label in self.labels.items()
        ]
        return ["", *tasks], rows if tasks else []

    def _cell(self, entry: Entry) -> str:
        kind, found = MEASURES[entry.measure][2], entry.estimate
        text = mean_and_interval(found.mean, found.half_width, kind)
        verdict = entry.comparison.verdict if entry.comparison else None
        marks = [AT_CHANCE] * entry.at_chance + ([MARKS[verdict]] if verdict else [])
        return " ".join([text, *marks]) if found.n else NOTHING

    def _numbers(self, entry: Entry) -> dict[str, Any]:
        task, found = self.tasks[entry.task], entry.comparison
        numbers: dict[str, Any] = {
            "variant": entry.variant,
            "task": entry.task,
            "measure": MEASURES[entry.measure][0],
            "n_seeds": entry.estimate.n,
            "n_items": task["n"],
            "mean": entry.estimate.mean,
            "half_width": entry.estimate.half_width,
            "chance": task["chance"] if entry.measure == results.SCORE else math.nan,
            "at_chance": entry.at_chance,
        }
        if found is None:
            return numbers
        numbers |= {
            "difference": found.mean,
            "low": found.low,
            "high": found.high,
            "p": found.p,
            "p_holm": found.p_holm,
        }
        return numbers | {"verdict": found.verdict or "", "reason": found.reason or ""}

    def _legend(self) -> str:
        several = len(self.facts["seeds"]) > 1
        words = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
        return " ".join(
            [
                "Means over seeds ± half the width of the 95 % t interval." if several else "One seed: no interval.",
                f"{AT_CHANCE} at chance: guessing lies within the 95 % interval over items.",
                f"Against {self.baseline}, paired by seed, Holm over all tasks and variants of a measure: {words}.",
                "The items are the same at every seed. Tasks gb_... are this project's own (docs/benchmarks.md).",
            ]
        )


def make(
    frame: pd.DataFrame, baseline: str, variants: Sequence[str], labels: Mapping[str, str] | None = None
) -> BenchmarkTable | None:
    """The table of the runs of ``baseline`` and ``variants`` in ``frame`` (``results.load``); None without a result.

    Variants that were asked nothing are left out.
    """
    tasks = results.tasks(frame[frame["variant"].isin([baseline, *variants])])
    if not tasks:
        return None
    asked = set(frame["variant"][frame[[results.SCORE + task for task in tasks]].notna().any(axis=1)])
    names = [baseline, *(name for name in variants if name != baseline and name in asked)]
    runs = frame[frame["variant"].isin(names)]
    by_name = {name: runs[runs["variant"] == name] for name in names}
    blocked = {n: blocking_texts(comparison_flags(by_name[baseline], by_name[n], n)) for n in names[1:]}
    apart = {task for task in tasks if len(runs[[p + task for p in (results.ASKED, results.ITEMS)]].value_counts()) > 1}
    entries: list[Entry] = []
    for measure in MEASURES:
        found = [_entry(by_name, baseline, name, task, measure) for name in names for task in tasks]
        guessed = {entry.task for entry in found if entry.variant == baseline and entry.at_chance}
        reasons = [_reasons(entry, blocked, guessed, apart) for entry in found]
        entries += _judged(found, reasons)
    return BenchmarkTable(
        baseline=baseline,
        labels={name: (labels or {}).get(name, name) for name in names},
        facts=run_facts(runs, by_name[baseline]),
        tasks={task: _task(runs, task) for task in tasks},
        entries=tuple(entries),
    )


def _entry(by_name: Mapping[str, pd.DataFrame], baseline: str, name: str, task: str, measure: str) -> Entry:
    own, theirs = (estimate(by_name[one], measure + task) for one in (name, baseline))
    compared = None
    if name != baseline:
        sides = (pd.Series(one.by_seed, dtype=float) for one in (theirs, own))
        compared = paired_comparison(*sides, lower_is_better=measure == results.BITS)
    guessed = measure == results.SCORE and results.runs_at_chance(by_name[name], task)
    return Entry(name, task, measure, own, guessed, compared)


def _reasons(
    entry: Entry, blocked: Mapping[str, Sequence[str]], guessed: Container[str], apart: Container[str]
) -> list[str]:
    """Why an entry can have no verdict; ``guessed`` are the tasks on which the baseline is at chance."""
    found = list(blocked.get(entry.variant, []))
    found += [ASKED_DIFFERENTLY] * (entry.task in apart)
    return found + [GUESSED] * (entry.at_chance and entry.task in guessed)


def _judged(found: Sequence[Entry], reasons: Sequence[Sequence[str]]) -> list[Entry]:
    """The entries of one measure with their verdicts, those without a reason against one in one family."""
    family = iter(
        judge_family([e.comparison for e, why in zip(found, reasons, strict=True) if e.comparison and not why])
    )
    judged = []
    for entry, why in zip(found, reasons, strict=True):
        compared = entry.comparison
        if compared is not None:
            compared = judge(compared, math.nan, why) if why else next(family)
        judged.append(replace(entry, comparison=compared))
    return judged


def _task(runs: pd.DataFrame, task: str) -> dict[str, Any]:
    known = runs[runs[results.SCORE + task].notna()]
    return {
        "n": int(known[results.ITEMS + task].min()),
        "chance": float(known[results.CHANCE + task].mean()),
        "asked": sorted(map(str, known[results.ASKED + task].unique())),
    }


def _by_seed(found: Estimate) -> dict[str, float]:
    return {str(seed): value for seed, value in found.by_seed.items()}
