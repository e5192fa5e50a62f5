"""The verdicts on the claims as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from gatebench.report.analysis.claims import ClaimResult, Evidence
from gatebench.report.tables.blocks import Block, Cell, Column, Heading, Legend, Lines, Paragraph, table
from gatebench.report.tables.document import Document
from gatebench.report.text import p_value

RULE = (
    "Computed: contradicted when a test is resolved against the claim (Holm over the claim's tests, adjusted p below "
    "0.05); supported when every test is resolved for it in some study and none against; not tested when no run bears "
    "on it; else not resolvable. A verdict holds at the scale of its runs."
)
_COLUMNS = (
    "",
    "claim",
    Column("the paper's evidence", words=True, in_terminal=False),
    Column("section", words=True, in_terminal=False),
    Column("tested by", words=True, in_terminal=False),
    "evidence",
    "verdict",
)


def document(results: Sequence[ClaimResult], *, evidence: bool = True) -> Document:
    """A row a claim, the rule, and every test that gave evidence; without the latter where no ``evidence`` is asked."""
    rows = [
        (
            result.claim.id,
            result.claim.text,
            result.claim.paper,
            result.claim.section,
            ", ".join(result.claim.studies),
            _counts(result),
            Cell(result.verdict, bold=True, style=result.verdict),
        )
        for result in results
    ]
    blocks: list[Block] = [table(_COLUMNS, rows, n_words=len(_COLUMNS)), Legend(RULE)]
    for result in results if evidence else ():
        if result.evidence:
            blocks += [
                Heading(f"{result.claim.id}: {result.verdict}"),
                Paragraph(f"{result.claim.text} ({'; '.join(result.scales)})."),
                Lines(tuple(_lines(result))),
            ]
    return Document(
        name="claims",
        title="The paper's claims at the scale of these runs",
        blocks=tuple(blocks),
        frame=_frame(results),
        content={"schema": 1, "rule": RULE, "claims": [_content(result) for result in results]},
    )


def _frame(results: Sequence[ClaimResult]) -> pd.DataFrame:
    """A row a claim and test that gave evidence; a claim without any has one row."""
    records: list[dict[str, Any]] = []
    for result in results:
        head = {"claim": result.claim.id, "verdict": result.verdict, "text": result.claim.text}
        records += [{**head, **_evidence_dict(item)} for item in result.evidence] or [head]
    columns = ["claim", "verdict", "text", "test", "study", "setting", "file", "outcome", "found", "p", "p_holm"]
    return pd.DataFrame.from_records(records, columns=columns)


def _content(result: ClaimResult) -> dict[str, Any]:
    return {
        "claim": result.claim.id,
        "section": result.claim.section,
        "text": result.claim.text,
        "paper": result.claim.paper,
        "studies": result.claim.studies,
        "verdict": result.verdict,
        "scales": result.scales,
        "evidence": [_evidence_dict(item) for item in result.evidence],
        "missing": result.missing,
    }


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
        lines.append(f"{item.outcome}: {item.test.text}: {item.text}; {p} ({where}: {item.file})")
    return lines + [f"no runs: {text}" for text in result.missing]


def _evidence_dict(item: Evidence) -> dict[str, Any]:
    return {
        "test": item.test.text,
        "study": item.study,
        "setting": item.setting,
        "file": item.file,
        "outcome": item.outcome,
        "found": item.text,
        "p": item.p,
        "p_holm": item.p_adjusted,
    }
