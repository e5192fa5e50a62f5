"""One run to be trained: the command that trains it, and what its directory says about it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gatebench.config import RunConfig
from gatebench.training.attempt import Attempt, current_attempt
from gatebench.training.rundir import RunDirectory, read_json

State = Literal["waiting", "running", "done", "diverged", "failed"]
RETRIES = 2
"""How often a sweep starts a run again that was ended from outside; the same line later tries as often again."""


@dataclass(eq=False)
class Job:
    """One run, whose directory holds its `config.yaml` before it is started."""

    config: RunConfig
    directory: Path
    label: str = ""
    """What sets the run apart from others of its variant and seed."""
    process: subprocess.Popen[bytes] | None = None
    gpus: tuple[int, ...] = ()
    exit_code: int | None = None
    state: State = "waiting"
    """As the launcher knows it; what is done is read from the directory."""
    starts: int = 0
    """How often this launcher has started it."""
    reported: int = field(default=-1)
    """Fifths of the run that were reported on a line."""

    @property
    def name(self) -> str:
        """Variant, seed, and what else sets the run apart."""
        return " ".join(filter(None, (f"{self.config.variant} seed {self.config.seed}", self.label)))

    @property
    def files(self) -> RunDirectory:
        """What the run writes."""
        return RunDirectory(self.directory)

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that counts, of a run that is not done."""
        return current_attempt(self.files)

    @property
    def done(self) -> bool:
        """Whether the run's summary is there."""
        return self.files.is_done()

    def command(self, threads: int) -> list[str]:
        """Return the command line that trains what `config.yaml` says."""
        command = [sys.executable, "-m", "gatebench", "train", "--resume", str(self.directory)]
        return [*command, "--threads", str(threads)]

    def last_row(self) -> dict[str, Any] | None:
        """Return the newest complete metrics row."""
        return self.files.last_row()

    def last_message(self) -> str:
        """Return the last line of the run's log."""
        return self.files.last_message()

    def finish(self) -> bool:
        """Set the state of a run that has its result; return whether it has."""
        result = self.files.result()
        if result is None:
            return False
        self.state = result
        return True

    def ended_outside(self) -> bool:
        """Return whether the last attempt ended for a reason from outside, which trying again may get past."""
        if self.exit_code is not None and self.exit_code < 0:
            return True
        attempt = self.attempt
        failure = None if attempt is None else read_json(attempt.failure)
        return failure is not None and failure["reason"] == "outside"
