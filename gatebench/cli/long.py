"""`gatebench long`: runs at windows longer than their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench import metrics
from gatebench.cli.options import AsJson, Seeds, Settings
from gatebench.cli.output import stdout_console, terminal_table

if TYPE_CHECKING:
    from rich.console import RenderableType


def long(
    run_dirs: Annotated[
        list[Path] | None, typer.Argument(metavar="[RUN_DIR...]", help="Run directories.", show_default=False)
    ] = None,
    study: Annotated[
        str | None, typer.Option(metavar="STUDY", help="The finished runs of this study, in place of RUN_DIR...")
    ] = None,
    seeds: Seeds = None,
    settings: Settings = [],  # noqa: B006
    lengths: Annotated[
        str, typer.Option(metavar="A,B,...", help="Lengths: tokens, or multiples of the training window.")
    ] = "1x,2x,4x,8x",
    yarn: Annotated[float | None, typer.Option(help="Measure with YaRN by this factor, too.")] = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="RULER's tasks (default: the six that need no download); none: no task."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Samples of each task, length and depth.")] = 50,
    new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens for an answer (default: RULER's; at most an eighth of the length)."),
    ] = None,
    digits: Annotated[
        int | None,
        typer.Option(
            min=1, max=7, help="Digits of the numbers in needles.", show_default="as the run was taught, or RULER's 7"
        ),
    ] = None,
    depths: Annotated[int, typer.Option(min=0, help="Depths of the needle on the map over lengths; 0: no map.")] = 5,
    intervene: Annotated[
        list[str], typer.Option(help="Measure under an intervention, too, as `gatebench probe` names them. Repeatable.")
    ] = [],  # noqa: B006
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Held-out tokens for the loss at each length.", show_default="65,536 or more"),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure runs at long windows: RULER, loss by position, sinks. Results stay with a run; none is measured twice."""
    from gatebench.errors import UserError
    from gatebench.report.probe_report import study_groups

    if study is None:
        if not run_dirs:
            raise UserError("long: nothing to measure; legal: run directories, or --study STUDY")
        if seeds is not None or settings:
            raise UserError("--seeds and --set: go with --study alone; legal: run directories without them")
        paths = run_dirs
    elif run_dirs:
        raise UserError(f"--study {study}: not with run directories ({run_dirs[0]}); legal: one or the other")
    else:
        paths = [path for group in study_groups(study, seeds, settings, None, log=_log) for path in group.run_dirs]

    import torch

    from gatebench.evaluation.long_context import FOLDER
    from gatebench.evaluation.long_context.run_long import FREE_TASKS, Request, measure
    from gatebench.evaluation.probes.interventions import parse
    from gatebench.evaluation.probes.run_probes import open_run

    if threads:
        torch.set_num_threads(threads)
    named = FREE_TASKS if tasks is None else () if tasks.strip() == "none" else _words(tasks)
    request = Request(
        lengths=_words(lengths),
        yarn=yarn,
        interventions=tuple(dict.fromkeys(parse(word) for word in intervene)),
        tasks=tuple(dict.fromkeys(named)),
        samples=samples,
        depths=depths,
        tokens=tokens,
        new_tokens=new_tokens,
        digits=digits,
    )
    conditions: list[dict[str, Any]] = []
    for path in paths:
        records = measure(open_run(path), request, log=_log)
        conditions += records.values()
        if not as_json:
            stdout_console().print(_table(records))
        print(f"  {path / FOLDER}", file=sys.stderr)
    if as_json:
        print(json.dumps({"conditions": conditions}, indent=1, allow_nan=False))


def _log(line: str) -> None:
    print(line, file=sys.stderr)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _table(records: dict[str, dict[str, Any]]) -> RenderableType:
    """One run: a row a condition and length."""
    from gatebench.report.read.long_results import common_tasks

    tasks = common_tasks(records.values())
    first = next(iter(records.values()))
    probed = [metrics.get(key) for key in ("first_token_share", "first_token_excess", "gate_mean", "m_act")]
    rows = []
    for name, record in records.items():
        for length, row in sorted(record["lengths"].items(), key=lambda item: int(item[0])):
            scores = [row["ruler"][task]["score"] for task in tasks]
            tail, probes = row["text"]["tail"], row["text"]["probes"]
            rows.append(
                (
                    name,
                    f"{int(length):,}",
                    f"{sum(scores) / len(scores):.1f}" if scores else "-",
                    f"{row['text']['loss']:.3f}",
                    f"{tail['nats']:.3f}",
                    "-" if tail["low"] is None else f"{(tail['high'] - tail['low']) / 2:.3f}",
                    *(metric.text(probes[metric.key]) for metric in probed),
                )
            )
    scored = ("condition", "length", metrics.get("ruler").title, "loss", "last quarter", "± 95 %")
    title = f"{first['run']}, trained at {first['window']:,} tokens"
    return terminal_table((*scored, *(metric.heading for metric in probed)), rows, title=title)
