"""`gatebench probe`: every probe of trained runs or other checkpoints, interventions on runs, and figures of both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench import metrics
from gatebench.cli.options import Seeds
from gatebench.cli.output import stdout_console, terminal_table
from gatebench.metrics import Metric

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gatebench.evaluation.probes.run_probes import Request
    from gatebench.report.probe_report import Group, ProbeReport


def probe(
    run_dirs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN_DIR...]",
            help="Run directories: one, or several to compare. Or other checkpoints (docs/huggingface.md), or hub ids.",
            show_default=False,
        ),
    ] = None,
    study: Annotated[
        str | None, typer.Option(metavar="STUDY", help="Probe the runs of this study, in place of RUN_DIR...")
    ] = None,
    seeds: Seeds = None,
    settings: Annotated[
        list[str], typer.Option("--set", help="With --study: as `gatebench sweep` was given it. Repeatable.")
    ] = [],  # noqa: B006
    intervene: Annotated[
        list[str],
        typer.Option(
            help="mean-gate[:per=layer], block-first, zero-first-value, clip-activations[:c=C|:q=QUANTILE], or all; "
            "each takes layers=1+3. Repeatable."
        ),
    ] = [],  # noqa: B006
    every_checkpoint: Annotated[
        bool, typer.Option("--every-checkpoint", help="Probe every kept state of each run (train.snapshot_every).")
    ] = False,
    attention_map: Annotated[
        list[int], typer.Option(help="Keep the attention maps of this layer, from 1. Repeatable.")
    ] = [],  # noqa: B006
    map_length: Annotated[int, typer.Option(min=2, max=512, help="Tokens that a map shows.")] = 128,
    tokens: Annotated[
        int | None, typer.Option(min=8, help="Held-out tokens to probe (default: the run's eval.probe_tokens).")
    ] = None,
    seq_len: Annotated[int | None, typer.Option(min=8, help="Context length (default: the run's own).")] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="For checkpoints: the text to read (default: held-out documents of six_domains)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of tables and figures (a run: its own; several: results/probe; a study's: its own)."),
    ] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw the figures.")] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Measure sinks, where attention goes, activations and gate scores of trained runs; intervene; draw."""
    from gatebench.errors import UserError
    from gatebench.report.probe_report import Group, study_groups, write

    if any(layer < 1 for layer in attention_map):
        raise UserError(f"--attention-map {min(attention_map)}: legal: layers counted from 1")
    if study is None:
        if seeds is not None or settings:
            raise UserError("--seeds and --set: go with --study alone; legal: run directories without them")
        groups = [Group("", _checked(run_dirs or []), out)]
    elif run_dirs:
        raise UserError(f"--study {study}: not with run directories ({run_dirs[0]}); legal: one or the other")
    else:
        groups = study_groups(study, seeds, settings, out, log=_log)

    import torch

    from gatebench.evaluation.probes import FOLDER
    from gatebench.evaluation.probes.interventions import KINDS, parse
    from gatebench.evaluation.probes.run_probes import Request, open_run, run_probes

    names = [name for word in intervene for name in (KINDS if word == "all" else (word,))]
    request = Request(
        interventions=tuple(dict.fromkeys(parse(name) for name in names)),
        every_checkpoint=every_checkpoint,
        map_layers=tuple(layer - 1 for layer in attention_map),
        map_length=map_length,
        tokens=tokens,
        seq_len=seq_len,
    )
    if threads:
        torch.set_num_threads(threads)
    if sources := [path for path in run_dirs or [] if _is_checkpoint(path)]:
        groups, found = _checkpoints(run_dirs or [], sources, request, text, out)
        recipes = dict.fromkeys(found, "checkpoints")
    elif text is not None:
        raise UserError(
            f"--text {text}: goes with checkpoints; legal: a run reads the held-out documents of its corpus"
        )
    else:
        opened = {path: open_run(path) for group in groups for path in group.run_dirs}
        found = {path: run_probes(trained, request, log=_log) for path, trained in opened.items()}
        recipes = {path: trained.config.recipe for path, trained in opened.items()}
    contents, files = [], [path / FOLDER for path in found]
    for group in groups:
        measured = [found[path] for path in group.run_dirs]
        # what an earlier call left of interventions is not of this one
        report = write(group, [recipes[path] for path in group.run_dirs], intervened=bool(intervene), figures=figures)
        files += report.files
        contents.append(report.to_dict(group, measured))
        for part in [] if as_json else _printed(group, report, measured):
            stdout_console().print(part)
    if as_json:
        whole = contents[0] if study is None else {"study": study, "combinations": contents}
        print(json.dumps({**whole, "files": [str(path) for path in files[len(found) :]]}, indent=1))
    for path in files:
        print(f"  {path}", file=sys.stderr)


