"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipe = Annotated[str, typer.Option(help="Recipe of experiments/, or the path of one.")]
Overrides = Annotated[
    list[str], typer.Option("--set", help="Override a key of the recipe: section.key=value. Repeatable.")
]
StudyName = Annotated[str, typer.Argument(help="A study of ablations/, or the path of one.", metavar="STUDY")]
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds 0 .. N-1 instead of the study's.", show_default=False)]
Settings = Annotated[
    list[str], typer.Option("--set", help="One more setting of every run: section.key=value. Repeatable.")
]
OtherRecipe = Annotated[
    str | None, typer.Option("--recipe", help="Another recipe than the study's.", show_default=False)
]
MaxParallel = Annotated[
    int | None, typer.Option(min=1, help="Runs side by side (default: one a GPU; on CPU one a core).")
]
RunDirectory = Annotated[Path | None, typer.Option(help="Run directory (default: results/runs/<recipe>/<run>).")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads (default: all cores).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]
