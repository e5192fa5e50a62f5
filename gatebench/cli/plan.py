"""`gatebench plan`: what a study would run, what of it is done, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench.cli.output import stdout_console
from gatebench.cli.sweep import AsJson, OtherRecipe, Seeds, Settings, StudyName
from gatebench.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gatebench.sweep.devices import Device
    from gatebench.sweep.plan import Cost, PlannedRun
    from gatebench.sweep.study import Combination, Study


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
    from gatebench.sweep.devices import find_device
    from gatebench.sweep.plan import costs_of
    from gatebench.sweep.plan import plan as planned_runs
    from gatebench.sweep.study import load_study

    if mfu is not None and not 0 < mfu <= 1:
        raise UserError(f"--mfu {mfu:g}: must be above 0 and at most 1")
    loaded = load_study(study).changed(n_seeds=seeds, settings=settings, recipe=recipe)
    runs = planned_runs(loaded)
    chosen = find_device(device, max(cost.flops for cost in costs_of(runs)))
    estimate = _Estimate(chosen, mfu or chosen.utilisation, costs_of(runs, chosen))
    if as_json:
        print(json.dumps(_facts(loaded, runs, estimate), indent=2, ensure_ascii=False))
        return
    console = stdout_console()
    for line in _header(loaded):
        console.print(line, markup=False, soft_wrap=True)
    console.print(_table(loaded, runs, estimate))
    for line in _lines(loaded, runs, estimate):
        console.print(line, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class _Estimate:
    device: Device
    mfu: float
    costs: Sequence[Cost]
    """Of each run, in the order of the plan."""

    def hours(self, cost: Cost) -> float:
        """Hours of one run, over all its devices together."""
        return self.device.hours(cost.executed_flops, self.mfu)

    def fits(self, cost: Cost) -> bool:
        """Whether the estimate of the peak is below the device's memory."""
        return self.device.memory is None or cost.memory.total <= self.device.memory


def _facts(study: Study, runs: Sequence[PlannedRun], estimate: _Estimate) -> dict[str, Any]:
    from gatebench.sweep.plan import measured

    rows = [
        {
            "variant": run.config.variant,
            "seed": run.config.seed,
            "overrides": list(run.combination.overrides),
            "status": run.status,
            "directory": None if run.directory is None else str(run.directory),
            "n_params": cost.n_params,
            "n_params_active": cost.n_params_active,
            "tokens": cost.tokens,
            "flops": cost.flops,
            "memory_bytes": asdict(cost.memory) | {"total": cost.memory.total},
            "device_hours": estimate.hours(cost),
        }
        for run, cost in zip(runs, estimate.costs, strict=True)
    ]
    missing = [row for row in rows if row["status"] in ("missing", "begun")]
    took = measured(runs, estimate.costs)
    return {
        "study": study.name,
        "description": study.description,
        "recipe": study.recipe,
        "baseline": study.variant_names()[0],
        "tables": study.tables,
        "device": asdict(estimate.device) | {"utilisation": estimate.mfu},
        "missing": {
            "runs": len(missing),
            **{key: sum(row[key] for row in missing) for key in ("tokens", "flops", "device_hours")},
        },
        "measured": None if took is None else took._asdict(),
        "skipped": study.skipped(),
        "runs": rows,
    }


def _header(study: Study) -> Iterator[str]:
    """What the study asks, and under which recipe."""
    yield f"{study.name}: {study.description}" if study.description else study.name
    fixed = study.fixed.overrides
    settings = f" with {' '.join(fixed)}" if fixed else ""
    yield f"recipe {study.recipe}{settings}, seeds {', '.join(map(str, study.seeds))}"


