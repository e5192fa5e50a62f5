"""`metrics.csv`: begun with all rows that are there, then grown by the new ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gatebench.training import loggers
from gatebench.training.rundir import RunDirectory
from tests.training.tiny_run import tiny_config


def test_csv_begins_with_what_an_earlier_attempt_has_and_then_reads_nothing_again(
    tmp_path: Path, tiny_recipe: str
) -> None:
    directory = RunDirectory(tmp_path)
    (listener,) = loggers.listeners(tiny_config(tiny_recipe, "train.loggers=[csv]"), directory, 2)
    rows: list[dict[str, Any]] = [{"step": step, "loss": 6.0 - step / 2} for step in range(1, 6)]
    directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]), encoding="utf-8")
    listener(rows[2:3])  # the first after a resume at step 2
    assert (tmp_path / "metrics.csv").read_text(encoding="utf-8") == "step,loss\n1,5.5\n2,5.0\n3,4.5\n"
    directory.metrics.unlink()
    listener(rows[3:])
    assert (tmp_path / "metrics.csv").read_text(encoding="utf-8") == "step,loss\n1,5.5\n2,5.0\n3,4.5\n4,4.0\n5,3.5\n"
