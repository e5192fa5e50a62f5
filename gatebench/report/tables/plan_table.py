"""What a study would run, what of it is done, and what it costs on a kind of device. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from gatebench.metrics import scale
from gatebench.report.tables.blocks import Lines, Table, table
from gatebench.report.tables.document import Document
from gatebench.sweep.plan import PlanCosts, PlannedRun, costs_of, measured, plan
from gatebench.sweep.study import Combination, Study


def document(study: Study, runs: Sequence[PlannedRun], costs: PlanCosts) -> Document:
    """A line a variant and combination, and what is left to do."""
    content = _content(study, runs, costs)
    return Document(
        name="plan",
        title=f"{study.name}: {study.description}" if study.description else study.name,
        blocks=(_table(study, runs, costs), Lines(tuple(_lines(study, runs, costs)))),
        frame=pd.DataFrame.from_records(content["runs"]),
        content=content,
    )


def _content(study: Study, runs: Sequence[PlannedRun], costs: PlanCosts) -> dict[str, Any]:
    rows = [
        {
            "variant": run.config.variant,
            "seed": run.config.seed,
            "overrides": list(run.combination.settings.words),
            "status": run.status,
            "directory": None if run.directory is None else str(run.directory),
            "n_params": cost.n_params,
            "n_params_active": cost.n_params_active,
            "tokens": cost.tokens,
            "flops": cost.flops,
            "memory_bytes": asdict(cost.memory) | {"total": cost.memory.total},
            "device_hours": costs.hours(cost),
        }
        for run, cost in zip(runs, costs.of_runs, strict=True)
    ]
    missing = [row for row in rows if row["status"] in ("missing", "begun")]
    took = measured(runs, costs.of_runs)
    return {
        "study": study.name,
        "description": study.description,
        "recipe": study.recipe,
        "baseline": study.variant_names()[0],
        "tables": study.tables,
        "device": asdict(costs.device) | {"utilisation": costs.utilisation},
        "hours_leave_out": ["start", "evaluation"],
        "missing": {
            "runs": len(missing),
            **{key: sum(row[key] for row in missing) for key in ("tokens", "flops", "device_hours")},
        },
        "measured": None if took is None else took._asdict(),
        "skipped": study.skipped(),
        "runs": rows,
    }


def _table(study: Study, runs: Sequence[PlannedRun], costs: PlanCosts) -> Table:
    """A line a variant and combination, the seeds counted by status."""
    apart = ["settings"] if len(study.combinations()) > 1 else []
    experts = ["active"] if any(cost.n_params_active != cost.n_params for cost in costs.of_runs) else []
    groups: dict[tuple[str, Combination], list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault((run.config.variant, run.combination), []).append(run)
    first = {(run.config.variant, run.combination): cost for run, cost in zip(runs, costs.of_runs, strict=True)}
    rows = []
    for (variant, combination), members in groups.items():
        cost = first[variant, combination]
        rows.append(
            (
                *(variant, *(combination.label for _ in apart), _counts(members)),
                *(f"{cost.n_params:,}", *(f"{cost.n_params_active:,}" for _ in experts)),
                *(scale(cost.tokens), f"{cost.flops:.2e}"),
                f"{_bytes(cost.memory.total)}{'' if costs.fits(cost) else ' !'}",
                _hours(costs.hours(cost)),
            )
        )
    words = ("variant", *apart, "runs")
    columns = (*words, "parameters", *experts, "tokens a run", "FLOPs a run", "memory", "hours a run")
    return table(columns, rows, n_words=len(words))


def _lines(study: Study, runs: Sequence[PlannedRun], costs: PlanCosts) -> Iterator[str]:
    """The recipe, what is left to do and what it takes, what is left out, and on what the estimates rest."""
    fixed = study.fixed.settings
    yield f"recipe {study.recipe}{f' with {fixed}' if fixed else ''}, seeds {', '.join(map(str, study.seeds))}"
    device, pairs = costs.device, list(zip(runs, costs.of_runs, strict=True))
    missing = [cost for run, cost in pairs if not run.finished]
    if study.extend is not None:
        yield from _first_stage(study, costs)
    yield f"{len(runs)} runs: {_counts(runs)}."
    if missing:
        tokens, flops = sum(cost.tokens for cost in missing), sum(cost.flops for cost in missing)
        total = _hours(sum(map(costs.hours, missing)))
        yield f"To train: {scale(tokens)} tokens, {flops:.2e} FLOPs, about {total} hours of {device.name}."
    if took := measured(runs, costs.of_runs):
        left = f"; at that rate the missing ones take {_hours(took.missing_seconds / 3600)} hours" if missing else ""
        yield f"Measured: {took.n_runs} finished runs trained {took.mean_seconds:.0f} s each{left}."
    yield (
        f"{device.name}: {device.description}, {device.flops / 1e12:g} TFLOP/s ({device.source}), of which training is "
        f"taken to reach {costs.utilisation:.0%}. Memory is an upper estimate of one device's peak. "
        "Hours are those of training alone: a run's start and its evaluation are left out, so that for tiny "
        "models they are a lower bound. docs/scale.md"
    )
    if not all(map(costs.fits, costs.of_runs)):
        states = max(cost.memory.total - cost.memory.activations for cost in costs.of_runs)
        sharded = all(run.config.train.strategy == "fsdp" for run in runs)
        more = ", of which it takes more: train.devices, train.num_nodes" if sharded else ""
        way_out = (
            f"{_bytes(states)} of it is no activations; train.strategy=fsdp shares most of that between devices{more}"
            if states > (device.memory or 0)
            else "a smaller train.micro_batch_size, or train.recompute=true"
        )
        yield f"! more than the {_bytes(device.memory or 0)} of {device.name}: {way_out}"
    yield from sorted({line for run in runs for line in run.config.spec.design.costs})
    for name, reason in study.skipped().items():
        yield f"left out: {name} ({reason})"


def _first_stage(study: Study, costs: PlanCosts) -> Iterator[str]:
    """What has to be trained before it can be extended."""
    runs = plan(study.first_stage())
    pairs = zip(runs, costs_of(runs, costs.device), strict=True)
    missing = [cost for run, cost in pairs if not run.finished]
    yield f"They extend {len(runs)} runs: {_counts(runs)}."
    if missing:
        hours = _hours(sum(map(costs.hours, missing)))
        tokens = scale(sum(cost.tokens for cost in missing))
        yield f"To train before: {tokens} tokens, about {hours} hours of {costs.device.name}."


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
