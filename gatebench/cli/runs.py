"""`gatebench status`, `cancel`, `logs` and `clean`: looking after runs that are going on, or were left."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench.cli.options import AsJson, OtherRecipe, Seeds, Settings, StudyName
from gatebench.cli.output import stdout_console, terminal_table
from gatebench.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gatebench.sweep.plan import PlannedRun
    from gatebench.sweep.status import RunStatus

_ROWS = 40
"""Runs with a row of their own; the sentence below counts all."""


def status(
    study: StudyName,
    seeds: Seeds = None,
    recipe: OtherRecipe = None,
    settings: Settings = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show how the runs of a study stand. Reads the disk alone; asks no scheduler, starts nothing."""
    from gatebench.sweep.plan import plan
    from gatebench.sweep.status import STANDINGS, study_status
    from gatebench.sweep.study import load_study

    loaded = load_study(study).changed(n_seeds=seeds, settings=settings, recipe=recipe)
    planned = plan(loaded)
    standings = study_status(planned)
    counts = Counter(run.standing for run in standings)
    if as_json:
        rows = [_facts(run, standing) for run, standing in zip(planned, standings, strict=True)]
        totals = {standing: counts[standing] for standing in STANDINGS}
        print(json.dumps({"study": loaded.name, "counts": totals, "runs": rows}, indent=2, ensure_ascii=False))
        return
    going = [
        pair for pair in zip(planned, standings, strict=True) if pair[1].standing in ("running", "stale", "failed")
    ]
    console = stdout_console()
    if going:
        console.print(_table(loaded.name, going[:_ROWS]))
    if len(going) > _ROWS:
        console.print(f"and {len(going) - _ROWS} more like these (--json lists all)")
    listed = ", ".join(f"{counts[standing]} {standing}" for standing in STANDINGS if counts[standing])
    console.print(f"{len(planned)} runs: {listed}.")


def cancel(study: StudyName) -> None:
    """End the sweep of a study: its jobs in the queue, and the sweep on this machine. What is saved resumes."""
    from gatebench.sweep import squeue
    from gatebench.sweep.pool import stop_pools_here
    from gatebench.sweep.study import load_study
    from gatebench.sweep.submissions import queued, submissions

    name = load_study(study).name
    known = submissions(name)
    places = queued(name) if known else {}
    if places is None:
        print("gatebench: squeue does not answer here; jobs in the queue, if any, stay", file=sys.stderr)
    active = {array for array, _ in places or {}}
    for submission in known:
        if names := [array.name for array in submission.arrays() if array.name in active]:
            submission.cancelled.touch()  # before the jobs hear of it: none queues itself again
            squeue.cancel(names)
    stopped = ", ".join(map(str, stop_pools_here(name)))
    here = f"the sweep here (process {stopped}) was told to stop" if stopped else "no sweep here"
    print(f"{name}: {len(places or {})} jobs cancelled, {here}", file=sys.stderr)


def logs(
    run: Annotated[str, typer.Argument(help="A run directory, or a part of its name that no other run has.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the run has its result.")] = False,
    lines: Annotated[int | None, typer.Option("-n", min=1, help="Only the last lines.", show_default=False)] = None,
) -> None:
    """Print the log of a run: messages, a line a tenth, and what it ended with."""
    from gatebench.training.rundir import RunDirectory

    files = RunDirectory(_find(run))
    text = files.log.read_text(encoding="utf-8", errors="replace") if files.log.is_file() else ""
    shown = text.splitlines(keepends=True)
    sys.stdout.write("".join(shown if lines is None else shown[-lines:]))
    position = len(text.encode())
    while follow:
        sys.stdout.flush()
        done = files.is_done()
        if files.log.is_file():
            with open(files.log, "rb") as log:
                log.seek(position)
                new = log.read()
            position += len(new)
            sys.stdout.write(new.decode("utf-8", errors="replace"))
        if done:
            break
        time.sleep(0.5)


