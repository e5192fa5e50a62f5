"""`gatebench claims`: the paper's sixteen claims, and what the results here say about each."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gatebench.cli.output import stdout_console


def claims(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")] = False,
) -> None:
    """Judge the paper's claims by the runs that `gatebench tables` left in results/<study>/runs.csv."""
    from gatebench.report.analysis.claims import from_results
    from gatebench.report.tables import claims_table

    results = from_results()
    if as_json:
        sys.stdout.write(claims_table.to_json(results))
    else:
        stdout_console().print(claims_table.to_rich(results))
