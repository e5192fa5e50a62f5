"""`gatebench probe`: every probe of trained runs or other checkpoints, interventions on runs, and figures of both."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench.cli.ablation import comparison_folder
from gatebench.cli.output import stdout_console
from gatebench.cli.sweep import Seeds
from gatebench.report.folders import folder_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gatebench.evaluation.probes.run_probes import Request
    from gatebench.report.read.probe_files import ProbedRun


@dataclass(frozen=True)
class Group:
    """Runs that stand in one table."""

    label: str
    """What sets the group apart from the study's others; empty for one alone."""
    run_dirs: list[Path]
    folder: Path | None
    """Of the tables and figures; None where it follows from the runs."""


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

    if any(layer < 1 for layer in attention_map):
        raise UserError(f"--attention-map {min(attention_map)}: legal: layers counted from 1")
    if study is None:
        if seeds is not None or settings:
            raise UserError("--seeds and --set: go with --study alone; legal: run directories without them")
        groups = [Group("", _checked(run_dirs or []), out)]
    elif run_dirs:
        raise UserError(f"--study {study}: not with run directories ({run_dirs[0]}); legal: one or the other")
    else:
        groups = study_groups(study, seeds, settings, out)

    import torch

    from gatebench.evaluation.probes.interventions import KINDS, parse
    from gatebench.evaluation.probes.run_probes import FOLDER, Request, open_run, run_probes

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
        content, shown, written = _report(group, request, found, recipes, figures=figures)
        files += written
        contents.append(content)
        for part in [] if as_json else shown:
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
    if missing := [path for path in run_dirs if not path.is_dir() and len(path.parts) != 2]:
        raise UserError(f"{missing[0]}: no such directory; legal: a run directory (results/runs/<recipe>/<run>)")
    return run_dirs


def _is_checkpoint(path: Path) -> bool:
    """Say whether `path` is a checkpoint's directory or, as no directory, the hub id owner/name of one."""
    return (path / "config.json").is_file() or not path.is_dir()


def _checkpoints(
    paths: list[Path], sources: list[Path], request: Request, text: Path | None, out: Path | None
) -> tuple[list[Group], dict[Path, dict[str, Any]]]:
    """Probe checkpoints, each into a folder of its name; return them as one group, and what was found by folder."""
    from gatebench.errors import UserError
    from gatebench.evaluation.probes.checkpoint_probes import probe_checkpoint
    from gatebench.paths import project_root

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


def study_groups(name: str, seeds: int | None, settings: Sequence[str], out: Path | None) -> list[Group]:
    """The finished runs of a study, in plan order, a group a combination; diverged ones are left out and named.

    Raises UserError where a run is not finished.
    """
    from gatebench.errors import UserError
    from gatebench.paths import project_root
    from gatebench.sweep.plan import plan
    from gatebench.sweep.study import load_study

    study = load_study(name).changed(n_seeds=seeds, settings=list(settings))
    planned = plan(study)
    if missing := [run for run in planned if not run.finished]:
        first = f"{missing[0].config.variant} seed {missing[0].config.seed} {missing[0].combination.label}".rstrip()
        words = " ".join([name, *([f"--seeds {seeds}"] if seeds else []), *(f"--set {word}" for word in settings)])
        raise UserError(
            f"study '{study.name}': {len(missing)} of {len(planned)} runs are missing or not finished, the first "
            f"{first}; `gatebench sweep {words}` trains them"
        )
    for run in planned:
        if run.status == "diverged":
            print(f"{run.config.variant} seed {run.config.seed} diverged: left out", file=sys.stderr)
    done = [run for run in planned if run.status == "done" and run.directory is not None]
    if not done:
        raise UserError(f"study '{study.name}': every run diverged; legal: a study with a run that did not")
    folder = out or project_root() / "results" / study.name / "probe"
    groups = []
    for combination in study.combinations():
        paths = [run.directory for run in done if run.combination == combination and run.directory is not None]
        if paths:
            groups.append(Group(combination.label, paths, folder / folder_name(combination.label)))
    return groups


