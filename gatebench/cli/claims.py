"""`gatebench claims`: the paper's claims, and what the results here say about each."""

from __future__ import annotations

import sys

from gatebench.cli.options import AsJson
from gatebench.cli.output import stdout_console


def claims(
    as_json: AsJson = False,
) -> None:
    """Judge the paper's claims by the runs that `gatebench tables` left in results/<study>/runs.csv."""
    from gatebench.report.analysis.claims import from_results
    from gatebench.report.tables import claims_table

    document = claims_table.document(from_results())
    if as_json:
        sys.stdout.write(document.to_json())
    else:
        stdout_console().print(document.to_rich())
