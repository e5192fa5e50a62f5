"""`gatebench benchmark`: scores of runs and checkpoints on lm-eval's tasks, and on a suite that needs no network."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench.cli.output import stdout_console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Group
    from rich.table import Table
    from rich.text import Text


def benchmark(
    checkpoints: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN_OR_DIR...]", help="Run directories, other checkpoints, or hub ids.", show_default=False
        ),
    ] = None,
    study: Annotated[
        str | None, typer.Option(metavar="STUDY", help="The finished runs of this study, in place of RUN_OR_DIR...")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Tasks of lm-eval, of --task-dir, or bundled ones (gb_...).")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="offline: what is bundled (the default without --tasks). paper: the paper's.")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(min=0, help="Examples in front (default: the paper's, else the task's own).")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many items of each task: for a try, kept out of tables.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences per forward pass.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Of drawn examples and samples.")] = 1234,
    task_dir: Annotated[Path | None, typer.Option(help="A folder of lm-eval task files (YAML).")] = None,
    confirm_run_unsafe_code: Annotated[
        bool, typer.Option("--confirm-run-unsafe-code", help="Run the programs that the model writes (HumanEval).")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")] = False,
) -> None:
    """Score checkpoints on benchmarks. Results stay with a run, task by task, and are not computed twice."""
    from gatebench.errors import UserError
    from gatebench.evaluation.benchmarks.availability import (
        check_installed,
        go_offline_unless_reachable,
        refuse_missing,
    )
    from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
    from gatebench.evaluation.benchmarks.suites import BUNDLED, PAPER, SUITES, of_suite

    check_installed()
    if suite not in (None, *SUITES):
        raise UserError(f"--suite {suite}: unknown; legal: {', '.join(SUITES)}")
    named = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    if suite == "paper" and (other := [name for name in named if name not in PAPER]):
        raise UserError(f"--suite paper: has no task '{other[0]}'; legal: {', '.join(PAPER)}, or no --suite")
    sources = _sources(checkpoints or [], study)
    opened = [Checkpoint(source, batch_size) for source in sources]
    of_hub = suite == "paper" or any(not name.startswith(BUNDLED) for name in named)
    go_offline_unless_reachable(needed=of_hub or not all(Path(source).is_dir() for source in sources))
    if task_dir is None:
        asked = named or (of_suite("paper", context=0, unsafe_code=confirm_run_unsafe_code) if suite == "paper" else ())
        refuse_missing(task for task in asked if not all((one.folder / f"{task}.json").is_file() for one in opened))
    if not named and not confirm_run_unsafe_code:
        print("HumanEval is left out: it runs what the model writes (--confirm-run-unsafe-code)", file=sys.stderr)
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # no bars of the harness's in a file

    from gatebench.evaluation.benchmarks.run_benchmarks import Options, run

    if threads:
        import torch

        torch.set_num_threads(threads)
    options = Options(shots, limit, seed, task_dir, confirm_run_unsafe_code)
    found = run(opened, options, names=named, suite=suite or "offline", log=lambda line: print(line, file=sys.stderr))
    results = {one.name: records for one, records in zip(opened, found, strict=True)}
    if as_json:
        print(json.dumps({"checkpoints": results}, indent=1, allow_nan=False))
    elif study and limit is None:  # what `--limit` asks is in no table
        for table in _study_tables(study):
            stdout_console().print(table)
    else:
        for name, records in results.items():
            stdout_console().print(_table(name, records))
    for one in opened:
        print(f"  {one.folder}", file=sys.stderr)


def _sources(given: list[str], study: str | None) -> list[str]:
    """Return what was named, each once, or the finished runs of a study; what is not finished or diverged is said."""
    from gatebench.errors import UserError
    from gatebench.sweep.plan import plan
    from gatebench.sweep.study import load_study

    if study is None:
        if not given:
            raise UserError(
                "benchmark: nothing to score; legal: run directories, checkpoints, hub ids, or --study STUDY"
            )
        return list(dict.fromkeys(given))
    if given:
        raise UserError(f"--study {study}: not with checkpoints ({given[0]}); legal: one or the other")
    planned = plan(load_study(study))
    done = [str(run.directory) for run in planned if run.status == "done" and run.directory is not None]
    if len(done) < len(planned):
        print(f"{study}: {len(done)} of {len(planned)} runs are finished and did not diverge", file=sys.stderr)
    if not done:
        raise UserError(f"study '{study}': no finished run; `gatebench sweep {study}` trains them")
    return list(dict.fromkeys(done))


def _study_tables(name: str) -> Iterator[Text | Group]:
    """Every setting of a study by its label, and the scores of its variants over seeds."""
    from rich.text import Text

    from gatebench import variants
    from gatebench.report.read.study_runs import collect
    from gatebench.report.tables import benchmark_table
    from gatebench.sweep.study import load_study

    study = load_study(name)
    runs = collect(study)
    for combination in study.combinations():
        frame = runs.of(combination)
        names = [variant for variant in study.variant_names() if variant in set(frame["variant"])]
        if study.variant_names()[0] not in names:
            continue
        table = benchmark_table.make(frame, names[0], names[1:], {one: variants.get(one).label for one in names})
        if combination.label:
            yield Text(combination.label, style="bold")
        if table is not None:
            yield table.to_rich()


def _table(name: str, records: list[dict[str, Any]]) -> Table:
    """One checkpoint's scores, each with its 95 % interval and what guessing gives."""
    from rich import box
    from rich.table import Table

    from gatebench.report.read.benchmark_results import at_chance

    table = Table(title=name, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("task", no_wrap=True)
    for heading in ("shots", "n", "left out", "score", "± 95 %", "chance", "bits per byte of the answer"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for record in records:
        stderr = record["stderr"]
        table.add_row(
            record["asked"]["task"],
            str(record["asked"]["shots"]),
            str(record["n"]),
            str(record.get("n_too_long") or "-"),
            f"{100 * record['score']:.2f}",
            "-" if stderr is None else f"{196 * stderr:.2f}",
            f"{100 * record['chance']:.2f}",
            "-" if record["answer_bpb"] is None else f"{record['answer_bpb']:.4f}",
            "at chance" if at_chance(record["score"], stderr, record["chance"]) else "",
        )
    return table
