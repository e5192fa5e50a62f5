"""`gatebench benchmark`: scores of runs and checkpoints on lm-eval's tasks, and on a suite that needs no network."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench.cli.output import stdout_console, terminal_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType


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
    from gatebench.evaluation.benchmarks.availability import check_data, check_installed
    from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
    from gatebench.evaluation.benchmarks.suites import Options, check_suite

    check_installed()
    named = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    suite = suite or "offline"
    check_suite(suite, named)
    options = Options(shots, limit, seed, task_dir, confirm_run_unsafe_code)
    opened = [Checkpoint(source, batch_size) for source in _sources(checkpoints or [], study)]
    check_data(opened, named, suite, options)
    if not named and not confirm_run_unsafe_code:
        print("HumanEval is left out: it runs what the model writes (--confirm-run-unsafe-code)", file=sys.stderr)
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # no bars of the harness's in a file

    from gatebench.evaluation.benchmarks.run_benchmarks import run

    if threads:
        import torch

        torch.set_num_threads(threads)
    records = run(opened, options, names=named, suite=suite, log=lambda line: print(line, file=sys.stderr))
    results = {one.name: of_one for one, of_one in zip(opened, records, strict=True)}
    if as_json:
        print(json.dumps({"checkpoints": results}, indent=1, allow_nan=False))
    elif study and limit is None:  # what `--limit` asks is in no table
        for table in _study_tables(study):
            stdout_console().print(table)
    else:
        for name, of_one in results.items():
            stdout_console().print(_table(name, of_one))
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


def _study_tables(name: str) -> Iterator[RenderableType]:
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
            yield benchmark_table.document(table).to_rich()


def _table(name: str, records: list[dict[str, Any]]) -> RenderableType:
    """One checkpoint's scores, each with its 95 % interval and what guessing gives."""
    from gatebench.report.read.benchmark_results import at_chance
    from gatebench.report.tables.blocks import Column

    columns = ("task", "shots", "n", "left out", "score", "± 95 %", "chance", "bits per byte of the answer")
    rows = [
        (
            record["asked"]["task"],
            str(record["asked"]["shots"]),
            str(record["n"]),
            str(record.get("n_too_long") or "-"),
            f"{100 * record['score']:.2f}",
            "-" if record["stderr"] is None else f"{196 * record['stderr']:.2f}",
            f"{100 * record['chance']:.2f}",
            "-" if record["answer_bpb"] is None else f"{record['answer_bpb']:.4f}",
            "at chance" if at_chance(record["score"], record["stderr"], record["chance"]) else "",
        )
        for record in records
    ]
    return terminal_table((*columns, Column("", words=True)), rows, title=name)
