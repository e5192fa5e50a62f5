"""How these tests call `gatebench`: in this process, with the words that a user types."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner, Result

from gatebench.cli import app
from gatebench.errors import UserError

Call = Callable[..., tuple[int, str, str]]
"""The fixture `call`: words -> exit status, standard output, standard error."""


class Command:
    """`Command("params")("--table", "1")` runs `gatebench params --table 1`; exceptions are in the result."""

    def __init__(self, *first: str, columns: int = 160) -> None:
        self.first = first
        self.columns = str(columns)

    def __call__(self, *words: object) -> Result:
        return CliRunner().invoke(app, [*self.first, *map(str, words)], env={"COLUMNS": self.columns})

    def json(self, *words: object) -> Any:
        """Return what the command prints with --json; standard output must hold that alone."""
        result = self(*words, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def refusal(self, *words: object) -> str:
        """Return the message of the UserError that the words must end in."""
        result = self(*words)
        assert isinstance(result.exception, UserError), result.output
        return str(result.exception)
