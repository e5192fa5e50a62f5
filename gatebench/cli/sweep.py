"""`gatebench sweep`: train what is missing of a study, and write its tables and figures."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from gatebench.cli.options import AsJson, MaxParallel, OtherRecipe, Seeds, Settings, StudyName
from gatebench.cli.output import print_written, stderr_console, stdout_console


def sweep(
    study: StudyName,
    seeds: Seeds = None,
    recipe: OtherRecipe = None,
    settings: Settings = [],  # noqa: B006
    on: Annotated[
        Literal["local", "slurm"], typer.Option(help="Where to train: on this machine, or as job arrays.")
    ] = "local",
    max_parallel: MaxParallel = None,
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
    from gatebench.report.analysis import paper_tables as tables
    from gatebench.sweep.study import load_study
    from gatebench.sweep.train_study import Launch, train_study

    loaded = load_study(study).changed(n_seeds=seeds, settings=settings, recipe=recipe)
    tables.check_available(loaded.tables)
    loaded.runs()
    options = Launch(on, max_parallel, gpus_per_run, profile, retry_failed, detach)

    console = stderr_console()
    for name, reason in loaded.skipped().items():
        console.print(f"left out: {name} ({reason})", highlight=False, markup=False, soft_wrap=True)
    runs = train_study(loaded, console, options)
    from gatebench.report import page, study_report
    from gatebench.report.analysis.claims import from_results
    from gatebench.report.read.study_runs import collect

    report = study_report.write(collect(loaded, runs), commit=loaded.as_declared)
    files = list(report.files)
    if loaded.as_declared:
        files.append(page.write(report, from_results()))
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
    print_written(files)
