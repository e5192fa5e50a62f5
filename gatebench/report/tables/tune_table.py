"""What tuning a study found, as terminal tables, Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.table import Table

from gatebench.report.tables.comparison_table import markdown_table, write_forms
from gatebench.report.tables.text import NOTHING

if TYPE_CHECKING:
    from gatebench.sweep.tuning.outcome import SearchOutcome, TrialOutcome
    from gatebench.sweep.tuning.worker import Status

_COUNTS: tuple[Status, ...] = ("complete", "diverged", "pruned", "failed")
_STATUSES: tuple[Status, ...] = (*_COUNTS, "running", "waiting")
_BEST_COLUMNS = ("variant", *_COUNTS, "best", "of trial", "settings")
_TRIAL_COLUMNS = ("trial", "status", "value", "settings")


def to_dict(found: Sequence[SearchOutcome]) -> dict[str, Any]:
    """Plain values for JSON: the objective, and of each search the counts, the best trial and all trials."""
    tune = found[0].search.tune
    return {
        "schema": 1,
        "study": found[0].search.study.name,
        "objective": tune.objective,
        "direction": tune.direction,
        "sampler": tune.sampler,
        "pruner": tune.pruner,
        "seeds": found[0].search.seeds,
        "searches": [_search_dict(outcome) for outcome in found],
    }


def to_rich(found: Sequence[SearchOutcome]) -> list[Table]:
    """The best of each search, then the trials of each; a trial without a value, as one that diverged, has a dash."""
    tables = [_rich_table(_title(found), _BEST_COLUMNS, [_best_cells(outcome) for outcome in found])]
    for outcome in found:
        tables.append(_rich_table(outcome.search.label, _TRIAL_COLUMNS, [_cells(trial) for trial in outcome.trials]))
    return tables


def write(found: Sequence[SearchOutcome], directory: Path) -> list[Path]:
    """Write best.* (a row a search) and trials.* (a row a trial) as Markdown, CSV and JSON; return the paths."""
    content = to_dict(found)
    best = {**content, "searches": [_without_trials(search) for search in content["searches"]]}
    markdown = [f"# {_title(found)}", "", *markdown_table(_BEST_COLUMNS, [_best_cells(o) for o in found])]
    trials = [f"# Trials of {content['study']}"]
    for outcome in found:
        table = markdown_table(_TRIAL_COLUMNS, [_cells(trial) for trial in outcome.trials], n_words=2)
        trials += ["", f"## {outcome.search.label}", "", *table]
    return [
        *write_forms(directory, "best", "\n".join(markdown) + "\n", best_frame(found), _json(best)),
        *write_forms(directory, "trials", "\n".join(trials) + "\n", trials_frame(found), _json(content)),
    ]


def best_frame(found: Sequence[SearchOutcome]) -> pd.DataFrame:
    """A row a search."""
    rows = [_search_dict(outcome) for outcome in found]
    return pd.DataFrame.from_records([_flat(_without_trials(row), "best_params") for row in rows])


def trials_frame(found: Sequence[SearchOutcome]) -> pd.DataFrame:
    """A row a trial; settings have a column each, and so has the value at each seed."""
    rows = []
    for outcome in found:
        for trial in outcome.trials:
            row = _flat(_trial_dict(trial), "params")
            values = dict(zip(outcome.search.seeds, row.pop("values"), strict=False))
            row |= {f"value_seed_{seed}": values.get(seed) for seed in outcome.search.seeds}
            rows.append({"variant": trial.variant, "setting": trial.setting} | row | {"runs": " ".join(trial.runs)})
    return pd.DataFrame.from_records(rows)


def _search_dict(outcome: SearchOutcome) -> dict[str, Any]:
    best = outcome.best
    return {
        "variant": outcome.search.variant,
        "setting": outcome.search.combination.label,
        "trials": [_trial_dict(trial) for trial in outcome.trials],
        **{status: outcome.counts[status] for status in _STATUSES},
        "best_value": None if best is None else best.value,
        "best_trial": None if best is None else best.number,
        "best_params": {} if best is None else best.params,
    }


def _trial_dict(trial: TrialOutcome) -> dict[str, Any]:
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


def _without_trials(search: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in search.items() if key != "trials"}


def _flat(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {**{k: v for k, v in row.items() if k != key}, **row[key]}


def _title(found: Sequence[SearchOutcome]) -> str:
    search = found[0].search
    wanted = "lowest" if search.tune.direction == "minimize" else "highest"
    seeds = f"seed {search.seeds[0]}" if len(search.seeds) == 1 else f"mean over {len(search.seeds)} seeds"
    return f"{search.study.name}: the {wanted} {search.tune.objective} ({seeds}, {search.tune.sampler})"


def _best_cells(outcome: SearchOutcome) -> list[str]:
    best = outcome.best
    ending = [NOTHING] * 3 if best is None else [_value(best), str(best.number), _settings(best)]
    return [outcome.search.label, *(str(outcome.counts[status]) for status in _COUNTS), *ending]


def _cells(trial: TrialOutcome) -> list[str]:
    why = f" ({trial.reason})" if trial.reason else ""
    return [str(trial.number), f"{trial.status}{why}", _value(trial), _settings(trial)]


def _value(trial: TrialOutcome) -> str:
    return NOTHING if trial.value is None else f"{trial.value:.5g}"


def _settings(trial: TrialOutcome) -> str:
    return ", ".join(trial.settings) or NOTHING


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _rich_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title)
    for column in columns:
        words = column in ("variant", "status", "settings")
        table.add_column(column, justify="left" if words else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
