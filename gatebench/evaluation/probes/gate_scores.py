"""Gate scores: mean, spread, sparsity and histogram of every gate, streamed over windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from gatebench.gatespec import POSITIONS
from gatebench.model.gates import Gate

SITES = tuple(POSITIONS)
CLOSED, OPEN = 0.1, 0.9
HISTOGRAM_BINS = 50


@dataclass
class GateStats:
    """Sums over the scores of one gate in one layer; `closed` and `open` count scores below 0.1 and above 0.9."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf
    closed: int = 0
    open: int = 0
    abs_logit: float = 0.0
    first_n: int = 0
    first_total: float = 0.0
    edges: NDArray[np.float64] = field(default_factory=lambda: np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(HISTOGRAM_BINS, dtype=np.int64))

    def add(self, scores: Tensor, logits: Tensor) -> None:
        """Count fp32 `scores` and `logits` of any shape. The outer bins take what lies beyond the edges."""
        values, raw = scores.flatten().cpu().double(), logits.flatten().cpu().double()  # MPS has no fp64
        self.n += values.numel()
        self.total += float(values.sum())
        self.squares += float(values.square().sum())
        self.minimum = min(self.minimum, float(values.min()))
        self.maximum = max(self.maximum, float(values.max()))
        self.closed += int((values < CLOSED).sum())
        self.open += int((values > OPEN).sum())
        self.abs_logit += float(raw.abs().mean()) * values.numel()
        low, high = float(self.edges[0]), float(self.edges[-1])
        self.counts += np.histogram(values.clamp(low, high).numpy(), bins=HISTOGRAM_BINS, range=(low, high))[0]

    def add_first(self, scores: Tensor) -> None:
        """Count the scores of the first token among those (B, T, H, D or 1) that `add` took."""
        values = scores[:, 0].cpu().double()
        self.first_n += values.numel()
        self.first_total += float(values.sum())

    @property
    def mean(self) -> float:
        """Mean score."""
        return self.total / self.n

    @property
    def std(self) -> float:
        """Standard deviation over all scores."""
        return math.sqrt(max(0.0, self.squares / self.n - self.mean**2))

    @property
    def closed_share(self) -> float:
        """Share of scores below 0.1."""
        return self.closed / self.n

    @property
    def open_share(self) -> float:
        """Share of scores above 0.9."""
        return self.open / self.n

    @property
    def mean_abs_logit(self) -> float:
        """Mean absolute raw score."""
        return self.abs_logit / self.n

    @property
    def first_mean(self) -> float:
        """Mean score at position 0; the mean of all where none was counted."""
        return self.first_total / self.first_n if self.first_n else self.mean


def histogram_edges(gate: Gate) -> NDArray[np.float64]:
    """Return histogram edges that suit the gate's activation: [0, 1], [-1, 1], or [-2, 2] for unbounded scores."""
    bounded = gate.spec.activation in ("sigmoid", "hard")
    low, high = (0.0, 1.0) if bounded else (-1.0, 1.0) if gate.spec.activation == "tanh" else (-2.0, 2.0)
    return np.linspace(low, high, HISTOGRAM_BINS + 1)


def scored_gates(block: nn.Module, site: str) -> list[Gate]:
    """Return the gates at `site` that compute scores; transforms of the tensor itself have none."""
    return [gate for gate in getattr(block.attn, site).gates if gate.spec.source != "self"]


GateTable = dict[str, list[list[GateStats]]]
"""Site -> layer -> gate; sites without a scored gate are left out."""


def gate_summary(gates: GateTable) -> dict[str, float | None]:
    """Return means over every gate of every layer (null without a gate)."""
    stats = [s for layers in gates.values() for of_layer in layers for s in of_layer]

    def mean(name: str) -> float | None:
        return float(np.mean([getattr(s, name) for s in stats])) if stats else None

    return {
        "gate_mean": mean("mean"),
        "gate_closed": mean("closed_share"),
        "gate_open": mean("open_share"),
        "gate_abs_logit": mean("mean_abs_logit"),
    }


def gate_spread(gates: GateTable) -> dict[str, float | None]:
    """Return the mean standard deviation, the extremes, and the mean score at position 0 (null without a gate)."""
    stats = [s for layers in gates.values() for of_layer in layers for s in of_layer]
    if not stats:
        return dict.fromkeys(("gate_std", "gate_min", "gate_max", "gate_first"))
    return {
        "gate_std": float(np.mean([s.std for s in stats])),
        "gate_min": min(s.minimum for s in stats),
        "gate_max": max(s.maximum for s in stats),
        "gate_first": float(np.mean([s.first_mean for s in stats])),
    }


def gate_arrays(gates: GateTable) -> dict[str, NDArray[Any]]:
    """Return (L,) figures and (L, 50) counts by site. Several gates at one site: their mean, and summed histograms."""
    arrays: dict[str, NDArray[Any]] = {}
    for site, layers in gates.items():
        for name, attribute in (
            ("mean", "mean"),
            ("std", "std"),
            ("closed", "closed_share"),
            ("open", "open_share"),
            ("abs_logit", "mean_abs_logit"),
            ("first", "first_mean"),
        ):
            arrays[f"gate_{site}_{name}"] = np.array([np.mean([getattr(s, attribute) for s in g]) for g in layers])
        arrays[f"gate_{site}_min"] = np.array([min(s.minimum for s in g) for g in layers])
        arrays[f"gate_{site}_max"] = np.array([max(s.maximum for s in g) for g in layers])
        arrays[f"gate_{site}_hist"] = np.stack([np.sum([s.counts for s in g], axis=0) for g in layers])
        arrays[f"gate_{site}_edges"] = layers[0][0].edges
    return arrays
