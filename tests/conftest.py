"""Test-wide settings: one thread, no hub, no display, and no run directory in the user's results."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

# Before anything imports torch or numpy: results must not depend on how many cores share the sum,
# and pytest-xdist already uses the cores. Programs that tests start inherit this.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest
from hypothesis import settings

settings.register_profile("gatebench", deadline=None, derandomize=True)
settings.load_profile("gatebench")


@pytest.fixture(scope="session", autouse=True)
def runs_outside_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Point `GATEBENCH_RUNS` at a temporary folder, so that no test reads or writes the user's runs."""
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GATEBENCH_RUNS", str(runs))
        yield runs


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Undo a test's change of torch's thread count; torch is not imported for this."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture
def sigint_as_at_a_terminal() -> Iterator[None]:
    """Let Ctrl-C interrupt, as at a terminal: what a script starts in the background (`make test &`) ignores it."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)
