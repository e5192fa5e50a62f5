"""The effects of a factor analysis as a document."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd

from gatebench.report.analysis.factors import FactorAnalysis
from gatebench.report.tables.blocks import Cell, Legend, table
from gatebench.report.tables.document import Document
from gatebench.report.text import p_value

COLUMNS = ("factor", "effect of", "change", "95 % interval", "Holm p")


def document(found: FactorAnalysis) -> Document:
    """A row an effect."""
    rows = [
        (
            e.factor,
            e.level,
            Cell(f"{e.percent:+.2f} %", value=e.percent),
            Cell(f"{e.low:+.2f} .. {e.high:+.2f}", value=e.low),
            Cell(p_value(e.p_adjusted), value=e.p_adjusted),
        )
        for e in found.effects
    ]
    return Document(
        name="factors",
        title="Factor analysis of the gates: effects on Avg PPL",
        blocks=(table(COLUMNS, rows, n_words=2), Legend(_legend(found))),
        facts=found.facts,
        frame=pd.DataFrame([asdict(effect) for effect in found.effects]),
        content={**asdict(found), "schema": 1},
    )


def _legend(found: FactorAnalysis) -> str:
    """What the numbers are of, in a paragraph."""
    left_out = f" {found.n_left_out} diverged or are untrained, and are left out." if found.n_left_out else ""
    return (
        f"Least squares on ln(Avg PPL) of {found.n_runs} runs of {found.n_variants} gates, seeds as blocks; "
        f"residual {found.residual_percent:.2f} % with {found.degrees} degrees of freedom, R² {found.r_squared:.3f}."
        f"{left_out} Effects in percent of the perplexity, below zero better, with 95 % t intervals; p by Holm "
        f"over all {len(found.effects)} effects. Granularity, sharing and their interactions with the position are "
        "over G1 to G4: G5 has no headwise and no shared form."
    )
