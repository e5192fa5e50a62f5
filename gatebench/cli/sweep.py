"""`gatebench plan` and `gatebench sweep`: what a study would run, and running it."""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench.cli.output import stdout_console

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console, RenderableType

    from gatebench.sweep.plan import PlannedRun
    from gatebench.sweep.study import Combination, Study

StudyName = Annotated[str, typer.Argument(help="A study of ablations/, or the path of one.", metavar="STUDY")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds 0 .. N-1 instead of the study's.", show_default=False)]
Settings = Annotated[
    list[str], typer.Option("--set", help="One more setting of every run: section.key=value. Repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]

_LONGEST_FOLDER = 100


def plan(study: StudyName, seeds: Seeds = None, settings: Settings = [], as_json: AsJson = False) -> None:  # noqa: B006
    """Show what a study would run, what of it is done, and what it costs. Trains nothing, writes nothing."""
    from gatebench.sweep.plan import plan as planned_runs
    from gatebench.sweep.study import load_study

    loaded = load_study(study).changed(n_seeds=seeds, settings=settings)
    runs = planned_runs(loaded)
    if as_json:
        print(json.dumps(_plan_facts(loaded, runs), indent=2, ensure_ascii=False))
        return
    console = stdout_console()
    console.print(_plan_table(loaded, runs))
    console.print(_plan_sentence(runs))


def sweep(
    study: StudyName,
    seeds: Seeds = None,
    settings: Settings = [],  # noqa: B006
    max_parallel: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side (default: one a GPU; on CPU one a core).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train what is missing of a study, print its tables, write them and their figures to results/<study>/."""
    from gatebench.report import tables
    from gatebench.sweep.study import load_study

    loaded = load_study(study).changed(n_seeds=seeds, settings=settings)
    tables.check_available(loaded.tables)
    loaded.runs()

    from rich.console import Console

    console = Console(stderr=True)
    runs = train_study(loaded, console, max_parallel)
    found, shown, files = [], [], []
    for combination in loaded.combinations():
        facts, printed, written = _report(loaded, combination, load_runs(runs, combination))
        found.append(facts)
        shown += printed
        files += written
    if as_json:
        print(json.dumps({"study": loaded.name, "combinations": found}, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        for part in shown:
            stdout_console().print(part)
    print_written(console, files)


def train_study(study: Study, console: Console, max_parallel: int | None) -> list[PlannedRun]:
    """Train what is missing; where runs failed, say so on standard error and exit, 2 where all had bad input."""
    from gatebench.sweep.local import train_missing

    planned, failed = train_missing(study, console, max_parallel=max_parallel)
    if failed:
        for job in failed:
            print(f"gatebench: {job.name} failed: {job.last_message()} ({job.directory / 'log.txt'})", file=sys.stderr)
        raise typer.Exit(2 if all(job.exit_code == 2 for job in failed) else 1)
    return planned


def load_runs(planned: Sequence[PlannedRun], combination: Combination) -> pd.DataFrame:
    """Return the finished runs of one combination as `results.load` does.

    Their `overrides` are this combination's: a run may have been made under another spelling of the same settings.
    """
    from gatebench.report import results

    directories = [run.directory for run in planned if run.combination == combination and run.directory is not None]
    return results.load(directories).assign(overrides=" ".join(combination.overrides))


def print_written(console: Console, files: Sequence[Path]) -> None:
    """List files that were written, on standard error."""
    console.print("written:", style="bold")
    for file in files:
        print(f"  {file}", file=sys.stderr)


def folder_name(label: str) -> str:
    """Return a folder's name for a combination: its settings with what no file system minds; "" for none."""
    name = re.sub(r"[^A-Za-z0-9_.=+-]+", "_", label.replace(" ", "+")).strip("_.")
    if name == label.replace(" ", "+") and len(name) <= _LONGEST_FOLDER:
        return name
    return f"{name[:_LONGEST_FOLDER]}-{zlib.crc32(label.encode()):08x}"


def _report(
    study: Study, combination: Combination, frame: pd.DataFrame
) -> tuple[dict[str, Any], list[RenderableType], list[Path]]:
    """Write the tables and figures of one combination; return them as JSON values, as printed, and their files."""
    from gatebench import variants as registry
    from gatebench.paths import project_root
    from gatebench.report import comparison, figures, tables

    names = study.variant_names()
    baseline, others = names[0], names[1:]
    labels = {name: registry.get(name).label for name in names}
    folder, out = folder_name(combination.label), project_root() / "results" / study.name
    facts: dict[str, Any] = {"overrides": list(combination.overrides), "tables": [], "comparison": None}
    shown: list[RenderableType] = []
    files: list[Path] = []
    for number in study.tables:
        table = tables.make(number, frame, baseline, others, labels)
        files += table.write(out / "tables" / folder)
        facts["tables"].append(table.to_dict())
        shown.append(table.to_rich())
    if others:
        compared = comparison.compare(frame, baseline, others, labels)
        files += compared.write(out / "tables" / folder)
        facts["comparison"] = json.loads(compared.to_json())
        shown += [] if study.tables else [compared.to_rich()]
    files += figures.write(frame, baseline, others, labels, out / "figures" / folder)
    return facts, shown, files


def _plan_facts(study: Study, runs: Sequence[PlannedRun]) -> dict[str, Any]:
    from gatebench.sweep.plan import cost

    rows = []
    for run in runs:
        costs = cost(run)
        rows.append(
            {
                "variant": run.config.variant,
                "seed": run.config.seed,
                "overrides": list(run.combination.overrides),
                "status": run.status,
                "directory": None if run.directory is None else str(run.directory),
                "n_params": costs.n_params,
                "tokens": costs.tokens,
                "flops": costs.flops,
            }
        )
    return {
        "study": study.name,
        "description": study.description,
        "recipe": study.recipe,
        "baseline": study.variant_names()[0],
        "tables": study.tables,
        "runs": rows,
    }


def _plan_table(study: Study, runs: Sequence[PlannedRun]) -> RenderableType:
    """A line a variant and combination, the seeds counted by status."""
    from rich.table import Table

    from gatebench.report.wording import scale
    from gatebench.sweep.plan import cost

    seeds = ", ".join(map(str, study.seeds))
    title = f"{study.name}: {study.description}" if study.description else study.name
    table = Table(title=f"{title}\nrecipe {study.recipe}, seeds {seeds}", title_justify="left", box=None)
    apart = any(run.combination.label for run in runs)
    for name in ("variant", *(["settings"] if apart else []), "runs", "parameters", "tokens a run", "FLOPs a run"):
        table.add_column(name, justify="left" if name in ("variant", "settings", "runs") else "right", overflow="fold")
    groups: dict[tuple[str, Combination], list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.config.variant, run.combination), []).append(run)
    for (variant, combination), members in groups.items():
        costs = cost(members[0])
        cells = [variant, *([combination.label] if apart else []), _counts(members)]
        table.add_row(*cells, f"{costs.n_params:,}", scale(costs.tokens), f"{costs.flops:.2e}")
    return table


def _plan_sentence(runs: Sequence[PlannedRun]) -> str:
    from gatebench.report.wording import scale
    from gatebench.sweep.plan import cost, train_seconds

    missing = [run for run in runs if not run.finished]
    tokens, flops = sum(run.tokens for run in missing), sum(cost(run).flops for run in missing)
    text = f"{len(runs)} runs: {_counts(runs)}."
    if missing:
        text += f" To train: {scale(tokens)} tokens, {flops:.2e} FLOPs"
        if seconds := train_seconds(runs):
            text += f"; the finished ones trained {sum(seconds) / len(seconds):.0f} s each"
        text += "."
    return text


def _counts(runs: Sequence[PlannedRun]) -> str:
    """2 done, 1 missing."""
    counts = {status: sum(run.status == status for run in runs) for status in ("done", "diverged", "begun", "missing")}
    return ", ".join(f"{number} {status}" for status, number in counts.items() if number)
