"""What tuning shows while it goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from gatebench.sweep.live import LiveTable
from gatebench.sweep.tuning.outcome import SearchOutcome, TrialOutcome, outcomes
from gatebench.sweep.tuning.worker import Status, Tuning

STATUSES: tuple[Status, ...] = ("complete", "diverged", "pruned", "failed", "running", "waiting")
ENDED = STATUSES[:4]


class Progress(LiveTable):
    """The trials of a study, as they end."""

    def __init__(self, tuning: Tuning, console: Console) -> None:
        super().__init__(console)
        self.tuning = tuning
        self._told = {_key(trial) for found in outcomes(tuning) for trial in found.trials if trial.status in ENDED}

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


def describe(trial: TrialOutcome, study: str) -> str:
    """Return a trial in one line."""
    value = "" if trial.value is None else f" {trial.value:.4g}"
    why = f": {trial.reason}" if trial.reason else ""
    name = " ".join(filter(None, (study, trial.variant, trial.setting)))
    return f"{name} trial {trial.number} ({' '.join(trial.settings)}): {trial.status}{value}{why}"


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