def clean(
    study: Annotated[str | None, typer.Argument(help="A study: its unfinished runs.", metavar="[STUDY]")] = None,
    older: Annotated[
        float | None, typer.Option(help="Of any study, unchanged for so many days.", min=0, show_default=False)
    ] = None,
    done: Annotated[bool, typer.Option("--done", help="Remove finished runs, too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove what stopped runs have left, and ended submissions. Lists it and asks; never a run that is going on."""
    from gatebench.sweep import clean as cleaning
    from gatebench.sweep.plan import plan
    from gatebench.sweep.study import load_study

    if (study is None) == (older is None):
        raise UserError("clean: say what; legal: the name of a study, or --older DAYS")
    if study is not None:
        loaded = load_study(study)
        leftovers = cleaning.leftovers_of_study(loaded.name, plan(loaded), done=done)
    else:
        assert older is not None
        leftovers = cleaning.older_leftovers(older, done=done)
    if not leftovers:
        print("nothing to remove", file=sys.stderr)
        return
    for leftover in leftovers:
        print(f"{leftover.size / 1e6:9.1f} MB  {leftover.what:<10}  {leftover.path}", file=sys.stderr)
    total = f"{len(leftovers)} folders, {sum(leftover.size for leftover in leftovers) / 1e6:.1f} MB"
    if not (yes or _agrees(f"remove these {total}?")):
        raise typer.Exit(1)
    cleaning.remove(leftovers)
    print(f"removed {total}", file=sys.stderr)


def _agrees(question: str) -> bool:
    """Ask. Raises UserError where nobody is there to answer."""
    if not sys.stdin.isatty():
        raise UserError(f"clean: {question} There is no terminal to ask at; legal here: --yes")
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        return False


def _facts(run: PlannedRun, standing: RunStatus) -> dict[str, Any]:
    where = {"variant": run.config.variant, "seed": run.config.seed, "overrides": list(run.combination.settings.words)}
    directory = None if run.directory is None else str(run.directory)
    return {**where, "directory": directory, "steps": run.config.train.steps, **dataclasses.asdict(standing)}


def _table(name: str, going: list[tuple[PlannedRun, RunStatus]]) -> RenderableType:
    from gatebench.report.tables.blocks import Column

    rows = []
    for run, status in going:
        reason = {"outside": " (from outside)", "own": " (own error)", None: ""}[status.reason]
        rows.append(
            (
                " ".join(filter(None, (f"{run.config.variant} seed {run.config.seed}", run.combination.label))),
                status.standing + reason,
                status.host or "-",
                "-" if status.heartbeat_age_s is None else f"{status.heartbeat_age_s:.0f} s",
                f"{status.step or 0}/{run.config.train.steps}",
                "-" if status.loss is None else f"{status.loss:.3f}",
                "-" if status.left_s is None or status.standing != "running" else f"{status.left_s:.0f} s",
                (status.message or "")[:80],
            )
        )
    columns = ("run", "status", "where", "last sign", "step", "loss", "left", Column("", words=True))
    return terminal_table(columns, rows, n_words=3, title=name)


def _find(name: str) -> Path:
    """Return the run directory that is meant. Raises UserError where none or several are."""
    from gatebench.paths import runs_dir

    if (Path(name) / "config.yaml").is_file():
        return Path(name)
    known = {
        f"{path.parent.parent.name}/{path.parent.name}": path.parent for path in runs_dir().glob("*/*/config.yaml")
    }
    matching = (
        [known[name]] if name in known else [path for known_as, path in sorted(known.items()) if name in known_as]
    )
    if len(matching) == 1:
        return matching[0]
    if not matching:
        raise UserError(f"run '{name}': not found below {runs_dir()}; legal: a run directory, or a part of its name")
    listed = ", ".join(f"{path.parent.name}/{path.name}" for path in matching[:4])
    raise UserError(f"run '{name}': {len(matching)} runs have that in their name ({listed}, ...); legal: more of it")
