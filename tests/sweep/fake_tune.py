"""The command line, with a stand-in for training under `gatebench tune`: no torch, a known loss, seconds at most.

The stand-in claims, fences, publishes and ends as `gatebench train` does; only what it writes is made up. Its loss is a
parabola of the learning rate; a rate above 0.5 diverges, and rate ERROR ends by an error.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gatebench.training.attempt import Attempt, die_with_launcher, new_attempt, settle, wait_for_others
from gatebench.training.rundir import RunDirectory

ERROR = 0.02
STEPS = 20
STEP_S = "FAKE_STEP_S"
"""Environment variable: seconds that a step takes."""


def loss_at(lr: float) -> float:
    return 1 + (math.log10(lr) + 2) ** 2 / 4


def train(words: list[str]) -> None:
    die_with_launcher()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    (directory,) = (after for word, after in itertools.pairwise(words) if word in ("--out", "--resume"))
    run = RunDirectory(Path(directory))
    lr = run.read_config().optim.lr
    with open(run.path / "starts", "a", encoding="utf-8") as starts:
        starts.write("started\n")
    if run.is_done():
        return
    wait_for_others(run)
    settle(run)
    with new_attempt(run) as attempt:
        _train(attempt, lr)


def _train(attempt: Attempt, lr: float) -> None:
    for step in range(1, STEPS + 1):
        time.sleep(float(os.environ.get(STEP_S, "0.02")))
        if lr == ERROR and step == 3:
            attempt.record_failure("own", "ValueError: made up")
            sys.exit("ValueError: made up")
        diverged = lr > 0.5 and step == 5
        row = {"step": step, "tokens": step, "loss": None if diverged else loss_at(lr), "tokens_per_s": 1.0}
        with open(attempt.metrics, "a", encoding="utf-8") as metrics:  # of a folder that is gone once superseded
            metrics.write(json.dumps(row) + "\n")
        if diverged:
            attempt.publish({"status": "diverged", "avg_ppl": None})
            return
    attempt.publish({"status": "done", "avg_ppl": math.exp(loss_at(lr))})


def main() -> None:
    """`tune` and `tune-worker` with the stand-in."""
    from gatebench.cli import main as gatebench
    from gatebench.sweep import tune

    popen: Any = subprocess.Popen

    def with_stand_in(command: list[str], *given: Any, **more: Any) -> Any:
        if command[1:4] == ["-m", "gatebench", "train"]:
            command = [sys.executable, __file__, "fake-train", *command[4:]]
        return popen(command, *given, **more)

    subprocess.Popen = with_stand_in  # type: ignore[assignment, misc]
    tune.prepare = lambda *given, **more: None
    gatebench()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    if sys.argv[1] == "fake-train":
        train(sys.argv[2:])
    else:
        main()
