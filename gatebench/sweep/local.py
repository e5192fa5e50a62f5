"""Train what is missing of a study on this machine."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from gatebench.data.presets import PRESETS, ensure_corpus
from gatebench.sweep import launch
from gatebench.sweep.launch import Job
from gatebench.sweep.plan import PlannedRun, plan
from gatebench.sweep.study import Study


def train_missing(
    study: Study, console: Console, *, max_parallel: int | None = None
) -> tuple[list[PlannedRun], list[Job]]:
    """Build the corpora, check every missing run, then train them side by side; return the plan and what failed.

    Progress goes to `console`. Done runs are left alone. Raises UserError before anything is trained.
    """
    configs = study.runs()  # refuse what is not legal before a corpus is built
    for corpus in dict.fromkeys(config.data.corpus for config in configs):
        if corpus in PRESETS:
            ensure_corpus(corpus, log=console.print)
    planned = plan(study)
    if all(run.finished for run in planned):
        return planned, []

    import torch

    from gatebench.training.run import prepare, run_directory

    by_directory: dict[Path, Job] = {}  # two combinations may mean the same run
    for run in planned:
        prepared = run.config if run.finished else prepare(run.config)[0]
        directory = run_directory(prepared).path
        job = Job(prepared, directory, run.recipe, run.combination.overrides, run.combination.label)
        by_directory.setdefault(directory, job)
    jobs = list(by_directory.values())
    waiting = [job for job in jobs if not job.done]
    for job in waiting:
        run_directory(job.config).claim(job.config)
    on_gpus = all(job.config.train.accelerator in ("auto", "gpu") for job in waiting)
    n_gpus = torch.cuda.device_count() if on_gpus else 0
    devices = max(job.config.train.devices for job in waiting) if n_gpus else 1
    slots = launch.local_slots(len(jobs), n_gpus=n_gpus, devices=devices, max_parallel=max_parallel)
    console.print(
        f"{len(jobs)} runs, {len(jobs) - len(waiting)} done, {slots.n} at a time with {slots.threads} thread(s) each",
        highlight=False,
    )
    failed = launch.run_all(jobs, slots, console)
    return plan(study), failed