def _table(study: Study, runs: Sequence[PlannedRun], estimate: _Estimate) -> RenderableType:
    """A line a variant and combination, the seeds counted by status."""
    from rich.table import Table

    from gatebench.report.tables.text import scale

    table = Table(box=None, pad_edge=False, header_style="bold")
    apart = len(study.combinations()) > 1
    experts = any(cost.n_params_active != cost.n_params for cost in estimate.costs)
    words = ["variant", *(["settings"] if apart else []), "runs"]
    numbers = ["parameters", *(["active"] if experts else []), "tokens a run", "FLOPs a run", "memory", "hours a run"]
    for name in (*words, *numbers):
        table.add_column(name, justify="left" if name in words else "right", overflow="fold")
    groups: dict[tuple[str, Combination], list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.config.variant, run.combination), []).append(run)
    first = {(run.config.variant, run.combination): cost for run, cost in zip(runs, estimate.costs, strict=True)}
    for (variant, combination), members in groups.items():
        cost = first[variant, combination]
        table.add_row(
            *(variant, *([combination.label] if apart else []), _counts(members)),
            *(f"{cost.n_params:,}", *([f"{cost.n_params_active:,}"] if experts else [])),
            *(scale(cost.tokens), f"{cost.flops:.2e}"),
            f"{_bytes(cost.memory.total)}{'' if estimate.fits(cost) else ' !'}",
            _hours(estimate.hours(cost)),
        )
    return table


def _lines(study: Study, runs: Sequence[PlannedRun], estimate: _Estimate) -> Iterator[str]:
    """What is left to do and what it takes, what is left out, and on what the estimates rest."""
    from gatebench.report.tables.text import scale
    from gatebench.sweep.plan import measured
    from gatebench.variants import get

    device, pairs = estimate.device, list(zip(runs, estimate.costs, strict=True))
    missing = [cost for run, cost in pairs if not run.finished]
    if study.extend is not None:
        yield from _first_stage(study, estimate)
    yield f"{len(runs)} runs: {_counts(runs)}."
    if missing:
        tokens, flops = sum(cost.tokens for cost in missing), sum(cost.flops for cost in missing)
        total = _hours(sum(map(estimate.hours, missing)))
        yield f"To train: {scale(tokens)} tokens, {flops:.2e} FLOPs, about {total} hours of {device.name}."
    if took := measured(runs, estimate.costs):
        left = f"; at that rate the missing ones take {_hours(took.missing_seconds / 3600)} hours" if missing else ""
        yield f"Measured: {took.n_runs} finished runs trained {took.mean_seconds:.0f} s each{left}."
    yield (
        f"{device.name}: {device.description}, {device.flops / 1e12:g} TFLOP/s ({device.source}), of which training is "
        f"taken to reach {estimate.mfu:.0%}. Memory is an upper estimate of one device's peak. docs/scale.md"
    )
    if not all(map(estimate.fits, estimate.costs)):
        states = max(cost.memory.total - cost.memory.activations for cost in estimate.costs)
        sharded = all(run.config.train.strategy == "fsdp" for run in runs)
        more = ", of which it takes more: train.devices, train.num_nodes" if sharded else ""
        way_out = (
            f"{_bytes(states)} of it is no activations; train.strategy=fsdp shares most of that between devices{more}"
            if states > (device.memory or 0)
            else "a smaller train.micro_batch_size, or train.recompute=true"
        )
        yield f"! more than the {_bytes(device.memory or 0)} of {device.name}: {way_out}"
    yield from sorted({line for run in runs for line in get(run.config.variant).design.costs})
    for name, reason in study.skipped().items():
        yield f"left out: {name} ({reason})"


def _first_stage(study: Study, estimate: _Estimate) -> Iterator[str]:
    """What has to be trained before it can be extended."""
    from gatebench.report.tables.text import scale
    from gatebench.sweep.plan import costs_of
    from gatebench.sweep.plan import plan as planned_runs

    runs = planned_runs(study.first_stage())
    pairs = zip(runs, costs_of(runs, estimate.device), strict=True)
    missing = [cost for run, cost in pairs if not run.finished]
    yield f"They extend {len(runs)} runs: {_counts(runs)}."
    if missing:
        hours = _hours(sum(map(estimate.hours, missing)))
        tokens = scale(sum(cost.tokens for cost in missing))
        yield f"To train before: {tokens} tokens, about {hours} hours of {estimate.device.name}."


def _counts(runs: Sequence[PlannedRun]) -> str:
    """2 done, 1 missing."""
    counts = {status: sum(run.status == status for run in runs) for status in ("done", "diverged", "begun", "missing")}
    return ", ".join(f"{number} {status}" for status, number in counts.items() if number)


def _bytes(count: float) -> str:
    """Return a size in the unit people say it in: 41.2 GB."""
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def _hours(hours: float) -> str:
    """Return hours with two digits that matter."""
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"
