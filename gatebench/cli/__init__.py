"""The `gatebench` command. Each command imports what it needs when it runs, so that `--help` and `list` stay instant."""

from __future__ import annotations

import sys

import typer

from gatebench import __version__
from gatebench.cli import ablation, bench, data, train, variants
from gatebench.errors import UserError

app = typer.Typer(
    name="gatebench",
    help="What does a gate in softmax attention change, and is the change real?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command("ablation")(ablation.ablation)
app.command("train")(train.train)
app.command("list")(variants.list_variants)
app.command("show")(variants.show_variant)
app.add_typer(data.app, name="data", help="Build and inspect corpora.")
app.command("bench")(bench.bench)


def _version(value: bool) -> None:
    if value:
        print(f"gatebench {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version.")) -> None:
    pass


def main() -> None:
    """Run the command line: exit status 0 done, 2 bad input (one line on standard error), 1 anything else."""
    try:
        app()
    except UserError as error:
        print(f"gatebench: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("gatebench: stopped; run the same line again to go on where it stopped", file=sys.stderr)
        sys.exit(1)
