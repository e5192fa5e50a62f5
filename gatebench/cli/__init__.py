"""The `gatebench` command. Commands import what they need when they run: `--help` is instant."""

from __future__ import annotations

import sys
from typing import Any

import typer

from gatebench import __version__
from gatebench.cli import (
    ablation,
    benchmark,
    claims,
    data,
    export,
    long,
    params,
    plan,
    probe,
    runs,
    speed,
    sweep,
    tables,
    train,
    tune,
    variants,
)
from gatebench.errors import EarlyExit, UserError

app = typer.Typer(
    name="gatebench",
    help="What does a gate in softmax attention change, and is the change real?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("ablation")(ablation.ablation)
app.command("sweep")(sweep.sweep)
app.command("tune")(tune.tune)
app.command("tune-worker", hidden=True)(tune.tune_worker)
app.command("plan")(plan.plan)
app.command("status")(runs.status)
app.command("logs")(runs.logs)
app.command("cancel")(runs.cancel)
app.command("clean")(runs.clean)
app.command("train")(train.train)
app.command("extend")(train.extend)
app.command("long")(long.long)
app.command("probe")(probe.probe)
app.command("export")(export.export)
app.command("benchmark")(benchmark.benchmark)
app.command("list")(variants.list_variants)
app.command("show")(variants.show_variant)
app.command("params")(params.params)
app.command("tables")(tables.tables)
app.command("claims")(claims.claims)
app.add_typer(data.app, name="data", help="Build and inspect corpora.")
app.command("speed")(speed.speed)
app.command("bench", hidden=True)(speed.speed)  # its name before there were benchmarks


def _version(value: bool) -> None:
    if value:
        print(f"gatebench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line: exit status 0 done, 2 bad input (one line on standard error), 1 anything else."""
    try:
        status = app(prog_name="gatebench", standalone_mode=False)
    except UserError as error:
        print(f"gatebench: {error}", file=sys.stderr)
        sys.exit(2)
    except EarlyExit as error:
        for message in error.messages:
            print(f"gatebench: {message}", file=sys.stderr)
        sys.exit(error.status)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what typer raises for a wrong option or command
            raise
        print(_usage_line(error), file=sys.stderr)
        sys.exit(2)
    if status == 130:  # typer's word for Ctrl-C
        print("gatebench: stopped; run the same line again to go on where it stopped", file=sys.stderr)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _usage_line(error: Any) -> str:
    """Return a usage error as one line that says where help is; `gatebench` alone gets the help itself."""
    message: str = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        return message
    command = error.ctx.command_path if getattr(error, "ctx", None) else "gatebench"
    return f"{command}: {' '.join(message.split())} (`{command} --help` lists what is legal)"
