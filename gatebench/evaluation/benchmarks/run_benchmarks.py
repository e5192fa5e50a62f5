"""Every task that a checkpoint lacks a result of, one file each, so that a stop loses at most the task at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatebench import __version__
from gatebench.errors import UserError
from gatebench.evaluation.benchmarks.bundled import BundledTask, bundled
from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
from gatebench.evaluation.benchmarks.harness_tasks import HARNESS, HarnessTask
from gatebench.evaluation.benchmarks.suites import BUNDLED, DoesNotFit, of_suite
from gatebench.training.rundir import read_json, write_json

SCHEMA = 1
Record = dict[str, Any]
"""What one file of results holds (docs/benchmarks.md)."""


@dataclass(frozen=True)
class Options:
    """How every task is asked."""

    shots: int | None = None
    """Examples in front of a question; None is the paper's number for its tasks, and else the task's own."""
    limit: int | None = None
    """Ask only so many items; such results are kept apart, and in no table."""
    seed: int = 1234
    """Of drawn examples and of RULER's samples."""
    task_dir: Path | None = None
    unsafe_code: bool = False


def run(
    checkpoints: Sequence[Checkpoint],
    options: Options,
    *,
    names: Sequence[str] = (),
    suite: str = "offline",
    log: Callable[[str], None] = lambda line: None,
) -> list[list[Record]]:
    """Return every checkpoint's results on the tasks `names`, or on a suite where there are none.

    All data is read before any model. Raises UserError for what cannot be asked: unknown tasks, missing data, a run
    without a model, code without permission, a named task that does not fit (one of a suite is left out).
    """
    known: dict[str, BundledTask | HarnessTask] = {}
    planned = []
    for checkpoint in checkpoints:
        checkpoint.check()
        context = checkpoint.context if suite == "offline" and not names else 0
        own = names or of_suite(suite, context=context, unsafe_code=options.unsafe_code)
        known |= {name: _task(name, options) for name in own if name not in known}
        planned.append([known[name] for name in dict.fromkeys(own)])
    for checkpoint, tasks in zip(checkpoints, planned, strict=True):
        for task in tasks:
            if isinstance(task, HarnessTask) and stored(checkpoint, task, options) is None:
                _ = task.loaded
    found = []
    for checkpoint, tasks in zip(checkpoints, planned, strict=True):
        found.append(run_tasks(checkpoint, tasks, options, log=log, leave_out=not names))
        checkpoint.close()
    return found


def _task(name: str, options: Options) -> BundledTask | HarnessTask:
    task = bundled(name) if name.startswith(BUNDLED) else HarnessTask(name, options.task_dir)
    if task.runs_code and not options.unsafe_code:
        raise UserError(f"task '{name}': runs programs that the model writes; legal: with --confirm-run-unsafe-code")
    return task


def stored(checkpoint: Checkpoint, task: BundledTask | HarnessTask, options: Options) -> Record | None:
    """Return the result that is there already; None where there is none, or it was asked in another way."""
    record = read_json(_path(checkpoint, task, options))
    return record if record is not None and record.get("asked") == _asked(checkpoint, task, options) else None


def run_tasks(
    checkpoint: Checkpoint,
    tasks: Sequence[BundledTask | HarnessTask],
    options: Options,
    *,
    log: Callable[[str], None],
    leave_out: bool = False,
) -> list[Record]:
    """Return the result of every task in order, asking the model only what no file answers.

    A task that does not fit the model's context is a UserError (what was finished before stays), or, with `leave_out`,
    said so and left out.
    """
    records = []
    for number, task in enumerate(tasks, start=1):
        record = stored(checkpoint, task, options)
        if record is None:
            log(f"{checkpoint.name}: {task.name} ({number} of {len(tasks)})")
            try:
                record = _measure(checkpoint, task, options)
            except DoesNotFit as error:
                if not leave_out:
                    raise
                log(f"left out: {error}")
                continue
            checkpoint.folder.mkdir(parents=True, exist_ok=True)
            write_json(_path(checkpoint, task, options), record)
        records.append(record)
    return records


def _measure(checkpoint: Checkpoint, task: BundledTask | HarnessTask, options: Options) -> Record:
    model, started = checkpoint.model, time.monotonic()
    try:
        if isinstance(task, BundledTask):
            scores = task.score(model, checkpoint.corpus, options.limit, options.seed)
        else:
            scores = task.score(model, options.shots, options.limit, options.seed, code=options.unsafe_code)
    except DoesNotFit as error:
        raise DoesNotFit(f"task '{task.name}' with {_shots(task, options)} shots: {error}") from None
    return {
        "schema": SCHEMA,
        "asked": _asked(checkpoint, task, options),
        **scores,
        "context": model.max_length,
        "bos": model.bos,
        "dtype": "float32",
        "batch_size": checkpoint.batch_size,
        "gatebench_version": __version__,
        "wall_s": round(time.monotonic() - started, 2),
    }


def _asked(checkpoint: Checkpoint, task: BundledTask | HarnessTask, options: Options) -> Record:
    """Return everything that makes two results comparable, and one of them usable again."""
    ours = isinstance(task, BundledTask)
    return {
        "task": task.name,
        "task_version": task.version,
        "harness": HARNESS,
        "shots": _shots(task, options),
        "limit": options.limit,
        "seed": options.seed,
        "checkpoint": checkpoint.name,
        "corpus": checkpoint.corpus.name if ours else None,
        "corpus_fingerprint": checkpoint.corpus.fingerprint if ours else None,
    }


def _shots(task: BundledTask | HarnessTask, options: Options) -> int:
    return task.shots if isinstance(task, BundledTask) or options.shots is None else options.shots


def _path(checkpoint: Checkpoint, task: BundledTask | HarnessTask, options: Options) -> Path:
    part = "" if options.limit is None else f"-limit{options.limit}"
    return checkpoint.folder / f"{task.name}{part}.json"
