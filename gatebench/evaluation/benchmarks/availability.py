"""Whether packages and the hub's data are here, so that what is missing is an error at once and no wait.

Imports neither lm-eval nor `datasets`, which take seconds, and read HF_HUB_OFFLINE when they are imported.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from gatebench.errors import UserError
from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
from gatebench.evaluation.benchmarks.suites import BUNDLED, PAPER, Options, of_suite

PATIENCE_S = 1.5
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


def check_installed() -> None:
    """Raise UserError where a package of the extra `benchmarks` is missing."""
    if lacking := [name for name in ("lm_eval", "datasets", "accelerate", "peft") if find_spec(name) is None]:
        raise UserError(
            f"benchmarks need {', '.join(lacking)}; the extra `benchmarks` has all: pip install 'gatebench[benchmarks]'"
        )


def check_data(checkpoints: Sequence[Checkpoint], names: Sequence[str], suite: str, options: Options) -> None:
    """Go offline where the hub is not needed or does not answer, and refuse what is then not to be had.

    A task that every checkpoint has a result of needs no data. Raises UserError for a task of the paper's whose data
    set is missing.
    """
    of_hub = suite == "paper" or any(not name.startswith(BUNDLED) for name in names)
    go_offline_unless_reachable(needed=of_hub or not all(Path(one.source).is_dir() for one in checkpoints))
    if options.task_dir is None:
        asked = names or (of_suite("paper", context=0, unsafe_code=options.unsafe_code) if suite == "paper" else ())
        refuse_missing(
            task for task in asked if not all((one.folder / f"{task}.json").is_file() for one in checkpoints)
        )


def go_offline_unless_reachable(needed: bool = True) -> None:
    """Set HF_HUB_OFFLINE where the hub does not answer, or where nothing of it is `needed`."""
    if not needed or is_offline() or not _reachable():
        os.environ["HF_HUB_OFFLINE"] = "1"


def is_offline() -> bool:
    """Say whether the hub is not to be asked."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in _OFFLINE)


def refuse_missing(tasks: Iterable[str]) -> None:
    """Raise UserError for a task of the paper's whose data set is neither in the hub's cache nor to be had."""
    for name in tasks:
        if name in PAPER and not is_here(PAPER[name].data_set):
            raise missing(name, PAPER[name].data_set, "it is not in the hub's cache, and the hub cannot be reached")


def is_here(data_set: str) -> bool:
    """Say whether a data set can be read, as far as that is quickly known: offline, a hub's only from its cache."""
    from huggingface_hub import constants

    if not is_offline() or data_set.count("/") != 1 or Path(data_set).exists():
        return True
    owner, name = data_set.split("/")
    prepared = Path(os.environ.get("HF_DATASETS_CACHE", Path(constants.HF_HOME) / "datasets"))
    return (Path(constants.HF_HUB_CACHE) / f"datasets--{owner}--{name}").is_dir() or any(prepared.glob(f"{owner}___*"))


def missing(task: str, data_set: str, reason: str) -> UserError:
    """Return the error for a task whose data set cannot be read."""
    return UserError(
        f"task '{task}': data set {data_set} cannot be read ({reason}); legal: a network, a copy in the "
        "hub's cache (HF_HOME), or --suite offline, which needs neither"
    )


def _reachable() -> bool:
    """Connect to the hub; a name server that does not answer has no time-out of its own, hence the thread."""
    where = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    answered = threading.Event()

    def connect() -> None:
        port = where.port or (80 if where.scheme == "http" else 443)
        try:
            socket.create_connection((where.hostname or "", port), timeout=PATIENCE_S).close()
        except Exception:  # whatever it is, the hub is not there
            return
        answered.set()

    asking = threading.Thread(target=connect, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return answered.is_set()
