"""Gate scores: mean, spread, sparsity and histogram of every gate, streamed over windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gatebench.evaluation.probes.base import Array, Batch, Probe
from gatebench.gatespec import POSITIONS
from gatebench.model.gates import Gate
from gatebench.model.transformer import Block

SITES = tuple(POSITIONS)
CLOSED, OPEN = 0.1, 0.9
HISTOGRAM_BINS = 50
FIGURES = ("mean", "closed", "open", "abs_logit", "std", "min", "max", "first")

HEAD_FIGURES = ("mean", "at_end", "abs_logit")
"""By head: mean score, share of scores below 0.1 or above 0.9, mean |raw score|."""


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
    by_head: NDArray[np.float64] | None = None
    """(3, H): sums of scores, of those below 0.1 or above 0.9, and of |raw score|."""
    head_n: int = 0
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

    def add_heads(self, scores: Tensor, logits: Tensor) -> None:
        """Sum by head over the scores (B, T, H, D or 1), one for all heads where shared, and logits that `add` took."""
        heads = logits.shape[2]
        values = scores.expand(-1, -1, heads, -1).transpose(0, 2).reshape(heads, -1).cpu().double()
        raw = logits.transpose(0, 2).reshape(heads, -1).cpu().double()
        at_end = ((values < CLOSED) | (values > OPEN)).double()
        n = values.shape[1]
        found = torch.stack([values.mean(1), at_end.mean(1), raw.abs().mean(1)]).numpy() * n
        self.by_head = found if self.by_head is None else self.by_head + found
        self.head_n += n

    def add_first(self, scores: Tensor) -> None:
        """Count the scores of the first token among those (B, T, H, D or 1) that `add` took."""
        values = scores[:, 0].cpu().double()
        self.first_n += values.numel()
        self.first_total += float(values.sum())

    def figures(self) -> dict[str, float]:
        """Return mean, standard deviation, share below 0.1 and above 0.9, mean |raw score|, extremes, and the mean at
        position 0 (that of all where none was counted)."""
        mean = self.total / self.n
        return {
            "mean": mean,
            "std": math.sqrt(max(0.0, self.squares / self.n - mean**2)),
            "closed": self.closed / self.n,
            "open": self.open / self.n,
            "abs_logit": self.abs_logit / self.n,
            "min": self.minimum,
            "max": self.maximum,
            "first": self.first_total / self.first_n if self.first_n else mean,
        }


def histogram_edges(gate: Gate) -> NDArray[np.float64]:
    """Return histogram edges that suit the gate's activation: [0, 1], [-1, 1], or [-2, 2] for unbounded scores."""
    bounded = gate.spec.activation in ("sigmoid", "hard")
    low, high = (0.0, 1.0) if bounded else (-1.0, 1.0) if gate.spec.activation == "tanh" else (-2.0, 2.0)
    return np.linspace(low, high, HISTOGRAM_BINS + 1)


def scored_gates(block: nn.Module, site: str) -> list[Gate]:
    """Return the gates at `site` that compute scores; transforms of the tensor itself have none."""
    return [gate for gate in getattr(block.attn, site).gates if gate.spec.source != "self"]


class GateScores(Probe):
    """The scores of every gate of a model."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.gates: dict[str, list[list[GateStats]]] = {}
        """Site -> layer -> gate; sites without a scored gate are left out."""

    def attach(self, layer: int, block: Block, batch: Batch) -> list[RemovableHandle]:
        """Count the scores of a layer's gates from now on."""

        def hook(stats: GateStats) -> Any:
            def add(gate: Any, args: tuple[Any, ...]) -> None:
                logits = gate.logits(args[1]).float()
                scores = gate.scores(logits)
                scores = scores.expand(*args[1].hidden.shape[:2], -1, -1)  # a constant gate's count for every token
                stats.add(scores, logits)
                stats.add_first(scores)
                stats.add_heads(scores, logits)

            return add

        handles = []
        for site in SITES:
            if gates := scored_gates(block, site):
                stats = [GateStats(edges=histogram_edges(gate)) for gate in gates]
                self.gates.setdefault(site, []).append(stats)
                handles += [gate.register_forward_pre_hook(hook(s)) for gate, s in zip(gates, stats, strict=True)]
        return handles

    def summary(self) -> dict[str, float | None]:
        """Return means over every gate of every layer, and the extremes; null without a gate."""
        of_all = [s.figures() for layers in self.gates.values() for of_layer in layers for s in of_layer]
        return {f"gate_{name}": _joined(name, of_all) if of_all else None for name in FIGURES}

    def arrays(self) -> dict[str, Array]:
        """Return figures (L,), by head (L, H), and counts (L, 50) by site.

        Several gates at one site: their mean, summed histograms.
        """
        arrays: dict[str, Array] = {}
        for site, layers in self.gates.items():
            figures = [[s.figures() for s in of_layer] for of_layer in layers]
            for name in ("mean", "std", "closed", "open", "abs_logit", "first", "min", "max"):
                arrays[f"gate_{site}_{name}"] = np.array([_joined(name, of_layer) for of_layer in figures])
            arrays[f"gate_{site}_hist"] = np.stack([np.sum([s.counts for s in g], axis=0) for g in layers])
            arrays[f"gate_{site}_edges"] = layers[0][0].edges
            if by_head := [[s.by_head / s.head_n for s in g if s.by_head is not None] for g in layers]:
                for row, name in enumerate(HEAD_FIGURES):
                    arrays[f"gate_{site}_head_{name}"] = np.stack([np.mean(g, axis=0)[row] for g in by_head])
        return arrays


def _joined(name: str, of_gates: Sequence[Mapping[str, float]]) -> float:
    """One figure of several gates: the least, the largest, or the mean."""
    values = [figures[name] for figures in of_gates]
    return {"min": min, "max": max}.get(name, lambda v: float(np.mean(v)))(values)
