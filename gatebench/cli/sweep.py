"""`gatebench sweep`: train what is missing of a study, and write its tables and figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from gatebench.cli.output import stdout_console
from gatebench.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from gatebench.sweep.job import Job
    from gatebench.sweep.plan import PlannedRun
    from gatebench.sweep.study import Combination, Study

StudyName = Annotated[str, typer.Argument(help="A study of ablations/, or the path of one.", metavar="STUDY")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds 0 .. N-1 instead of the study's.", show_default=False)]
Settings = Annotated[
    list[str], typer.Option("--set", help="One more setting of every run: section.key=value. Repeatable.")
]
OtherRecipe = Annotated[
    str | None, typer.Option("--recipe", help="Another recipe than the study's.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]


def sweep(
    study: StudyName,
    seeds: Seeds = None,
    recipe: OtherRecipe = None,
    settings: Settings = [],  # noqa: B006
    on: Annotated[
        Literal["local", "slurm"], typer.Option(help="Where to train: on this machine, or as job arrays.")
    ] = "local",
    max_parallel: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side (default: one a GPU; on CPU one a core).")
    ] = None,
    gpus_per_run: Annotated[
        float | None, typer.Option(help="GPUs for each run; below 1, runs share one (local).", show_default=False)
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="SLURM: a profile of experiments/clusters/, or the path of one.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try runs again that ended by an error of their own.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="SLURM: submit and return.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train what is missing of a study, print its tables, write them and their figures to results/<study>/."""
    from gatebench.report.tables import paper_tables as tables
    from gatebench.sweep.study import load_study

    loaded = load_study(study).changed(n_seeds=seeds, settings=settings, recipe=recipe)
    tables.check_available(loaded.tables)
    loaded.runs()
    options = Launch(on, max_parallel, gpus_per_run, profile, retry_failed, detach)
    options.check()

    from rich.console import Console

    console = Console(stderr=True)
    for name, reason in loaded.skipped().items():
        console.print(f"left out: {name} ({reason})", highlight=False, markup=False, soft_wrap=True)
    runs = train_study(loaded, console, options)
    from gatebench.report import study_report
    from gatebench.report.analysis.claims import from_results
    from gatebench.report.read.study_runs import collect

    report = study_report.write(collect(loaded, runs), commit=loaded.as_declared)
    files = list(report.files)
    if loaded.as_declared:
        files.append(study_report.write_page(report, from_results()))
    if as_json:
        content: dict[str, Any] = {"study": loaded.name, "combinations": [s.to_dict() for s in report.settings]}
        if report.across_settings is not None:
            content["settings"] = report.across_settings.to_dict()
        if report.over_rates:
            content["learning_rates"] = [table.to_dict() for table in report.over_rates]
        print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        for part in report.printed():
            stdout_console().print(part)
    print_written(console, files)


class Launch(NamedTuple):
    """How the missing runs of a study are trained."""

    on: Literal["local", "slurm"] = "local"
    max_parallel: int | None = None
    gpus_per_run: float | None = None
    profile: str | None = None
    retry_failed: bool = False
    detach: bool = False

    def check(self) -> None:
        """Raise UserError for options that do not go together."""
        if self.on == "local" and (self.profile is not None or self.detach):
            raise UserError(f"--{'detach' if self.detach else 'profile'}: goes with --on slurm; legal here: without it")
        if self.gpus_per_run is not None and self.gpus_per_run <= 0:
            raise UserError(f"--gpus-per-run={self.gpus_per_run:g}: must be above 0")


def train_study(study: Study, console: Console, launch: Launch) -> list[PlannedRun]:
    """Train what is missing; where runs have no result, say why on standard error and exit (2: all had bad input).

    A study with `extend` trains everything that is to be extended first.
    """
    from gatebench.sweep import local

    if study.extend is not None:
        train_study(study.first_stage(), console, launch)

    how: dict[str, Any] = {
        "max_parallel": launch.max_parallel,
        "gpus_per_run": launch.gpus_per_run,
        "retry_failed": launch.retry_failed,
    }
    if launch.on == "slurm":
        from gatebench.sweep import slurm
        from gatebench.sweep.profiles import load_profile

        profile = load_profile(launch.profile or "default")
        planned, left = slurm.train_missing(study, console, profile, **how, detach=launch.detach)
    else:
        planned, left = local.train_missing(study, console, **how)
    for job in left:
        print(f"gatebench: {job.name} {_why(job)} ({job.directory / 'log.txt'})", file=sys.stderr)
    if left:
        if any(job.state == "failed" and job.starts == 0 for job in left):
            print(
                "gatebench: runs that ended by an error of their own: --retry-failed tries them again", file=sys.stderr
            )
        raise typer.Exit(2 if all(job.exit_code == 2 for job in left) else 1)
    if not all(run.finished for run in planned):
        raise typer.Exit(0)  # submitted, and not waited for
    return planned


def _why(job: Job) -> str:
    """Say why a run has no result."""
    if job.state == "running":
        return "is going on elsewhere: the same line again, once it is done"
    return f"failed: {job.last_message()}"


def load_runs(planned: Sequence[PlannedRun], combination: Combination) -> pd.DataFrame:
    """Return the finished runs of one combination as `results.load` does.

    Their `overrides` are this combination's: a run may have been made under another spelling of the same settings.
    """
    from gatebench.report.read import results

    directories = [run.directory for run in planned if run.combination == combination and run.directory is not None]
    return results.load(directories).assign(overrides=" ".join(combination.overrides))


def print_written(console: Console, files: Sequence[Path]) -> None:
    """List files that were written, on standard error."""
    console.print("written:", style="bold")
    for file in files:
        print(f"  {file}", file=sys.stderr)
