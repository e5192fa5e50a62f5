"""`gatebench params`: what variants add to a recipe, by arithmetic and by building them, beside the paper's column."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gatebench.cli.options import AsJson, Overrides, Recipe
from gatebench.cli.output import stdout_console
from gatebench.errors import UserError


def params(
    recipe: Recipe = "quick",
    table: Annotated[int | None, typer.Option(help="The rows of this table of the paper (default: 1).")] = None,
    variant: Annotated[
        list[str], typer.Option(help="Instead of a table: a variant, or what `list --pattern` takes.")
    ] = [],  # noqa: B006
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Count the parameters that variants add, and print them beside the paper's.

    Every variant is built, without memory: where a built model and the arithmetic disagree, the exit status is 1.
    """
    if table is not None and variant:
        raise UserError(f"--table {table} and --variant {variant[0]} exclude each other")
    from gatebench import variants
    from gatebench.report.tables import params_table

    number = None if variant else table or 1
    patterns = variant or [f"table:{number}"]
    names = list(dict.fromkeys(found.name for pattern in patterns for found in variants.select(pattern)))
    made, costs = params_table.make(recipe, names, overrides, table=number)

    from gatebench.model.build import count_built

    wrong = []
    for row in made.rows:
        if (built := count_built(costs[row.variant].model, row.variant)) != row.n_params:
            wrong.append(f"{row.variant} has {built:,} parameters when built and {row.n_params:,} by arithmetic")
    document = params_table.document(made)
    if as_json:
        sys.stdout.write(document.to_json())
    else:
        stdout_console().print(document.to_rich())
    for line in wrong:
        print(f"gatebench: {line}", file=sys.stderr)
    if wrong:
        raise typer.Exit(1)
