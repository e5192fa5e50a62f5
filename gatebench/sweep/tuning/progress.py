"""What tuning shows while it goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.table import Table

from gatebench.sweep.tuning.outcome import SearchOutcome, TrialOutcome, outcomes
from gatebench.sweep.tuning.worker import Status, Tuning

STATUSES: tuple[Status, ...] = ("complete", "diverged", "pruned", "failed", "running", "waiting")
ENDED = STATUSES[:4]


class Progress:
    """The trials of a study, as they end."""

    def __init__(self, tuning: Tuning, console: Console) -> None:
        self.tuning = tuning
        self.console = console
        self._told = {_key(trial) for found in outcomes(tuning) for trial in found.trials if trial.status in ENDED}
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *ended: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self) -> bool:
        """Draw the table again, and print a line for every trial that has ended since; return whether one has."""
        found = outcomes(self.tuning)
        n_trials = sum(len(search.trials) for search in found)
        new = [t for search in found for t in search.trials if t.status in ENDED and _key(t) not in self._told]
        for trial in new:
            self._told.add(_key(trial))
            self.say(f"[{len(self._told)}/{n_trials}] {describe(trial, self.tuning.study.name)}")
        if self._live is not None:
            self._live.update(_table(found))
        return bool(new)

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def describe(trial: TrialOutcome, study: str) -> str:
    """Return a trial in one line."""
    params = " ".join(f"{key}={shown(value)}" for key, value in trial.params.items())
    value = "" if trial.value is None else f" {trial.value:.4g}"
    why = f": {trial.reason}" if trial.reason else ""
    name = " ".join(filter(None, (study, trial.variant, trial.setting)))
    return f"{name} trial {trial.number} ({params}): {trial.status}{value}{why}"


def shown(value: object) -> str:
    """Return a setting as a reader wants it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(found: list[SearchOutcome]) -> Table:
    table = Table()
    table.add_column("variant")
    for status in STATUSES:
        table.add_column(status, justify="right")
    table.add_column("best", justify="right")
    for search in found:
        best = "-" if search.best is None else f"{search.best.value:.4g}"
        table.add_row(search.search.label, *(str(search.counts[status]) for status in STATUSES), best)
    return table


def _key(trial: TrialOutcome) -> tuple[str, str, int]:
    return trial.variant, trial.setting, trial.number
