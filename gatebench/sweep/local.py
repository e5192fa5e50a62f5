"""Train what is missing of a study on this machine."""

from __future__ import annotations

from rich.console import Console

from gatebench.sweep import launch
from gatebench.sweep.job import Job
from gatebench.sweep.missing import missing_runs
from gatebench.sweep.plan import PlannedRun, plan
from gatebench.sweep.study import Study
from gatebench.sweep.submissions import only_sweep_here


def train_missing(
    study: Study,
    console: Console,
    *,
    max_parallel: int | None = None,
    gpus_per_run: float | None = None,
    retry_failed: bool = False,
) -> tuple[list[PlannedRun], list[Job]]:
    """Build the corpora, check every missing run, then train them side by side; return the plan and what has no result.

    Progress goes to `console`. Done runs are left alone. Raises UserError before anything is trained.
    """
    missing = missing_runs(study, console, retry_failed=retry_failed)
    if all(run.finished for run in missing.planned):
        return missing.planned, []

    import torch

    on_gpus = all(job.config.train.accelerator in ("auto", "gpu") for job in missing.waiting)
    slots = launch.local_slots(
        len(missing.jobs),
        n_gpus=torch.cuda.device_count() if on_gpus else 0,
        devices=max((job.config.train.devices for job in missing.waiting), default=1),
        max_parallel=max_parallel,
        gpus_per_run=gpus_per_run,
    )
    left = missing.failed + missing.elsewhere
    console.print(
        f"{len(missing.jobs)} runs, {len(missing.jobs) - len(missing.waiting) - len(left)} done, "
        f"{slots.n} at a time with {slots.threads} thread(s) each",
        highlight=False,
        soft_wrap=True,
    )
    with only_sweep_here(study):
        failed = launch.run_all([job for job in missing.jobs if job not in left], slots, console)
    return plan(study), failed + left
