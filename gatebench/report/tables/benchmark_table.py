"""Benchmarks of a study's runs: every task's score and bits per byte of the right answer, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from gatebench.report.analysis.comparison import run_facts
from gatebench.report.analysis.estimate import Estimate, estimate
from gatebench.report.analysis.flags import blocking_texts, comparison_flags
from gatebench.report.analysis.stats import Comparison, judge_family, paired_comparison
from gatebench.report.read import benchmark_results as results
from gatebench.report.tables.blocks import AT_CHANCE, MARKS, Cell, Column, Legend, Table, table
from gatebench.report.tables.document import Document
from gatebench.report.text import NOTHING, mean_and_interval, number

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
    comparison: Comparison | None
    """With the baseline, paired by seed; None for the baseline itself."""

    @property
    def at_chance(self) -> bool:
        """Whether guessing lies within the score's interval; False for bits per byte."""
        return self.estimate.at_chance


@dataclass(frozen=True)
class BenchmarkTable:
    """All of them."""

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
        others = [(entry, entry.comparison) for entry in found if entry.comparison]
        reasons = [_reasons(entry, blocked, guessed, apart) for entry, _ in others]
        judged = iter(judge_family([comparison for _, comparison in others], reasons))
        entries += [replace(entry, comparison=next(judged)) if entry.comparison else entry for entry in found]
    return BenchmarkTable(
        baseline=baseline,
        labels={name: (labels or {}).get(name, name) for name in names},
        facts=run_facts(runs, by_name[baseline]),
        tasks={task: _task(runs, task) for task in tasks},
        entries=tuple(entries),
    )


def document(found: BenchmarkTable) -> Document:
    """A table a measure, a row a variant and a column a task, then the tasks."""
    tasks = [
        (name, f"{task['n']:,}", number(task["chance"], "points"), "; ".join(task["asked"]))
        for name, task in found.tasks.items()
    ]
    columns = ("task", "items", "chance", Column("asked", words=True))
    numbers = [_numbers(entry, found.tasks[entry.task]) for entry in found.entries]
    by_seed = [{str(seed): value for seed, value in entry.estimate.by_seed.items()} for entry in found.entries]
    return Document(
        name="benchmarks",
        title="Benchmarks",
        blocks=(
            *(one for measure in MEASURES if (one := _grid(found, measure))),
            table(columns, tasks, title="Tasks", in_terminal=False),
            Legend(_legend(found)),
        ),
        facts=found.facts,
        frame=pd.DataFrame.from_records(numbers),
        content={
            "schema": 1,
            "baseline": found.baseline,
            "facts": found.facts,
            "tasks": found.tasks,
            "entries": [one | {"by_seed": values} for one, values in zip(numbers, by_seed, strict=True)],
        },
    )


def _grid(found: BenchmarkTable, measure: str) -> Table | None:
    """A row a variant, a column a task that the measure exists for; None without any."""
    tasks = [name for name in found.tasks if any(found.entry(v, name, measure).estimate.n for v in found.labels)]
    rows = [
        [Cell(label), *(_cell(found.entry(variant, task, measure)) for task in tasks)]
        for variant, label in found.labels.items()
    ]
    return table(["", *tasks], rows, title=MEASURES[measure][1]) if tasks else None


def _cell(entry: Entry) -> Cell:
    found = entry.estimate
    if not found.n:
        return Cell(NOTHING)
    text = mean_and_interval(found.mean, found.half_width, MEASURES[entry.measure][2])
    verdict = entry.comparison.verdict if entry.comparison else None
    return Cell(f"{text} {AT_CHANCE}" if entry.at_chance else text, verdict)


def _numbers(entry: Entry, task: Mapping[str, Any]) -> dict[str, Any]:
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
    found = entry.comparison
    if found is None:
        return numbers
    numbers |= {"difference": found.mean, "low": found.low, "high": found.high, "p": found.p, "p_holm": found.p_holm}
    return numbers | {"verdict": found.verdict or "", "reason": found.reason or ""}


def _legend(found: BenchmarkTable) -> str:
    several = len(found.facts["seeds"]) > 1
    words = ", ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    return " ".join(
        [
            "Means over seeds ± half the width of the 95 % t interval." if several else "One seed: no interval.",
            f"{AT_CHANCE} at chance: guessing lies within the 95 % interval over items.",
            f"Against {found.baseline}, paired by seed, Holm over all tasks and variants of a measure: {words}.",
            "The items are the same at every seed. Tasks gb_... are this project's own (docs/benchmarks.md).",
        ]
    )


def _entry(by_name: Mapping[str, pd.DataFrame], baseline: str, name: str, task: str, measure: str) -> Entry:
    own, theirs = (estimate(by_name[one], measure + task) for one in (name, baseline))
    compared = None
    if name != baseline:
        sides = (pd.Series(one.by_seed, dtype=float) for one in (theirs, own))
        compared = paired_comparison(*sides, lower_is_better=measure == results.BITS)
    return Entry(name, task, measure, own, compared)


def _reasons(
    entry: Entry, blocked: Mapping[str, Sequence[str]], guessed: Container[str], apart: Container[str]
) -> list[str]:
    """Why an entry can have no verdict; ``guessed`` are the tasks on which the baseline is at chance."""
    found = list(blocked.get(entry.variant, []))
    found += [ASKED_DIFFERENTLY] * (entry.task in apart)
    return found + [GUESSED] * (entry.at_chance and entry.task in guessed)


def _task(runs: pd.DataFrame, task: str) -> dict[str, Any]:
    known = runs[runs[results.SCORE + task].notna()]
    return {
        "n": int(known[results.ITEMS + task].min()),
        "chance": float(known[results.CHANCE + task].mean()),
        "asked": sorted(map(str, known[results.ASKED + task].unique())),
    }
