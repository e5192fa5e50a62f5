"""What every probe is: hooks on each layer that add to sums, and the means that come of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from gatebench.model.transformer import Block

Array = npt.NDArray[Any]
Place = int | tuple[int, ...]
"""A layer, from 0; or a layer and what is measured in it."""


@dataclass
class Batch:
    """What passes through the model now, for hooks that ask."""

    triggers: Tensor = field(default_factory=lambda: torch.empty(0))
    """(B, T): which tokens are triggers."""


class Probe(ABC):
    """One measurement on all layers of a model; nothing of it grows with the number of windows."""

    def __init__(self, length: int) -> None:
        self.length = length
        """Tokens in a window, registers among them."""
        self._sums: dict[str, dict[Place, tuple[Any, int]]] = {}

    @abstractmethod
    def attach(self, layer: int, block: Block, batch: Batch) -> list[RemovableHandle]:
        """Hook a layer, counted from 0, and return the handles."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return flat figures of `probes.json`; the `metrics` that are `in_summary` go to summary.json, too."""

    def arrays(self) -> dict[str, Array]:
        """Return arrays of `probes.npz`, layers first (docs/results.md)."""
        return self.means()

    def count(self, name: str, place: Place, total: npt.ArrayLike, n: int) -> None:
        """Add `total`, a sum over `n` windows, tokens or elements, to those of `name`."""
        sums = self._sums.setdefault(name, {})
        before, n_before = sums.get(place, (0.0, 0))
        sums[place] = before + np.asarray(total), n_before + n

    def means(self) -> dict[str, Array]:
        """Return the mean of every name, places first; nothing of one that has a place where nothing was counted."""
        counted = {name: sums for name, sums in self._sums.items() if all(n for _, n in sums.values())}
        return {name: by_place({at: total / n for at, (total, n) in sums.items()}) for name, sums in counted.items()}


def by_place(values: Mapping[Place, Any]) -> Array:
    """Return values of one shape as an array with their places as first dimensions."""
    places = sorted(np.atleast_1d(place).tolist() for place in values)
    stacked = np.array([values[place[0] if len(place) == 1 else tuple(place)] for place in places], dtype=np.float64)
    return stacked.reshape(*(largest + 1 for largest in places[-1]), *stacked.shape[1:])
