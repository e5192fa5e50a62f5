"""`gatebench tune`: what is checked and built first, the workers here or on a cluster, and what is shown meanwhile."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gatebench.data.presets import PRESETS, ensure_corpus
from gatebench.errors import UserError, nearest
from gatebench.sweep import slurm, snapshot
from gatebench.sweep.job import Job
from gatebench.sweep.pool import Pool, Slots, local_slots
from gatebench.sweep.profiles import ClusterProfile
from gatebench.sweep.search import Search, SearchOutcome, Status, TrialOutcome, Tuning, work_folder
from gatebench.sweep.status_table import LiveTable
from gatebench.sweep.storage import STORAGE
from gatebench.sweep.submissions import new_submission, queued
from gatebench.sweep.trials import Tuner

LOOK_S = 10.0
"""Between two questions to the scheduler."""
STATUSES: tuple[Status, ...] = ("complete", "diverged", "pruned", "failed", "running", "waiting")
ENDED = STATUSES[:4]
TRAINING_COLUMNS = ("final_train_loss", "tokens_per_s", "train_wall_s")
"""What can be an objective besides what an evaluation measures."""


def prepare(searches: list[Search], console: Console, *, elsewhere: bool) -> None:
    """Build the corpora and check a run of each search, on this machine unless `elsewhere`. Raises UserError."""
    from gatebench.training import run

    for search in searches:
        config = search.config({}, search.seeds[0])
        if elsewhere and (n_nodes := config.train.num_nodes) > 1:
            raise UserError(f"train.num_nodes={n_nodes}: a worker has one node; legal: train.num_nodes=1")
        if config.data.corpus in PRESETS:
            ensure_corpus(config.data.corpus, log=console.print)
        _, corpus, _ = run.prepare(config, elsewhere=elsewhere)
        legal = [*TRAINING_COLUMNS, *run.metric_names(corpus)]
        if (objective := search.tune.objective) not in legal:
            raise UserError(f"study '{search.study.name}': tune.objective={objective}: {nearest(objective, legal)}")


def tune_slots(tuning: Tuning, n_workers: int | None) -> Slots:
    """Return a slot for each trial that goes on: one a GPU, or on CPU one a core; more than cores where asked for."""
    train = tuning.searches[0].config({}, 0).train
    n_gpus = 0
    if train.accelerator in ("auto", "gpu"):
        import torch

        n_gpus = torch.cuda.device_count()
    n_trials = sum(len(trials) for trials in tuning.trials())
    slots = local_slots(n_trials, n_gpus=n_gpus, devices=train.devices, max_parallel=n_workers)
    return Slots(n_workers, 1) if n_workers and n_workers > slots.n and not n_gpus else slots


def tune_here(tuning: Tuning, slots: Slots, max_retries: int, progress: Progress, *, as_worker: bool = False) -> None:
    """Bring every trial to its end on this machine; `as_worker`, only those that no other worker has."""
    with Pool(slots, "" if as_worker else tuning.study.name) as pool:
        Tuner(tuning, pool, max_retries, progress).run(as_worker=as_worker)


class Progress(LiveTable):
    """The trials of a study, as they end."""

    def __init__(self, tuning: Tuning, console: Console) -> None:
        super().__init__(console)
        self.tuning = tuning
        self._told = {_key(trial) for search in tuning.outcomes() for trial in search.trials if trial.status in ENDED}

    def show(self) -> bool:
        """Draw the table again, and print a line for every trial that has ended since; return whether one has."""
        outcomes = self.tuning.outcomes()
        n_trials = sum(len(search.trials) for search in outcomes)
        new = [t for search in outcomes for t in search.trials if t.status in ENDED and _key(t) not in self._told]
        for trial in new:
            self._told.add(_key(trial))
            self.say(f"[{len(self._told)}/{n_trials}] {describe(trial, self.tuning.study.name)}")
        if self._live is not None:
            self._live.update(_table(outcomes))
        return bool(new)


def describe(trial: TrialOutcome, study: str) -> str:
    """Return a trial in one line."""
    value = "" if trial.value is None else f" {trial.value:.4g}"
    why = f": {trial.reason}" if trial.reason else ""
    name = " ".join(filter(None, (study, trial.variant, trial.setting)))
    return f"{name} trial {trial.number} ({' '.join(trial.settings)}): {trial.status}{value}{why}"


def _table(outcomes: Sequence[SearchOutcome]) -> Table:
    table = Table()
    table.add_column("variant")
    for status in STATUSES:
        table.add_column(status, justify="right")
    table.add_column("best", justify="right")
    for outcome in outcomes:
        best = "-" if outcome.best is None else f"{outcome.best.value:.4g}"
        table.add_row(Text(outcome.search.label), *(str(outcome.counts[status]) for status in STATUSES), best)
    return table


def _key(trial: TrialOutcome) -> tuple[str, str, int]:
    return trial.variant, trial.setting, trial.number


def tune_on_cluster(
    tuning: Tuning,
    word: str,
    profile: ClusterProfile,
    n_workers: int | None,
    max_retries: int,
    progress: Progress,
    *,
    detach: bool,
) -> None:
    """Submit workers, unless some are queued, and wait until every trial has ended or no worker is left.

    `word` is the study, as the command line gives it; `n_workers` defaults to one for each variant. With `detach`
    nothing is waited for. Raises UserError where the scheduler does not answer or refuses.
    """
    n_queued = _queued_workers(tuning)
    if n_queued is None:
        raise UserError("squeue does not answer; legal: the same command once the scheduler is back")
    if not n_queued:
        n_workers = min(len(tuning.open_trials()), n_workers or len(tuning.searches))
        _submit_workers(tuning, word, profile, n_workers, max_retries)
        progress.say(f"{n_workers} workers submitted; logs: {work_folder(tuning.study, tuning.storage_name)}")
    looks_without = 0
    while not detach and tuning.open_trials() and looks_without < 2:  # the disk of another machine may tell late
        time.sleep(LOOK_S)
        looks_without = looks_without + 1 if _queued_workers(tuning) == 0 else 0
        progress.show()


def _queued_workers(tuning: Tuning) -> int | None:
    """Return how many workers are in the queue; None where SLURM does not answer."""
    places, folder = queued(tuning.study.name), work_folder(tuning.study, tuning.storage_name)
    return None if places is None else list(places.values()).count(folder)


def _submit_workers(tuning: Tuning, word: str, profile: ClusterProfile, n_workers: int, max_retries: int) -> None:
    config, folder = tuning.searches[0].config({}, 0), work_folder(tuning.study, tuning.storage_name)
    ((parameters, _),) = slurm.shapes([Job(config, folder)], profile, None)
    threads = profile.cpus_per_task * config.train.devices
    parameters |= {"ntasks_per_node": 1, "cpus_per_task": threads}
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[STORAGE] = tuning.storage_name  # sbatch hands it on
    submission = new_submission(tuning.study.name)
    code = snapshot.take(submission.path)
    array = submission.add([folder] * n_workers)
    command = [sys.executable, "-m", "gatebench", "tune-worker", word, "--threads", str(threads)]
    command += ["--trials", str(tuning.searches[0].tune.trials), "--max-retries", str(max_retries)]
    tasks = [
        slurm.CommandInJob(
            command, threads, folder / f"{array.name}_{i}.log", profile.max_requeues, submission.cancelled
        )
        for i in range(n_workers)
    ]
    slurm.submit_array(tasks, array, submission, code, profile, parameters, n_workers)