def _report(
    group: Group, request: Request, found: dict[Path, dict[str, Any]], recipes: dict[Path, str], *, figures: bool
) -> tuple[dict[str, Any], list[RenderableType], list[Path]]:
    """Write the tables and figures of one group; return everything of it as JSON values, as printed, and its files."""
    from rich.text import Text

    from gatebench.report.read import probe_files
    from gatebench.report.tables import destination_table, intervention_table

    runs = [probe_files.load(path) for path in group.run_dirs]
    folder = group.folder or _folder(group.run_dirs, [recipes[path] for path in group.run_dirs], runs)
    folder.mkdir(parents=True, exist_ok=True)
    going = destination_table.rows(runs)
    texts = {
        "destinations.md": destination_table.to_markdown(going, runs),
        "destinations.json": json.dumps(destination_table.to_dicts(going), indent=1) + "\n",
    }
    changed = intervention_table.rows(runs) if request.interventions else []  # an earlier call's are not of this one
    if changed:
        texts["interventions.md"] = intervention_table.to_markdown(changed, runs)
        texts["interventions_table.json"] = json.dumps(intervention_table.to_dicts(changed), indent=1) + "\n"
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    files = [folder / name for name in texts]
    if figures:
        files += _draw(runs, folder)
    measured = [found[path] for path in group.run_dirs]
    shown: list[RenderableType] = [Text(group.label, style="bold")] if group.label else []
    shown.append(_overview(measured, "Sinks and activations, against uniform attention (floor)", SINK_COLUMNS))
    shown.append(_overview(measured, "SDPA output and gates, means over layers", OUTPUT_COLUMNS))
    shown.append(destination_table.to_rich(going))
    if request.every_checkpoint:
        shown.append(_over_training(measured))
    if changed:
        shown.append(intervention_table.to_rich(changed))
    content = {
        "runs": measured,
        "interventions": intervention_table.to_dicts(changed),
        "destinations": destination_table.to_dicts(going),
    }
    return {**({"settings": group.label} if group.label else {}), **content}, shown, files


def _folder(run_dirs: list[Path], recipes: list[str], runs: list[ProbedRun]) -> Path:
    """One run: its own folder. Several: results/probe/<recipe>/<variants>."""
    from gatebench.paths import project_root
    from gatebench.report.read.probe_files import FOLDER

    if len(run_dirs) == 1:
        return run_dirs[0] / FOLDER
    variants = list(dict.fromkeys(run.variant for run in runs))
    folder = comparison_folder("baseline", variants)
    return project_root() / "results" / "probe" / ",".join(dict.fromkeys(recipes)) / folder


def _draw(runs: list[ProbedRun], folder: Path) -> list[Path]:
    from gatebench import variants
    from gatebench.report.figures import probe_figures

    labels = {run.variant: variants.get(run.variant).label or run.variant for run in runs}
    return [path for path in probe_figures.write(runs, labels, folder / "figures") if path.suffix == ".png"]


SINK_COLUMNS = (
    ("first-token share", "first_token_share", ".4f"),
    ("floor", "first_token_floor", ".4f"),
    ("share / floor", "first_token_excess", ".2f"),
    ("sink rate", "sink_rate", ".1%"),
    ("at T=64", "sink_rate_64", ".1%"),
    ("M-Act", "m_act", ".1f"),
    ("max / median", "massive_ratio", ".0f"),
)
OUTPUT_COLUMNS = (
    ("|SDPA| before", "sdpa_abs_before", ".3f"),
    ("after", "sdpa_abs_after", ".3f"),
    ("<0.01 before", "sdpa_below_before_1e-02", ".1%"),
    ("after", "sdpa_below_after_1e-02", ".1%"),
    ("x mean gate", "sdpa_below_mean_gate_1e-02", ".1%"),
    ("gate", "gate_mean", ".3f"),
    ("closed", "gate_closed", ".1%"),
)
"""Heading, key of probes.json, format."""


def _overview(found: list[dict[str, Any]], title: str, columns: tuple[tuple[str, str, str], ...]) -> Any:
    """A row a run; means over layers."""
    from rich.table import Table

    table = Table(title=title)
    table.add_column("run", no_wrap=True)
    for heading, _, _ in columns:
        table.add_column(heading, justify="right")
    for name, run in zip(_names(found), found, strict=True):
        table.add_row(name, *(_cell(run["probes"][key], form) for _, key, form in columns))
    return table


def _names(found: list[dict[str, Any]]) -> list[str]:
    """Variant and seed, or the run's name where two have the same or none has a seed."""
    if any(run["seed"] is None for run in found):
        return [run["run"] for run in found]
    short = [f"{run['variant']} s{run['seed']}" for run in found]
    return short if len(set(short)) == len(short) else [run["run"] for run in found]


def _over_training(found: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title="Every checkpoint")
    table.add_column("run", no_wrap=True)
    for heading in ("step", "train loss", "share", "share / floor", "sink rate", "M-Act", "gate"):
        table.add_column(heading, justify="right")
    for name, run in zip(_names(found), found, strict=True):
        for row in run.get("checkpoints", []):
            table.add_row(
                name if row["step"] == 0 else "",
                str(row["step"]),
                _cell(row["train_loss"], ".3f"),
                _cell(row["first_token_share"], ".4f"),
                _cell(row["first_token_excess"], ".2f"),
                _cell(row["sink_rate"], ".1%"),
                _cell(row["m_act"], ".1f"),
                _cell(row["gate_mean"], ".3f"),
            )
        table.add_section()
    return table


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