def _checked(run_dirs: list[Path]) -> list[Path]:
    from gatebench.errors import UserError

    if not run_dirs:
        raise UserError("probe: nothing to measure; legal: run directories, or --study STUDY")
    if twice := {str(path) for path in run_dirs if sum(path.resolve() == other.resolve() for other in run_dirs) > 1}:
        raise UserError(f"{sorted(twice)[0]}: named twice; legal: each run directory once")
    if missing := [path for path in run_dirs if not path.is_dir() and not _may_be_hub_id(path)]:
        raise UserError(f"{missing[0]}: no such directory; legal: a run directory (results/runs/<recipe>/<run>)")
    return run_dirs


def _may_be_hub_id(path: Path) -> bool:
    """Say whether `path` may be owner/name or owner/name/subfolder, and is not below a folder that is here."""
    if path.is_absolute() or len(path.parts) < 2 or ".." in path.parts:
        return False
    return len(path.parts) == 2 or not Path(path.parts[0]).is_dir()


def _is_checkpoint(path: Path) -> bool:
    """Say whether `path` is a checkpoint's directory or, as no directory, the hub id of one."""
    return (path / "config.json").is_file() or not path.is_dir()


def _checkpoints(
    paths: list[Path], sources: list[Path], request: Request, text: Path | None, out: Path | None
) -> tuple[list[Group], dict[Path, dict[str, Any]]]:
    """Probe checkpoints, each into a folder of its name; return them as one group, and what was found by folder."""
    from gatebench.errors import UserError
    from gatebench.evaluation.probes.checkpoint_probes import probe_checkpoint
    from gatebench.paths import project_root
    from gatebench.report.probe_report import Group

    if len(sources) < len(paths):
        raise UserError(f"{sources[0]}: a checkpoint beside run directories; legal: the ones or the others")
    if request.interventions or request.every_checkpoint:
        raise UserError(f"{sources[0]}: --intervene and --every-checkpoint go with run directories alone")
    folder = out or project_root() / "results" / "probe"
    found = {
        folder / path.name: probe_checkpoint(str(path), folder / path.name, request, text, log=_log) for path in sources
    }
    if len({run["variant"] for run in found.values()}) < len(sources):
        raise UserError(
            "checkpoints of one variant cannot stand in one table; legal: one of each variant, or one alone"
        )
    return [Group("", list(found), out)], found


def _log(line: str) -> None:
    print(line, file=sys.stderr)


def _printed(group: Group, report: ProbeReport, measured: list[dict[str, Any]]) -> Iterator[RenderableType]:
    from rich.text import Text

    if group.label:
        yield Text(group.label, style="bold")
    for title, columns in metrics.overviews().items():
        yield _overview(measured, title, columns)
    yield report.destinations.to_rich()
    if any("checkpoints" in run for run in measured):
        yield _over_training(measured)
    if report.interventions is not None:
        yield report.interventions.to_rich()


def _overview(found: list[dict[str, Any]], title: str, columns: list[Metric]) -> RenderableType:
    """A row a run; means over layers."""
    rows = [
        (name, *(metric.text(run["probes"][metric.key]) for metric in columns))
        for name, run in zip(_names(found), found, strict=True)
    ]
    return terminal_table(("run", *(metric.heading for metric in columns)), rows, title=title)


def _names(found: list[dict[str, Any]]) -> list[str]:
    """Variant and seed, or the run's name where two have the same or none has a seed."""
    if any(run["seed"] is None for run in found):
        return [run["run"] for run in found]
    short = [f"{run['variant']} s{run['seed']}" for run in found]
    return short if len(set(short)) == len(short) else [run["run"] for run in found]


def _over_training(found: list[dict[str, Any]]) -> RenderableType:
    loss, followed = metrics.get("final_train_loss"), metrics.followed()
    rows = [
        (name, str(row["step"]), loss.text(row["train_loss"]), *(metric.text(row[metric.key]) for metric in followed))
        for name, run in zip(_names(found), found, strict=True)
        for row in run.get("checkpoints", [])
    ]
    columns = ("run", "step", "train loss", *(metric.heading for metric in followed))
    return terminal_table(columns, rows, n_words=2, title="Every checkpoint")
