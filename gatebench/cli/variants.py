"""`gatebench list` and `gatebench show`: what can be run, and what one variant is and costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench.cli.options import AsJson, Overrides, Recipe
from gatebench.cli.output import stderr_console, stdout_console, terminal_table
from gatebench.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gatebench.variants import Variant


def list_variants(
    table: Annotated[int | None, typer.Option(help="Only the rows of this table of the paper, in its order.")] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Only what this names: a glob (`g1_*`), `group:sparsity`, `table:4`, or a name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the registered variants; any other name of the grammar runs as well."""
    from gatebench import variants

    found = list(variants.registry().values()) if pattern is None else variants.select(pattern)
    if table is not None:
        rows = variants.select(f"table:{table}")
        found = rows if pattern is None else [row for row in rows if row in found]
        if not found:
            raise UserError(f"--pattern {pattern}: names nothing in table {table}; drop --pattern to see all of it")
    if as_json:
        from gatebench.report.variant_facts import variant_facts

        typer.echo(json.dumps([variant_facts(variant) for variant in found], indent=2, ensure_ascii=False))
    else:
        _print_list(found, table)


def show_variant(
    name: Annotated[str, typer.Argument(help="A variant: `gatebench list`, or any name of the grammar.")],
    recipe: Recipe = "quick",
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show one variant: its equation, where it sits, what it adds under a recipe, and the paper's numbers for it."""
    from gatebench.recipes import make_run
    from gatebench.report.variant_facts import under_recipe, variant_facts

    config = make_run(recipe, name, 0, overrides)
    facts = variant_facts(config.spec) | under_recipe(config)
    if as_json:
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        console = stdout_console()
        for part in _shown(facts):
            console.print(part, markup=False)


def _print_list(found: list[Variant], table: int | None) -> None:

    rows = [
        (
            variant.name,
            "; ".join(_effects(variant)) or "softmax attention",
            variant.reason,
            "; ".join(gate.score_shape for gate in variant.gates),
            variant.group,
            " ".join(f"{number}.{row}" for number, row in variant.tables.items()),
        )
        for variant in found
    ]
    columns = ("variant", "what it does", "why", "score", "group", "tables")
    title = "" if table is None else f"Table {table} of the paper"
    stdout_console().print(terminal_table(columns, rows, n_words=len(columns), title=title))
    stderr_console().print(
        f"{len(found)} variants. `gatebench show NAME` tells more; tables are table.row of the paper.", highlight=False
    )


def _effects(variant: Variant) -> list[str]:
    """Return what the variant changes, a line for each part of its name."""
    ratios = [f"{key} x {float(ratio):g}" for key, ratio in variant.ratios.items()]
    return [*ratios, *variant.design.equations, *(gate.equation for gate in variant.gates)]


def _shown(facts: dict[str, Any]) -> Iterator[RenderableType]:
    """What a terminal shows of a variant, top to bottom."""
    from rich.text import Text

    yield Text.assemble((facts["name"], "bold"), f"  {facts['label']}")
    yield facts["reason"]
    if facts["aliases"]:
        yield f"also called {', '.join(facts['aliases'])}"
    yield ""
    for gate in facts["gates"]:
        yield f"{gate['position']}, {gate['site']}\n    {gate['equation']}\n    score: {gate['score_shape']}"
    for word, equation in facts["design"].items():
        yield f"{word}\n    {equation}"
    for key, ratio in facts["overrides"].items():
        yield f"{key} {ratio}"
    if facts["gates"] or facts["design"] or facts["overrides"]:
        yield ""
    yield from _costs(facts)
    for number in dict.fromkeys(row["table"] for row in facts["paper"]):
        yield _paper_grid(number, [row for row in facts["paper"] if row["table"] == number])
    yield from (f"note: {note}" for note in facts["notes"])


def _paper_grid(number: int, rows: list[dict[str, Any]]) -> RenderableType:
    from gatebench.report.tables.blocks import Column

    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "table"]
    columns = [Column(key, words=key == "method") for key in keys]
    cells = [[str(row.get(key, "")) for key in keys] for row in rows]
    return terminal_table(columns, cells, title=f"the paper's Table {number}")


def _costs(facts: dict[str, Any]) -> Iterator[RenderableType]:
    counts, shape = facts["parameters"], ", ".join(f"{key} {value}" for key, value in facts["model"].items())
    overrides = f" with {', '.join(facts['set'])}" if facts["set"] else ""
    yield f"under recipe {facts['recipe']}{overrides}: {shape}"
    flops, flops_baseline = facts["train_flops_per_token"], facts["train_flops_per_token_baseline"]
    active = f" ({counts['active']:,} active)" if counts["active"] != counts["total"] else ""
    yield (
        f"parameters {counts['total']:,}{active}: {counts['added']:+,} ({counts['added_share']:+.2%}) beside the "
        f"baseline's {counts['baseline']:,}, {counts['added_per_layer']:+,} a layer"
    )
    yield f"training FLOPs per token {flops:,} ({flops / flops_baseline - 1:+.2%}) at {facts['seq_len']} tokens"
    if (match := facts["param_match"]) != "none":
        yield f"param_match={match}: ffn_dim {facts['ffn_dim_baseline']} -> {facts['ffn_dim']}"
    ours, theirs = counts["per_layer"], counts["per_layer_baseline"]
    pairs = [(part, number, theirs.get(part, 0)) for part, number in ours.items()]
    pairs.append(("layer", sum(ours.values()), sum(theirs.values())))
    rows = [(part, f"{n:,}", f"{other:,}", f"{n - other:+,}" if n != other else "") for part, n, other in pairs]
    yield terminal_table(("parameters per layer", "variant", "baseline", "difference"), rows)
