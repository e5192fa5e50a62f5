"""`gatebench plan`: what a study would run, what of it is done, and what it costs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gatebench.cli.options import AsJson, OtherRecipe, Seeds, Settings, StudyName
from gatebench.cli.output import stdout_console
from gatebench.errors import UserError


def plan(
    study: StudyName,
    seeds: Seeds = None,
    recipe: OtherRecipe = None,
    settings: Settings = [],  # noqa: B006
    device: Annotated[
        str | None,
        typer.Option(
            help="Estimate for cpu_core, rtx4090, a100, h100, h200, b200 or mi300x (default: a core for runs that one "
            "trains within hours, else an H100).",
            show_default=False,
        ),
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(help="Share of the device's peak that training reaches, 0 to 1.", show_default="the device's"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a study would run, what of it is done, and what it costs. Trains nothing, writes nothing."""
    from gatebench.report.tables import plan_table
    from gatebench.sweep.devices import find_device
    from gatebench.sweep.plan import PlanCosts, costs_of
    from gatebench.sweep.plan import plan as planned_runs
    from gatebench.sweep.study import load_study

    if mfu is not None and not 0 < mfu <= 1:
        raise UserError(f"--mfu {mfu:g}: must be above 0 and at most 1")
    loaded = load_study(study).changed(n_seeds=seeds, settings=settings, recipe=recipe)
    runs = planned_runs(loaded)
    chosen = find_device(device, max(cost.flops for cost in costs_of(runs)))
    document = plan_table.document(loaded, runs, PlanCosts(chosen, mfu or chosen.utilisation, costs_of(runs, chosen)))
    if as_json:
        sys.stdout.write(document.to_json())
    else:
        stdout_console().print(document.to_rich(), soft_wrap=True)
