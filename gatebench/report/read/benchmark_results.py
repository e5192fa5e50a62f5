"""Benchmark results of runs, `<run>/benchmarks/<task>.json`, as columns of `results.load`.

A task of the paper's, asked as the paper's suite asks it, has the name of the paper's column (`hellaswag`); any other
way of asking it has a name of its own (`hellaswag-0shot`), and so have our tasks (`gb_...`). Results of `--limit` are
no column.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from gatebench.errors import UserError
from gatebench.evaluation.benchmarks.suites import BUNDLED, FOLDER, PAPER
from gatebench.files import read_object

SCORE, STDERR, CHANCE, BITS = "bench/", "bench_stderr/", "bench_chance/", "bench_bpb/"
"""Prefixes: score, its standard error over items and the score of guessing, all in percent; bits per byte of the
right answer."""
ITEMS, ASKED = "bench_n/", "bench_asked/"
"""Prefixes: how many items; version, shots, seed, harness and corpus, in words."""


def columns(run_dir: str | Path) -> dict[str, Any]:
    """The columns of one run; none where it has no results. Raises :class:`UserError` for a file that is none."""
    found: dict[str, Any] = {}
    for path in sorted((Path(run_dir) / FOLDER).glob("*.json")):
        try:
            record = read_object(path, "delete it and ask again")
            asked = record["asked"]
            if asked["limit"] is not None:
                continue
            name = column_name(asked["task"], asked["shots"])
            percent = {SCORE: record["score"], STDERR: record["stderr"], CHANCE: record["chance"]}
            found |= {prefix + name: None if value is None else 100 * value for prefix, value in percent.items()}
            found |= {BITS + name: record["answer_bpb"], ITEMS + name: record["n"], ASKED + name: _in_words(asked)}
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path}: no benchmark result ({type(error).__name__}: {error}); delete it and ask again"
            ) from None
    return found


def column_name(task: str, shots: int) -> str:
    """What a task is called in columns and tables, asked with so many examples."""
    if task.startswith(BUNDLED):
        return task
    paper = PAPER.get(task)
    return paper.column if paper and paper.shots == shots else f"{task}-{shots}shot"


def tasks(frame: pd.DataFrame) -> list[str]:
    """The names of the tasks that any run of the frame has a score of, in the frame's order."""
    names = [str(name).removeprefix(SCORE) for name in frame.columns if str(name).startswith(SCORE)]
    return [name for name in names if frame[SCORE + name].notna().any()]


def at_chance(score: float, stderr: float | None, chance: float) -> bool:
    """Whether guessing lies within the score's 95 % interval over items."""
    width = 0.0 if stderr is None or math.isnan(stderr) else 1.96 * stderr
    return abs(score - chance) <= width


def runs_at_chance(runs: pd.DataFrame, task: str) -> bool:
    """The same of the mean over runs: all were asked the same items, so that more runs do not narrow the interval."""
    if CHANCE + task not in runs:
        return False
    known = runs[runs[SCORE + task].notna()]
    score, stderr, chance = (float(known[prefix + task].mean()) for prefix in (SCORE, STDERR, CHANCE))
    return at_chance(score, stderr, chance)  # False without a run: NaN is within nothing


def _in_words(asked: dict[str, Any]) -> str:
    corpus = f" {asked['corpus_fingerprint'][:8]}" if asked["corpus_fingerprint"] else ""
    version = f"v{asked['task_version']} {asked['shots']}-shot seed {asked['seed']}"
    return f"{version} {asked['harness']}{corpus}"
