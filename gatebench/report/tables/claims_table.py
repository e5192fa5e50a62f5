"""The verdicts on the claims as a terminal table, Markdown, CSV and JSON. The same results give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatebench.report.analysis.claims import ClaimResult, Evidence
from gatebench.report.tables.comparison_table import markdown_table, without_nan, write_forms
from gatebench.report.tables.text import p_value

RULE = (
    "Computed: contradicted when a test is resolved against the claim (Holm over the claim's tests, adjusted p below "
    "0.05); supported when every test is resolved for it in some study and none against; not tested when no run bears "
    "on it; else not resolvable. A verdict holds at the scale of its runs."
)
STYLE = {"supported": "bold green", "contradicted": "bold red", "not resolvable": "yellow", "not tested": "dim"}


def to_rich(results: Sequence[ClaimResult], *, evidence: bool = True) -> Group:
    """A line a claim, then every test that gave evidence."""
    grid = Table(
        title="The paper's claims at the scale of these runs",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    grid.pad_edge = False
    for name in ("", "claim", "verdict", "evidence"):
        grid.add_column(name, overflow="fold", no_wrap=name in ("", "verdict"))
    for result in results:
        grid.add_row(
            result.claim.id, result.claim.text, Text(result.verdict, style=STYLE[result.verdict]), _counts(result)
        )
    parts: list[RenderableType] = [grid]
    for result in results if evidence else ():
        if result.evidence:
            parts.append(Text(f"{result.claim.id}: {'; '.join(result.scales)}", style="bold"))
            parts += [Text(f"  {line}") for line in _lines(result)]
    parts.append(Text(RULE, style="dim"))
    return Group(*parts)


def to_markdown(results: Sequence[ClaimResult]) -> str:
    """One Markdown document: the table, the rule, and the evidence claim by claim."""
    columns = ["", "claim", "the paper's evidence", "section", "tested by", "evidence", "verdict"]
    rows = [
        [
            r.claim.id,
            r.claim.text,
            r.claim.paper,
            r.claim.section,
            ", ".join(r.claim.studies),
            _counts(r),
            f"**{r.verdict}**",
        ]
        for r in results
    ]
    lines = ["# The paper's claims at the scale of these runs", "", *markdown_table(columns, rows, n_words=6), "", RULE]
    for result in results:
        if result.evidence:
            lines += [
                "",
                f"## {result.claim.id}: {result.verdict}",
                "",
                f"{result.claim.text} ({'; '.join(result.scales)}).",
                "",
            ]
            lines += [f"- {line}" for line in _lines(result)]
    return "\n".join(lines) + "\n"


def to_frame(results: Sequence[ClaimResult]) -> pd.DataFrame:
    """A row a claim and test that gave evidence; a claim without any has one row."""
    records: list[dict[str, Any]] = []
    for result in results:
        head = {"claim": result.claim.id, "verdict": result.verdict, "text": result.claim.text}
        records += [{**head, **_evidence_dict(item)} for item in result.evidence] or [head]
    columns = ["claim", "verdict", "text", "test", "study", "setting", "file", "outcome", "found", "p", "p_holm"]
    return pd.DataFrame.from_records(records, columns=columns)


def to_dicts(results: Sequence[ClaimResult]) -> list[dict[str, Any]]:
    """Plain values for JSON; a number that does not exist is None."""
    plain: list[dict[str, Any]] = without_nan(
        [
            {
                "claim": result.claim.id,
                "section": result.claim.section,
                "text": result.claim.text,
                "paper": result.claim.paper,
                "studies": list(result.claim.studies),
                "verdict": result.verdict,
                "scales": list(result.scales),
                "evidence": [_evidence_dict(item) for item in result.evidence],
                "missing": list(result.missing),
            }
            for result in results
        ]
    )
    return plain


def to_json(results: Sequence[ClaimResult]) -> str:
    """:func:`to_dicts` under `claims`, with the rule, as indented text."""
    content = {"schema": 1, "rule": RULE, "claims": to_dicts(results)}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write(results: Sequence[ClaimResult], directory: Path) -> list[Path]:
    """Write claims.md, .csv and .json and return their paths."""
    return write_forms(directory, "claims", to_markdown(results), to_frame(results), to_json(results))


def _counts(result: ClaimResult) -> str:
    """2 tests for, 1 not resolved (table1); 3 tests without runs."""
    if not result.evidence:
        return f"none yet: run {' or '.join(result.claim.studies[:2])}"
    outcomes = [item.outcome for item in result.evidence]
    counts = ", ".join(f"{outcomes.count(o)} {o}" for o in ("for", "against", "not resolved") if o in outcomes)
    studies = ", ".join(dict.fromkeys(item.study for item in result.evidence))
    missing = f"; {len(result.missing)} without runs" if result.missing else ""
    return f"{counts} ({studies}){missing}"


def _lines(result: ClaimResult) -> list[str]:
    lines = []
    for item in result.evidence:
        where = f"{item.study}, {item.setting}" if item.setting else item.study
        p = f"Holm p {p_value(item.p_adjusted)}"
        lines.append(f"{item.outcome}: {item.test}: {item.text}; {p} ({where}: {item.file})")
    return lines + [f"no runs: {text}" for text in result.missing]


def _evidence_dict(item: Evidence) -> dict[str, Any]:
    return {
        "test": item.test,
        "study": item.study,
        "setting": item.setting,
        "file": item.file,
        "outcome": item.outcome,
        "found": item.text,
        "p": item.p,
        "p_holm": item.p_adjusted,
    }
