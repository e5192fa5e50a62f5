"""Workers on this machine: processes of `gatebench tune-worker`, as many as there is work for and slots."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from optuna.trial import FrozenTrial

from gatebench.sweep.launch import STOP_PATIENCE_S, Slots, environment, local_slots, sigterm_ends_with_cleanup, stop
from gatebench.sweep.tuning.lease import newest
from gatebench.sweep.tuning.progress import Progress
from gatebench.sweep.tuning.search import STORAGE
from gatebench.sweep.tuning.worker import Tuning

LOOK_S = 0.5
LEAVE_PATIENCE_S = 5.0
"""How long workers may take to leave when every trial has ended; one that was paused would never."""
CRASHES = 3
"""How many workers may end by an error, with no trial ending meanwhile, before the pool gives up."""


class WorkersFail(Exception):
    """Workers end by errors, one after the other."""


@dataclass
class Worker:
    """One process, its slot and its log."""

    process: subprocess.Popen[bytes]
    slot: int
    log: Path


def worker_command(word: str, tuning: Tuning, threads: int) -> list[str]:
    """Return the command of a worker; the storage is in the environment."""
    command = [sys.executable, "-m", "gatebench", "tune-worker", word, "--threads", str(threads)]
    command += ["--trials", str(tuning.searches[0].tune.trials), "--max-retries", str(tuning.options.max_retries)]
    return [*command, "--stale-after", str(tuning.options.stale_s)]


def worker_slots(tuning: Tuning, n_workers: int | None) -> Slots:
    """Return a slot for each worker: one a GPU, or on CPU one a core; more CPU workers than cores where asked for."""
    train = tuning.searches[0].config({}, 0).train
    n_gpus = 0
    if train.accelerator in ("auto", "gpu"):
        import torch

        n_gpus = torch.cuda.device_count()
    n_trials = sum(len(trials) for trials in tuning.trials())
    slots = local_slots(n_trials, n_gpus=n_gpus, devices=train.devices, max_parallel=n_workers)
    return Slots(n_workers, 1) if n_workers and n_workers > slots.n and not n_gpus else slots


@dataclass
class Pool:
    """The workers of one command."""

    tuning: Tuning
    word: str
    """The study, as the command line gives it."""
    slots: Slots
    progress: Progress
    workers: list[Worker] = field(default_factory=list)
    crashes: int = 0

    def run(self) -> None:
        """Return when every trial has ended. Whatever ends this ends the workers, and they their runs."""
        still = self.tuning.open_trials()
        with sigterm_ends_with_cleanup():
            try:
                while still:
                    if self.progress.show():
                        self.crashes = 0
                    self._reap()
                    for _ in range(self._missing(still)):
                        self._start()
                    time.sleep(LOOK_S)
                    still = self.tuning.open_trials()
                self.progress.show()
            finally:
                stop([worker.process for worker in self.workers], STOP_PATIENCE_S if still else LEAVE_PATIENCE_S)

    def _reap(self) -> None:
        """Forget the workers that have ended. Raises WorkersFail where they end by errors and nothing else happens."""
        for worker in list(self.workers):
            if (code := worker.process.poll()) is None:
                continue
            self.workers.remove(worker)
            if code == 0:
                continue
            self.crashes += 1
            message = f"a worker ended with exit status {code} ({worker.log})"
            self.progress.say(message)
            if self.crashes > CRASHES:
                raise WorkersFail(message)

    def _missing(self, still: list[tuple[int, FrozenTrial]]) -> int:
        """Return how many workers to start: one for each trial that nobody has, and that no worker is about to take."""
        leases = [newest(self.tuning.lease_folder(trial), self.tuning.options.stale_s) for _, trial in still]
        free = sum(lease is None or not lease.is_alive() for lease in leases)
        owners = {lease.owner_here() for lease in leases if lease is not None}  # a paused one's lease is there, stale
        about_to = sum(worker.process.pid not in owners for worker in self.workers)
        return min(self.slots.n - len(self.workers), free - about_to)

    def _start(self) -> None:
        slot = min(set(range(self.slots.n)) - {worker.slot for worker in self.workers})
        log = self.tuning.folder / f"worker{slot}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        env = environment(self.slots.threads, self.slots.gpus[slot] if self.slots.gpus else ())
        env[STORAGE] = self.tuning.options.storage
        command = worker_command(self.word, self.tuning, self.slots.threads)
        with open(log, "ab") as out:
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.workers.append(Worker(process, slot, log))
