"""How figures look: one fixed colour, line style and marker a variant, sizes and fonts.

The style of a variant follows from its gates, so that it is the same in every figure and a new variant needs no entry
here: colour says where the gate sits, line style and lightness how fine it is, marker what else it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl

from gatebench import variants
from gatebench.errors import UserError

PAGE_WIDTH = 6.9
"""Inches: both columns of a paper."""

# Okabe and Ito, "Color Universal Design" (2008): told apart with every common colour-vision deficiency.
_BLACK, _BLUE, _ORANGE, _GREEN = "#000000", "#0072B2", "#E69F00", "#009E73"
_VERMILION, _PURPLE, _SKY = "#D55E00", "#CC79A7", "#56B4E9"

_BY_SITE = {"g1": _BLUE, "g2": _VERMILION, "g3": _GREEN, "g4": _PURPLE, "g5": _ORANGE}
_OTHERS = (_SKY, _ORANGE, _PURPLE, _GREEN)
_LINES = {"elementwise": "-", "headwise": "--", "shared": "-."}
_WHITENING = {"elementwise": 0.0, "headwise": 0.35, "shared": 0.2}
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

FLOOR_COLOR = "#666666"

SETTINGS: Any = {  # matplotlib types its keys as one long Literal
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "figure.dpi": 100,
    "figure.labelsize": 8,
    "figure.titlesize": 8,
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


@dataclass(frozen=True)
class VariantStyle:
    """What tells one variant from the others, in colour and in greyscale."""

    color: str
    linestyle: str
    marker: str

    @property
    def line(self) -> dict[str, Any]:
        """How ``Axes.plot`` draws a line of the variant."""
        return {"color": self.color, "linestyle": self.linestyle}

    @property
    def points(self) -> dict[str, Any]:
        """How ``Axes.plot`` draws points of the variant without a line."""
        return {"color": self.color, "marker": self.marker, "linestyle": "none"}

    @property
    def hollow(self) -> dict[str, Any]:
        """The same for points that others may lie under, as the seeds beside their mean."""
        return {**self.points, "markerfacecolor": "none"}


def variant_style(name: str, baseline: str = "baseline") -> VariantStyle:
    """The fixed style of a variant. The baseline is a solid black line with circles."""
    if name == baseline:
        return VariantStyle(_BLACK, "-", "o")
    number = zlib.crc32(name.encode())
    try:
        variant = variants.get(name)
    except UserError:  # a checkpoint from elsewhere
        variant = variants.Variant(name)
    if not variant.gates:
        return VariantStyle(_OTHERS[number % len(_OTHERS)], ":", _MARKERS[1 + number % (len(_MARKERS) - 1)])
    gate = variant.gates[0]
    alone = variant.name == gate.name
    grain = "shared" if gate.shared else gate.granularity
    plain = alone and gate.mode != "transform" and not gate.suffixes
    marker = {"headwise": "s", "elementwise": "^"}[grain] if plain else _MARKERS[3 + number % 4]
    color = _BY_SITE[gate.position] if alone else _SKY
    return VariantStyle(_whitened(color, _WHITENING[grain]), _LINES[grain], marker)


def _whitened(color: str, share: float) -> str:
    """The colour mixed with this share of white."""
    channels = (int(color[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{round(value + share * (255 - value)):02X}" for value in channels)


@contextmanager
def drawing() -> Iterator[None]:
    """Settings under which every figure is drawn and saved, whatever the user's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        yield
