"""What tuning a study found: the best trial of each search, and all trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from gatebench.report.tables.blocks import Column, table
from gatebench.report.tables.document import Document
from gatebench.report.text import NOTHING
from gatebench.sweep.search import SearchOutcome, Status, TrialOutcome

_COUNTS: tuple[Status, ...] = ("complete", "diverged", "pruned", "failed")
_STATUSES: tuple[Status, ...] = (*_COUNTS, "running", "waiting")
_SETTINGS = Column("settings", words=True)


def best(found: Sequence[SearchOutcome]) -> Document:
    """A row a search: how its trials ended, and the best of them."""
    rows = []
    for outcome in found:
        of = outcome.best
        ending = (NOTHING, NOTHING, NOTHING) if of is None else (_value(of), str(of.number), _settings(of))
        rows.append((outcome.search.label, *(str(outcome.counts[status]) for status in _COUNTS), *ending))
    content = _content(found)
    searches = [_without(search, "trials") for search in content["searches"]]
    return Document(
        name="best",
        title=_title(found),
        blocks=(table(("variant", *_COUNTS, "best", "of trial", _SETTINGS), rows),),
        frame=pd.DataFrame.from_records([_flat(search, "best_params") for search in searches]),
        content={**content, "searches": searches},
    )


def trials(found: Sequence[SearchOutcome]) -> Document:
    """A table a search, a row a trial; in the frame settings have a column each, and so has the value at each seed.

    A trial without a value, as one that diverged, has a dash.
    """
    tables, records = [], []
    for outcome in found:
        cells = [(str(t.number), _status(t), _value(t), _settings(t)) for t in outcome.trials]
        columns = (Column("trial", words=True), Column("status", words=True), "value", _SETTINGS)
        tables.append(table(columns, cells, title=outcome.search.label))
        for trial in outcome.trials:
            row = _flat(_trial(trial), "params")
            values = dict(zip(outcome.search.seeds, row.pop("values"), strict=False))
            row |= {f"value_seed_{seed}": values.get(seed) for seed in outcome.search.seeds}
            records.append({"variant": trial.variant, "setting": trial.setting} | row | {"runs": " ".join(trial.runs)})
    return Document(
        name="trials",
        title=f"Trials of {found[0].search.study.name}",
        blocks=tuple(tables),
        frame=pd.DataFrame.from_records(records),
        content=_content(found),
    )


def _content(found: Sequence[SearchOutcome]) -> dict[str, Any]:
    """The objective, and of each search the counts, the best trial and all trials."""
    tune = found[0].search.tune
    return {
        "schema": 1,
        "study": found[0].search.study.name,
        "objective": tune.objective,
        "direction": tune.direction,
        "sampler": tune.sampler,
        "pruner": tune.pruner,
        "seeds": found[0].search.seeds,
        "searches": [_search(outcome) for outcome in found],
    }


def _search(outcome: SearchOutcome) -> dict[str, Any]:
    best = outcome.best
    return {
        "variant": outcome.search.variant,
        "setting": outcome.search.combination.label,
        "trials": [_trial(trial) for trial in outcome.trials],
        **{status: outcome.counts[status] for status in _STATUSES},
        "best_value": None if best is None else best.value,
        "best_trial": None if best is None else best.number,
        "best_params": {} if best is None else best.params,
    }


def _trial(trial: TrialOutcome) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "status": trial.status,
        "value": trial.value,
        "params": trial.params,
        "values": trial.values,
        "runs": trial.runs,
        "errors": trial.n_errors,
        "reason": trial.reason,
        "seconds": trial.seconds,
    }


def _without(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


def _flat(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {**_without(row, key), **row[key]}


def _title(found: Sequence[SearchOutcome]) -> str:
    search = found[0].search
    wanted = "lowest" if search.tune.direction == "minimize" else "highest"
    seeds = f"seed {search.seeds[0]}" if len(search.seeds) == 1 else f"mean over {len(search.seeds)} seeds"
    return f"{search.study.name}: the {wanted} {search.tune.objective} ({seeds}, {search.tune.sampler})"


def _status(trial: TrialOutcome) -> str:
    return f"{trial.status} ({trial.reason})" if trial.reason else trial.status


def _value(trial: TrialOutcome) -> str:
    return NOTHING if trial.value is None else f"{trial.value:.5g}"


def _settings(trial: TrialOutcome) -> str:
    return ", ".join(trial.settings) or NOTHING
