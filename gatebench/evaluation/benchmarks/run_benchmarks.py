"""Every task that a checkpoint lacks a result of, one file each, so that a stop loses at most the task at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gatebench import __version__
from gatebench.errors import DoesNotFit, UserError
from gatebench.evaluation.benchmarks.bundled import BundledTask
from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
from gatebench.evaluation.benchmarks.harness_tasks import HARNESS, HarnessTask
from gatebench.evaluation.benchmarks.suites import BUNDLED, Options, of_suite
from gatebench.files import sealed
from gatebench.training.rundir import read_json, write_json

SCHEMA = 1
Record = dict[str, Any]
"""What one file of results holds (docs/benchmarks.md)."""
Task = BundledTask | HarnessTask
Log = Callable[[str], None]


def run(
    checkpoints: Sequence[Checkpoint],
    options: Options,
    *,
    names: Sequence[str] = (),
    suite: str = "offline",
    log: Log = lambda line: None,
) -> list[list[Record]]:
    """Return every checkpoint's results on the tasks `names`, or on a suite where there are none.

    All data is read before any model. Raises UserError for what cannot be asked: unknown tasks, missing data, a run
    without a model, code without permission or a sandbox, a named task that does not fit (one of a suite is left out).
    """
    known: dict[str, Task] = {}
    planned: list[tuple[Checkpoint, list[Task]]] = []
    for checkpoint in checkpoints:
        checkpoint.check()
        context = checkpoint.context if suite == "offline" and not names else 0
        own = dict.fromkeys(names or of_suite(suite, context=context, unsafe_code=options.unsafe_code))
        known |= {name: _task(name, options, log) for name in own if name not in known}
        planned.append((checkpoint, [known[name] for name in own]))
    for checkpoint, tasks in planned:
        for task in tasks:
            if _stored(checkpoint, task, options) is None:
                task.prepare()
    results = []
    for checkpoint, tasks in planned:
        results.append(list(_results(checkpoint, tasks, options, log, leave_out=not names)))
        checkpoint.close()
    return results


def _task(name: str, options: Options, log: Log) -> Task:
    task = BundledTask(name) if name.startswith(BUNDLED) else HarnessTask(name, options.task_dir)
    if task.runs_code and not options.unsafe_code:
        raise UserError(f"task '{name}': runs programs that the model writes; legal: with --confirm-run-unsafe-code")
    if task.fixes_shots and options.shots not in (None, task.shots):
        log(f"task '{name}': has {task.shots} shots, whatever --shots says")
    return task


def _results(
    checkpoint: Checkpoint, tasks: Sequence[Task], options: Options, log: Log, *, leave_out: bool
) -> Iterable[Record]:
    """Yield the result of every task in order, asking the model only what no file answers.

    A task that does not fit the model's context is a UserError (what was finished before stays), or, with `leave_out`,
    said so and left out.
    """
    for number, task in enumerate(tasks, start=1):
        record = _stored(checkpoint, task, options)
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
            write_json(_path(checkpoint, task, options), sealed(record))
        yield record


def _measure(checkpoint: Checkpoint, task: Task, options: Options) -> Record:
    model, started = checkpoint.model, time.monotonic()
    try:
        scores = task.score(checkpoint, options)
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


def _stored(checkpoint: Checkpoint, task: Task, options: Options) -> Record | None:
    """Return the result that is there already; None where there is none, or it was asked in another way."""
    record = read_json(_path(checkpoint, task, options))
    return record if record is not None and record.get("asked") == _asked(checkpoint, task, options) else None


def _asked(checkpoint: Checkpoint, task: Task, options: Options) -> Record:
    """Return everything that makes two results comparable, and one of them usable again."""
    corpus = checkpoint.corpus if isinstance(task, BundledTask) else None
    return {
        "task": task.name,
        "task_version": task.version,
        "harness": HARNESS,
        "shots": _shots(task, options),
        "limit": options.limit,
        "seed": options.seed,
        **checkpoint.identity,
        **({} if task.own_files is None else {"task_files": task.own_files}),
        "corpus": corpus and corpus.name,
        "corpus_fingerprint": corpus and corpus.fingerprint,
    }


def _shots(task: Task, options: Options) -> int:
    return task.shots if task.fixes_shots or options.shots is None else options.shots


def _path(checkpoint: Checkpoint, task: Task, options: Options) -> Path:
    part = "" if options.limit is None else f"-limit{options.limit}"
    return checkpoint.folder / f"{task.name}{part}.json"
