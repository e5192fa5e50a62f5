"""What variants add to a recipe's parameters, beside the column that the paper prints. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from gatebench import variants
from gatebench.config import ModelConfig, RunConfig
from gatebench.errors import UserError
from gatebench.model.accounting import Accounting, account
from gatebench.paper import paper_numbers
from gatebench.recipes import make_run
from gatebench.report.tables.blocks import Lines, table
from gatebench.report.tables.document import Document
from gatebench.report.text import NOTHING, scale

PAPER_SHAPE = {"n_layers": 24, "d_model": 2048, "n_heads": 32, "n_kv_heads": 4, "head_dim": 128}
"""Of the model of Tables 1, 3, 4 and 6 (Table 7): the paper's column is about this shape and no other."""

_DISAGREEMENTS = {
    "experts_plus4": "four experts of 3 x 2048 x 768 and their router rows, in 24 layers: 453 M; the paper prints 400",
    "switch": "Table 6's column does not follow from its text: see docs/scale.md",
}


@dataclass(frozen=True)
class ParamsRow:
    """One variant under the recipe."""

    variant: str
    label: str
    n_params: int
    """By arithmetic on the configuration, as every report has it."""
    n_active: int
    """Of these, what one token passes through."""
    added: int
    """Beyond the baseline's."""
    ffn_dim: int
    """Narrowed or widened by param_match."""
    printed: str | None
    """What the paper prints as added, in millions; None where it prints nothing."""
    note: str
    """Why ours is another number than the paper's; empty where it is not."""


@dataclass(frozen=True)
class ParamsTable:
    """Rows in the order in which they were asked for, and the variants that the recipe cannot have."""

    recipe: str
    overrides: tuple[str, ...]
    param_match: str
    shape: Mapping[str, Any]
    """The recipe's model, without what a variant changes."""
    rows: tuple[ParamsRow, ...]
    skipped: Mapping[str, str]
    """Why a row of the table is left out, by name."""

    @property
    def is_papers_shape(self) -> bool:
        """Whether the paper's column is about a model of this shape."""
        return all(self.shape[key] == value for key, value in PAPER_SHAPE.items())


def document(found: ParamsTable) -> Document:
    """Lay the rows out, the paper's column beside ours."""
    matched = ["ffn_dim"] if found.param_match != "none" else []
    overrides = f" with {' '.join(found.overrides)}" if found.overrides else ""
    total = f"{scale(found.rows[0].n_params)} parameters" if found.rows else ""
    shape = ", ".join(f"{key} {value}" for key, value in found.shape.items())
    rows = [
        (
            *(row.variant, f"{row.n_params:,}", f"{row.n_active:,}", f"{row.added:+,}", millions(row.added)),
            *(row.printed or NOTHING, *(str(row.ffn_dim) for _ in matched)),
        )
        for row in found.rows
    ]
    content = asdict(found) | {"is_papers_shape": found.is_papers_shape}
    content["rows"] = [asdict(row) | {"added_m": millions(row.added)} for row in found.rows]
    return Document(
        name="params",
        title=f"recipe {found.recipe}{overrides}: {total}",
        blocks=(
            table(("variant", "parameters", "active", "added", "added, M", "paper, M", *matched), rows),
            Lines((shape, *_lines(found))),
        ),
        frame=pd.DataFrame.from_records(content["rows"]),
        content=content,
    )


def _lines(found: ParamsTable) -> Iterator[str]:
    """What a reader should know, a line each."""
    if any(row.printed not in (None, "0") for row in found.rows) and not found.is_papers_shape:
        yield (
            "The paper's column is of its 15A2B model (24 layers, d_model 2048, q 32, k 4, dk 128); "
            "this recipe is of another shape."
        )
    yield from (f"{row.variant}: {row.note}" for row in found.rows if row.note)
    yield from (f"left out: {name} ({reason})" for name, reason in found.skipped.items())
    if found.param_match == "ffn":
        yield "param_match=ffn: what is added is the residual, at most half a unit of ffn_dim"
    if found.param_match == "flops":
        yield "param_match=flops: ffn_dim is where a training token's FLOPs are nearest the baseline's"


def make(
    recipe: str, names: Sequence[str], overrides: Sequence[str] = (), *, table: int | None = None
) -> tuple[ParamsTable, dict[str, Accounting]]:
    """Return the table of ``names`` under a recipe, and each row's final shape for who wants to build it.

    With ``table``, the paper's column is that table's, and a name that the recipe cannot have is left out with its
    reason; without, it is refused. Raises UserError for anything else that is not legal, too.
    """
    baseline = make_run(recipe, "baseline", 0, list(overrides))
    rows, costs, skipped = [], {}, {}
    for name in names:
        try:
            config = make_run(recipe, name, 0, list(overrides))
            costs[config.variant] = account(config)
        except UserError as error:
            if table is None:
                raise
            skipped[name] = str(error)
            continue
        rows.append(_row(config, costs[config.variant], table))
    shape = _shape(baseline.model)
    return ParamsTable(recipe, tuple(overrides), baseline.param_match, shape, tuple(rows), skipped), costs


def millions(count: int) -> str:
    """Return a count of parameters in millions as the paper prints it: 201, 25, 1.6, 0.2.

    From ten million on whole millions, cut and not rounded (the paper prints 100 for 100.66 M); below one decimal, or
    one significant digit where that would be 0.0.
    """
    value = count / 1e6
    if count == 0 or abs(value) >= 10:
        return str(math.trunc(value))
    return f"{value:.1f}" if abs(value) >= 0.05 else f"{value:.1g}"


def _shape(model: ModelConfig) -> dict[str, Any]:
    keys = (*PAPER_SHAPE, "ffn_dim", "vocab_size", "tie_embeddings")
    experts = {} if model.moe is None else {key: getattr(model.moe, key) for key in ("n_experts", "top_k")}
    return {key: getattr(model, key) for key in keys} | experts


def _row(config: RunConfig, costs: Accounting, table: int | None) -> ParamsRow:
    variant = config.spec
    printed = _printed(variant, table)
    papers = all(getattr(config.model, key) == value for key, value in PAPER_SHAPE.items())
    differs = papers and printed is not None and float(printed) != float(millions(costs.added))
    known = "switch" if variant.design.switch_heads is not None else variant.name
    return ParamsRow(
        variant=variant.name,
        label=variant.label,
        n_params=costs.n_params,
        n_active=costs.n_params_active,
        added=costs.added,
        ffn_dim=costs.model.ffn_dim,
        printed=printed,
        note=_DISAGREEMENTS.get(known, f"the paper prints {printed}") if differs else "",
    )


def _printed(variant: variants.Variant, table: int | None) -> str | None:
    """Return the paper's own number of added parameters, in millions, from ``table`` or the first that has one."""
    for number, rows in paper_numbers(variant.name, variant.aliases).items():
        if (table is None or number == table) and "added_param_m" in rows[0].printed:
            return rows[0].printed["added_param_m"]
    return None
