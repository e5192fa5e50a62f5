"""`gatebench tables`: tables, figures and the report of every study with results, made again from what is there."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from gatebench.cli.options import AsJson
from gatebench.cli.output import stdout_console, terminal_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gatebench.report.study_report import StudyReport


def tables(
    studies: Annotated[
        list[str] | None,
        typer.Argument(help="Studies of ablations/, or paths (default: all with results).", metavar="[STUDY...]"),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(min=1e-6, help="Also test equivalence: Avg PPL within this share of the baseline's, as 0.01."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write tables, figures, report.html and claims from the runs here or, without them, results/<study>/runs.csv."""
    from gatebench.errors import UserError
    from gatebench.paths import project_root
    from gatebench.report import page, study_report
    from gatebench.report.analysis.claims import from_results
    from gatebench.report.read.committed_frames import RUNS
    from gatebench.report.read.study_runs import collect
    from gatebench.report.tables import claims_table
    from gatebench.sweep.study import load_study, study_names

    chosen = studies or study_names()
    reports, empty = [], []
    for name in chosen:
        runs = collect(load_study(name))
        if not len(runs.frame):
            empty.append(name)
            if (runs.folder / RUNS).is_file():
                print(
                    f"{name}: no run in {runs.folder / RUNS} is of the study as it stands: left alone", file=sys.stderr
                )
            continue
        print(f"{name}: {runs.frame['run'].nunique()} finished runs", file=sys.stderr)
        reports.append(study_report.write(runs, margin=margin))
    if studies and empty:
        raise UserError(f"tables: {', '.join(empty)}: no finished run; legal: a study that `gatebench sweep` has run")
    results = from_results()
    claims = claims_table.document(results)
    files = claims.write(project_root() / "results")
    for report in reports:
        files += [*report.files, page.write(report, results)]
    if as_json:
        found = [
            {
                "study": r.runs.study.name,
                "settings": [s.to_dict() for s in r.settings],
                "report": str(r.runs.folder / "report.html"),
            }
            for r in reports
        ]
        content = {"studies": found, "claims": claims.to_dict()["claims"], "files": [str(file) for file in files]}
        print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        stdout_console().print(_overview(reports))
        stdout_console().print(claims_table.document(results, evidence=False).to_rich())
    print(f"written: {len(files)} files below {project_root() / 'results'}", file=sys.stderr)


def _overview(reports: list[StudyReport]) -> RenderableType:
    """A line a study: its runs, and how many variants are better, worse and not told apart."""
    from gatebench.report.analysis.stats import Verdict
    from gatebench.report.tables.blocks import Column

    words = get_args(Verdict)
    rows = []
    for report in reports:
        compared = [setting.comparison for setting in report.settings if setting.comparison]
        verdicts = [item.primary.comparison.verdict for one in compared for item in one.variants]
        name, n_runs = report.runs.study.name, report.runs.frame["run"].nunique()
        counts = (n_runs, report.runs.n_planned, *(verdicts.count(word) for word in (*words, None)))
        rows.append((name, *map(str, counts), f"results/{name}/report.html"))
    columns = ("study", "runs", "planned", *words, "no verdict", Column("report", words=True))
    return terminal_table(columns, rows, title="Studies with results")
