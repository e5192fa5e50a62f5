"""What a run loads before its first step."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from gatebench.training.startup import UNUSED, import_torchmetrics
import_torchmetrics()
import gatebench.evaluation.evaluate, gatebench.training.run
assert not set(UNUSED) & set(sys.modules), set(UNUSED) & set(sys.modules)
from lightning_utilities.core.imports import RequirementCache, package_available
assert RequirementCache("scipy") and package_available("scipy")
"""


def test_a_run_loads_no_package_for_scores_that_nobody_uses() -> None:
    """And what is installed is known to be installed afterwards."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
