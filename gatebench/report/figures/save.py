"""The one writer of figures: whole files or none, and the same bytes for the same figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from gatebench.files import write_atomic
from gatebench.report.figures.style import drawing

METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}
"""By format of a figure: what matplotlib would write of the time and of itself, and does not."""


def write(figures: Mapping[str, Callable[[], Figure]], directory: str | Path) -> list[Path]:
    """Draw each of the figures and save it in ``directory`` under its name; return the paths."""
    with drawing():
        return [path for name, draw in figures.items() for path in save(draw(), Path(directory) / name)]


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.png, .pdf and .svg; a reader, or a crash, sees each of them whole or not at all."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, metadata in METADATA.items():
        content = BytesIO()
        figure.savefig(content, format=suffix, metadata=metadata)
        figure.set_layout_engine("none")  # laid out once, not again for every format
        paths.append(stem.with_name(f"{stem.name}.{suffix}"))
        write_atomic(paths[-1], content.getvalue())
    return paths
