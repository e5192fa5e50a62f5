"""`gatebench probe`: every probe of trained runs, interventions on them, and figures of both."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gatebench.cli.ablation import comparison_folder
from gatebench.cli.output import stdout_console


def probe(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Run directories: one, or several to compare.")
    ],
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
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the table and figures (one run: its probe folder; several: results/probe)."),
    ] = None,
    figures: Annotated[bool, typer.Option("--figures/--no-figures", help="Draw the figures.")] = True,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Measure sinks, activations, SDPA output, values and gate scores of trained runs; intervene; draw."""
    from gatebench.errors import UserError

    twice = {str(path) for path in run_dirs if sum(path.resolve() == other.resolve() for other in run_dirs) > 1}
    if twice:
        raise UserError(f"{sorted(twice)[0]}: named twice; legal: each run directory once")
    missing = [path for path in run_dirs if not path.is_dir()]
    if missing:
        raise UserError(f"{missing[0]}: no such directory; legal: a run directory (results/runs/<recipe>/<run>)")
    if any(layer < 1 for layer in attention_map):
        raise UserError(f"--attention-map {min(attention_map)}: legal: layers counted from 1")

    import torch

    from gatebench.evaluation.interventions import KINDS, parse
    from gatebench.evaluation.run_probes import Request, open_run, run_probes

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
    opened = [open_run(path) for path in run_dirs]
    found = [run_probes(trained, request, log=lambda line: print(line, file=sys.stderr)) for trained in opened]

    from gatebench.report import intervention_table, probe_files

    runs = [probe_files.load(path) for path in run_dirs]
    if not request.interventions:  # what an earlier call left is not of this one
        table = []
    else:
        table = intervention_table.rows(runs)
    folder = out or _folder(run_dirs, [trained.config.recipe for trained in opened], runs)
    files = _write_table(table, folder)
    if figures:
        files += _draw(runs, folder)
    if as_json:
        content = {"runs": found, "interventions": intervention_table.to_dicts(table), "files": [str(f) for f in files]}
        print(json.dumps(content, indent=1))
    else:
        console = stdout_console()
        console.print(_overview(found, "Sinks and activations, against uniform attention (floor)", SINK_COLUMNS))
        console.print(_overview(found, "SDPA output and gates, means over layers", OUTPUT_COLUMNS))
        if every_checkpoint:
            console.print(_over_training(found))
        if table:
            console.print(intervention_table.to_rich(table))
    for path in [*(path / probe_files.FOLDER for path in run_dirs), *files]:
        print(f"  {path}", file=sys.stderr)


def _folder(run_dirs: list[Path], recipes: list[str], runs: list[Any]) -> Path:
    """One run: its own folder. Several: results/probe/<recipe>/<variants>."""
    from gatebench.paths import project_root
    from gatebench.report.probe_files import FOLDER

    if len(run_dirs) == 1:
        return run_dirs[0] / FOLDER
    variants = list(dict.fromkeys(run.variant for run in runs))
    folder = comparison_folder("baseline", variants)
    return project_root() / "results" / "probe" / ",".join(dict.fromkeys(recipes)) / folder


def _write_table(table: list[Any], folder: Path) -> list[Path]:
    from gatebench.report import intervention_table

    if not table:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    markdown, data = folder / "interventions.md", folder / "interventions_table.json"
    markdown.write_text(intervention_table.to_markdown(table), encoding="utf-8")
    data.write_text(json.dumps(intervention_table.to_dicts(table), indent=1) + "\n", encoding="utf-8")
    return [markdown, data]


def _draw(runs: list[Any], folder: Path) -> list[Path]:
    from gatebench import variants
    from gatebench.report import probe_figures

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
    """Variant and seed, or the run's name where two have the same."""
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
