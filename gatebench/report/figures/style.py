"""How figures look: one fixed colour, line style and marker a variant, sizes, and byte-identical files.

The style of a variant follows from its name by the grammar of variants, so that it is the same in every figure and a
new variant needs no entry here: colour says where the gate sits, line style and lightness how fine it is, marker what
else it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLUMN_WIDTH = 3.4
"""Inches: one column of a two-column paper."""
PAGE_WIDTH = 6.9

FORMATS = ("png", "pdf", "svg")

# Okabe and Ito, "Color Universal Design" (2008): told apart with every common colour-vision deficiency.
_BLACK, _BLUE, _ORANGE, _GREEN = "#000000", "#0072B2", "#E69F00", "#009E73"
_VERMILION, _PURPLE, _SKY = "#D55E00", "#CC79A7", "#56B4E9"

_BY_SITE = {"g1": _BLUE, "g2": _VERMILION, "g3": _GREEN, "g4": _PURPLE, "g5": _ORANGE}
_OTHERS = (_SKY, _ORANGE, _PURPLE, _GREEN)
_LINES = {"elementwise": "-", "headwise": "--", "shared": "-."}
_WHITENING = {"elementwise": 0.0, "headwise": 0.35, "shared": 0.2}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

FLOOR_COLOR = "#666666"


@dataclass(frozen=True)
class VariantStyle:
    """What tells one variant from the others, in colour and in greyscale."""

    color: str
    linestyle: str
    marker: str


def variant_style(name: str, baseline: str = "baseline") -> VariantStyle:
    """The fixed style of a variant. The baseline is a solid black line with circles."""
    if name == baseline:
        return VariantStyle(_BLACK, "-", "o")
    site, _, rest = name.partition("_")
    if site not in _BY_SITE:
        number = zlib.crc32(name.encode())
        return VariantStyle(_OTHERS[number % len(_OTHERS)], ":", _MARKERS[1 + number % (len(_MARKERS) - 1)])
    color = _SKY if "+" in name else _BY_SITE[site]
    words = set(rest.split("_"))
    grain = "shared" if "shared" in words else "headwise" if "headwise" in words else "elementwise"
    plain = not words - {"headwise", "elementwise"}
    marker = {"headwise": "s", "elementwise": "^"}[grain] if plain else _MARKERS[3 + zlib.crc32(name.encode()) % 4]
    return VariantStyle(_whitened(color, _WHITENING[grain]), _LINES[grain], marker)


def _whitened(color: str, share: float) -> str:
    """The colour mixed with this share of white."""
    channels = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(value + share * (255 - value)):02X}" for value in channels)


@contextmanager
def drawing() -> Iterator[None]:
    """Settings under which every figure is drawn and saved, whatever the user's matplotlibrc says."""
    settings: Any = {  # matplotlib types its keys as one long Literal
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 8,
        "axes.labelsize": 8,
        "figure.dpi": 100,
        "font.family": "DejaVu Sans",
        "font.size": 7.5,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.5,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "lines.linewidth": 1.4,
        "lines.markersize": 4,
        "pdf.fonttype": 42,
        "savefig.dpi": 200,
        "svg.hashsalt": "gatebench",
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure of ``width`` x ``height`` inches that belongs to no window."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.png, .pdf and .svg without dates or versions: the same figure gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    metadata: dict[str, dict[str, str | None]] = {
        "png": {"Software": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
        "svg": {"Date": None, "Creator": None},
    }
    paths = []
    for suffix in FORMATS:
        path = stem.with_name(f"{stem.name}.{suffix}")
        figure.savefig(path, format=suffix, metadata=metadata[suffix])
        figure.set_layout_engine("none")  # laid out once, not again for every format
        paths.append(path)
    return paths
