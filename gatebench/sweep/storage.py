"""Where the trials of a search are kept: a journal of Optuna on a shared disk, or a PostgreSQL."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from gatebench.errors import UserError

STORAGE = "GATEBENCH_STORAGE"
"""Environment variable with the storage: a password in it is on no command line."""
_TRIES, _PAUSE_S = 5, 1.0
_TAIL_BYTES = 65_536
"""Of a journal, in which its last record is looked for."""


def open_storage(storage: str) -> BaseStorage:
    """Open a journal by its path, or a PostgreSQL by its URL. Raises UserError for anything else."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    if "://" not in storage:
        path = Path(storage)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return JournalStorage(_Journal(path))
        except OSError as error:
            raise UserError(f"--storage {storage}: {error.strerror}; legal: the path of a journal") from None
        except (KeyError, IndexError, TypeError, AssertionError):  # its lines are JSON, and not all that Optuna wrote
            raise _damaged(path) from None
    from sqlalchemy import make_url
    from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

    try:
        url = make_url(storage)
    except SQLAlchemyError:
        raise UserError("--storage: not a URL; legal: the path of a journal, or postgresql://user@host/base") from None
    if url.get_backend_name() != "postgresql":
        raise UserError(f"--storage {url}: legal: the path of a journal, or postgresql://user@host/base")
    if importlib.util.find_spec("psycopg") is None:
        raise UserError(f"--storage {url}: package psycopg is missing; pip install 'gatebench[postgres]'")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    address = url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    tries = 0
    while True:
        tries += 1
        try:
            return RDBStorage(address, engine_kwargs={"pool_pre_ping": True})
        except SQLAlchemyError as error:
            # Commands that open an empty base at once make its tables at once: the second finds them soon.
            if tries == _TRIES or not isinstance(error, IntegrityError | ProgrammingError):
                raise UserError(f"--storage {url}: {str(error.__cause__ or error).splitlines()[0]}") from None
            time.sleep(_PAUSE_S)


class _MendingLock(JournalFileOpenLock):
    """Optuna's lock on a journal; who has it cuts off what a killed process left unfinished at the end.

    Nobody has read that. The next record would be glued to it, and nothing could be read from there on. Not the lock by
    symbolic link, Optuna's default: not every file system has them.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def acquire(self) -> bool:
        """Wait for the lock, then look at the journal's end."""
        acquired = super().acquire()
        try:
            with open(self.path, "rb+") as journal:
                journal.seek(max(0, journal.seek(0, os.SEEK_END) - _TAIL_BYTES))
                if not _is_record(journal.read().splitlines(keepends=True)[-1:]):
                    journal.seek(0)
                    lines = journal.readlines()
                    while lines and not _is_record(lines[-1:]):
                        lines.pop()
                    journal.truncate(sum(map(len, lines)))
        except BaseException:
            self.release()
            raise
        return acquired


def _is_record(last_line: list[bytes]) -> bool:
    """Return whether the last line, where there is one, is whole."""
    try:
        return all(line.endswith(b"\n") and isinstance(json.loads(line), dict) for line in last_line)
    except ValueError:
        return False


class _Journal(JournalFileBackend):
    """Optuna's journal file, whose damages are one line for the user."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _MendingLock(path))
        self.path = path

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        """Yield the records from a number on. Raises UserError for one that cannot be read."""
        try:
            yield from super().read_logs(log_number_from)
        except ValueError:
            raise _damaged(self.path) from None


def _damaged(journal: Path) -> UserError:
    return UserError(
        f"{journal}: damaged, a line in it cannot be read; remove it, or name another --storage, and repeat the line: "
        "runs that are done count at once (docs/tuning.md)"
    )
