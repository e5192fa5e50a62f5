"""`gatebench ablation`: a variant and the baseline on the same seeds, and what the difference is worth."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gatebench.cli.train import Overrides, Recipe


def ablation(
    variant: Annotated[
        list[str], typer.Option(help="A variant, or several: repeat the option, or use a pattern (g1_*, table:1).")
    ],
    recipe: Recipe = "quick",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 .. N-1 of each. One seed gives no verdict.")] = 2,
    overrides: Overrides = [],  # noqa: B006
    baseline: Annotated[str, typer.Option(help="What to compare with.")] = "baseline",
    max_parallel: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side (default: one a GPU; on CPU one a core).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Train what is missing of baseline and variant, print the paired comparison, write it and its figures."""
    from gatebench import variants as registry
    from gatebench.config import make_run
    from gatebench.errors import UserError

    base = registry.get(baseline)
    chosen = {v.name: v for pattern in variant for v in registry.select(pattern) if v.name != base.name}
    if not chosen:
        raise UserError(
            f"--variant {' '.join(variant)}: is the baseline; name a variant to compare it with (`gatebench list`)"
        )
    names = [base.name, *chosen]
    configs = [make_run(recipe, name, seed, overrides) for seed in range(seeds) for name in names]

    from rich.console import Console

    from gatebench.data.presets import PRESETS, ensure_corpus

    console = Console(stderr=True)
    if configs[0].data.corpus in PRESETS:
        ensure_corpus(configs[0].data.corpus, log=console.print)

    import torch

    from gatebench.sweep.launch import Job, local_slots, run_all
    from gatebench.training.run import prepare, run_directory

    jobs = []
    for config in configs:
        prepared = prepare(config)[0]
        directory = run_directory(prepared)
        directory.claim(prepared)
        jobs.append(Job(prepared, directory.path))
    n_gpus = torch.cuda.device_count() if configs[0].train.accelerator in ("auto", "gpu") else 0
    missing = sum(not job.done for job in jobs)
    if missing:
        slots = local_slots(missing, n_gpus=n_gpus, max_parallel=max_parallel)
        console.print(
            f"{len(jobs)} runs, {len(jobs) - missing} done, {slots.n} at a time with {slots.threads} thread(s) each",
            highlight=False,
        )
        failed = run_all(jobs, recipe, overrides, slots, console)
        if failed:
            for job in failed:
                print(
                    f"gatebench: {job.name} failed: {job.last_message()} ({job.directory / 'log.txt'})", file=sys.stderr
                )
            raise typer.Exit(2 if all(job.exit_code == 2 for job in failed) else 1)

    from gatebench.paths import project_root
    from gatebench.report import comparison, figures, results

    directories = [job.directory for job in jobs]
    labels = {base.name: base.label, **{v.name: v.label for v in chosen.values()}}
    frame = results.load(directories)
    table = comparison.compare(frame, base.name, list(chosen), labels)
    stem = "+".join(chosen) if len(chosen) <= 2 else f"{len(chosen)}_variants"
    out = project_root() / "results" / "ablation" / configs[0].recipe / stem
    files = table.write(out)
    files += figures.write(frame, base.name, list(chosen), labels, out / "figures")
    if as_json:
        print(table.to_json())
    else:
        Console().print(table.to_rich())
    console.print("written:", style="bold")
    for file in files:
        print(f"  {file}", file=sys.stderr)
    for job in jobs:
        print(f"  {job.directory}/", file=sys.stderr)
