"""What is shown while runs go on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gatebench.sweep.job import Job, State
from gatebench.training.rundir import seconds_left

_STATES: tuple[State, ...] = ("done", "diverged", "running", "waiting", "failed")
_SHOWN: dict[State, int] = {"failed": 8, "running": 32, "done": 4, "diverged": 4, "waiting": 4}
"""How many runs of a state have a row of their own; the title counts all."""


class LiveTable:
    """A table on the terminal that is drawn again as things change, and lines that stay above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        """None where the output is no terminal."""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *ended: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self) -> bool | None:
        """Draw the table again."""

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


class StatusTable(LiveTable):
    """The runs of one sweep, as they stand."""

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        super().__init__(console)
        self.jobs = jobs
        self._started = time.monotonic()
        self._finished_before = self._finished()

    def show(self) -> None:
        """Draw the table again, or print a line for every run that has come a fifth further."""
        if self._live is not None:
            self._live.update(self.table())
            return
        for job in self.jobs:
            if job.state == "running":
                self._report_fifth(job)

    def ended(self, job: Job) -> None:
        """Say how a run ended; on a terminal the table does, and only what went wrong stays on the screen."""
        if self._live is None or job.state == "failed":
            self.say(f"{job.name}: {describe(job)}")

    def table(self) -> Table:
        """Return the runs as a table: those that are going on, and the latest of every other state."""
        counts = Counter(job.state for job in self.jobs)
        others = ", ".join(f"{counts[state]} {state}" for state in _STATES[1:] if counts[state])
        title = f"{counts['done']} of {len(self.jobs)} runs done{', ' if others else ''}{others}, {self._time()}"
        table = Table(title=title)
        for column in ("run", "status", "step", "loss", "tokens/s", "left"):
            table.add_column(column, justify="left" if column in ("run", "status") else "right")
        chosen: set[int] = set()
        for state, number in _SHOWN.items():
            members = [i for i, job in enumerate(self.jobs) if job.state == state]
            chosen.update(members[:number] if state in ("running", "waiting") else members[-number:])
        for i in sorted(chosen):
            step, loss, rate, left = _progress(self.jobs[i])
            words = Text(self.jobs[i].name), Text(describe(self.jobs[i])[:60])  # brackets in them are no markup
            table.add_row(*words, step, loss, rate, left)
        return table

    def _report_fifth(self, job: Job) -> None:
        row = job.last_row()
        fifth = -1 if row is None else 5 * row["step"] // job.config.train.steps
        if fifth > job.reported:
            job.reported = fifth
            step, loss, rate, left = _progress(job)
            self.say(f"{job.name}: step {step}  loss {loss}  {rate} tokens/s  {left} left")

    def _finished(self) -> int:
        return sum(job.state in ("done", "diverged") for job in self.jobs)

    def _time(self) -> str:
        """Return the time since the start, and what is left at the pace since then."""
        elapsed = time.monotonic() - self._started
        made = self._finished() - self._finished_before
        left = len(self.jobs) - self._finished()
        if not made or not left:
            return f"{elapsed:.0f} s"
        return f"{elapsed:.0f} s, about {elapsed / made * left:.0f} s left"


def describe(job: Job) -> str:
    """Return a run's state; of one that failed, why."""
    if job.state != "failed":
        return job.state
    exit_code = "" if job.exit_code is None else f" (exit {job.exit_code})"
    return f"failed{exit_code}: {job.last_message()}"


def _progress(job: Job) -> tuple[str, str, str, str]:
    """Return step, loss, tokens/s and time left, as text."""
    row = None if job.state == "waiting" else job.last_row()
    steps = job.config.train.steps
    if row is None:
        return f"0/{steps}", "-", "-", "-"
    loss = "-" if row["loss"] is None else f"{row['loss']:.3f}"
    seconds = seconds_left(row, steps)
    left = "-" if job.state != "running" else "evaluating" if seconds == 0 else f"{seconds:.0f} s"
    return f"{row['step']}/{steps}", loss, f"{row['tokens_per_s']:,.0f}", left
