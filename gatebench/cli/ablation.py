"""`gatebench ablation`: a variant and the baseline on the same seeds, and what the difference is worth."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gatebench.cli.options import MaxParallel, Overrides, Recipe
from gatebench.cli.output import print_written, stderr_console, stdout_console
from gatebench.report.folders import comparison_folder


def ablation(
    variant: Annotated[
        list[str], typer.Option(help="A variant, or several: repeat the option, or use a pattern (g1_*, table:1).")
    ],
    recipe: Recipe = "quick",
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds 0 .. N-1 of each. One gives no verdict, two resolve little.")
    ] = 3,
    overrides: Overrides = [],  # noqa: B006
    baseline: Annotated[str, typer.Option(help="What to compare with.")] = "baseline",
    max_parallel: MaxParallel = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Train what is missing of baseline and variant, print the paired comparison, write it and its figures."""
    from gatebench.errors import UserError
    from gatebench.sweep.study import OverridesConfig, Study
    from gatebench.sweep.train_study import Launch, train_study

    study = Study(
        recipe=recipe,
        baseline=baseline,
        variants=variant,
        overrides=OverridesConfig(set=overrides),
        seeds=list(range(seeds)),
    )
    names = study.variant_names()
    chosen = names[1:]
    if not chosen:
        raise UserError(
            f"--variant {' '.join(variant)}: is the baseline; name a variant to compare it with (`gatebench list`)"
        )

    planned = train_study(study, stderr_console(), Launch(max_parallel=max_parallel, retry_failed=True))

    from gatebench import variants as registry
    from gatebench.paths import project_root
    from gatebench.report.analysis import comparison
    from gatebench.report.figures import comparison_figures as figures
    from gatebench.report.read.study_runs import of_combination
    from gatebench.report.tables import comparison_table

    labels = {name: registry.get(name).label for name in names}
    frame = of_combination(planned, study.combinations()[0])
    document = comparison_table.document(comparison.compare(frame, names[0], chosen, labels))
    folder = comparison_folder(names[0], chosen, overrides)
    out = project_root() / "results" / "ablation" / planned[0].config.recipe / folder
    files = document.write(out)
    files += figures.write(frame, names[0], chosen, labels, out / "figures")
    if as_json:
        sys.stdout.write(document.to_json())
    else:
        stdout_console().print(document.to_rich())
    print_written(files)
    for run in planned:
        print(f"  {run.directory}/", file=sys.stderr)
