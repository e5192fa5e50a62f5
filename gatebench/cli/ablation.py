"""`gatebench ablation`: a variant and the baseline on the same seeds, and what the difference is worth."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from typing import Annotated

import typer

from gatebench.cli.output import stdout_console
from gatebench.cli.sweep import Launch, load_runs, print_written, train_study
from gatebench.cli.train import Overrides, Recipe
from gatebench.report.folders import folder_name

_LONGEST_FOLDER = 200


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
    max_parallel: Annotated[
        int | None, typer.Option(min=1, help="Runs side by side (default: one a GPU; on CPU one a core).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Train what is missing of baseline and variant, print the paired comparison, write it and its figures."""
    from gatebench.errors import UserError
    from gatebench.sweep.study import OverridesConfig, Study

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

    from rich.console import Console

    console = Console(stderr=True)
    planned = train_study(study, console, Launch(max_parallel=max_parallel, retry_failed=True))

    from gatebench import variants as registry
    from gatebench.paths import project_root
    from gatebench.report.analysis import comparison
    from gatebench.report.figures import comparison_figures as figures

    labels = {name: registry.get(name).label for name in names}
    frame = load_runs(planned, study.combinations()[0])
    table = comparison.compare(frame, names[0], chosen, labels)
    folder = comparison_folder(names[0], chosen, overrides)
    out = project_root() / "results" / "ablation" / planned[0].config.recipe / folder
    files = table.write(out)
    files += figures.write(frame, names[0], chosen, labels, out / "figures")
    if as_json:
        sys.stdout.write(table.to_json())
    else:
        stdout_console().print(table.to_rich())
    print_written(console, files)
    for run in planned:
        print(f"  {run.directory}/", file=sys.stderr)


def comparison_folder(baseline: str, chosen: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return the folder's name for a comparison, another for every other one: its variants, settings and baseline."""
    listed = ",".join(chosen)
    name = listed if len(chosen) <= 2 else f"{len(chosen)}_variants-{zlib.crc32(listed.encode()):08x}"
    if overrides:
        name += f"-{folder_name(' '.join(overrides))}"
    if baseline != "baseline":
        name += f"-vs-{baseline}"
    return name if len(name) <= _LONGEST_FOLDER else f"{name[:_LONGEST_FOLDER]}-{zlib.crc32(name.encode()):08x}"
