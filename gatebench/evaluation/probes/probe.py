"""All probes of one model in one pass. PROBES lists them; each is a class of its own module, with hooks that feed it.

Everything streams over windows; nothing holds a T x T map. Letters: L layers, H query heads.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gatebench import metrics
from gatebench.evaluation.probes.activations import ActivationStats, SdpaOutputStats, ValueNorms
from gatebench.evaluation.probes.base import Batch, Probe
from gatebench.evaluation.probes.destinations import DestinationStats
from gatebench.evaluation.probes.gate_scores import GateScores, GateStats
from gatebench.evaluation.probes.hooks import removing
from gatebench.evaluation.probes.residual_sinks import ResidualSinks
from gatebench.evaluation.probes.sinks import SinkStats
from gatebench.files import write_atomic
from gatebench.model.transformer import Block, Transformer

PROBES: tuple[type[Probe], ...] = (
    SinkStats,
    ActivationStats,
    SdpaOutputStats,
    ValueNorms,
    DestinationStats,
    GateScores,
    ResidualSinks,
)
"""What every run is measured by when it ends."""
FOLLOWED: tuple[type[Probe], ...] = (SinkStats, ActivationStats, GateScores)
"""What is measured again under interventions and at longer windows (`metrics.followed`)."""


P = TypeVar("P", bound=Probe)


@dataclass
class ProbeResult:
    """What the probes found."""

    probes: dict[type[Probe], Probe]
    n_tokens: int

    def of(self, kind: type[P]) -> P:
        """Return the probe of one kind. Raises KeyError for one that was not asked for."""
        found = self.probes[kind]
        assert isinstance(found, kind)
        return found

    @property
    def gates(self) -> dict[str, list[list[GateStats]]]:
        """Site -> layer -> gate."""
        return self.of(GateScores).gates

    def flat(self) -> dict[str, Any]:
        """Return all flat figures of `probes.json`: those of summary.json first, in the order of `metrics.METRICS`."""
        found = {key: value for probe in self.probes.values() for key, value in probe.summary().items()}
        found["probe_tokens"] = self.n_tokens
        first = [metric.key for metric in metrics.METRICS if metric.in_summary and metric.key in found]
        return {key: found[key] for key in dict.fromkeys([*first, *found])}

    def summary(self) -> dict[str, Any]:
        """Return the flat metrics of `summary.json`. Gate figures are null without a gate."""
        found = self.flat()
        return {key: value for key, value in found.items() if (metric := metrics.known(key)) and metric.in_summary}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `probes.npz` holds (docs/results.md)."""
        return {name: array for probe in self.probes.values() for name, array in probe.arrays().items()}


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write compressed arrays by rename."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


@torch.no_grad()
def probe(
    model: Transformer,
    inputs: NDArray[np.int64],
    *,
    batch_size: int,
    device: torch.device,
    triggers: NDArray[np.bool_] | None = None,
    probes: Collection[type[Probe]] = PROBES,
) -> ProbeResult:
    """Run `probes` on `inputs` (N, T), full windows without padding, in the dtype of the weights (fp32).

    Registers are tokens like others here, and the first of the sequence: shares, floors, norms and maxima are over
    them and the text.
    `triggers` (N, T) says which tokens are triggers, on bigram-backcopy data; None is none. A model with scores at G1
    is passed twice: the control of the SDPA output needs the mean gate first. Memory is linear in T.
    """
    model.eval()
    length = model.n_registers + inputs.shape[1]
    batch, found = Batch(), {kind: kind(length) for kind in probes}
    marked = np.zeros((len(inputs), length), dtype=bool)
    if triggers is not None:
        marked[:, model.n_registers :] = triggers
    blocks = [(layer, block) for layer, block in enumerate(model.blocks) if isinstance(block, Block)]

    def forward() -> None:
        for start in range(0, len(inputs), batch_size):
            batch.triggers = torch.from_numpy(marked[start : start + batch_size]).to(device)
            model.hidden(torch.from_numpy(inputs[start : start + batch_size]).to(device))

    with removing() as handles:
        for layer, block in blocks:
            for each in found.values():
                handles += each.attach(layer, block, batch)
        forward()
    result = ProbeResult(found, int(inputs.size))
    if {SdpaOutputStats, GateScores} <= found.keys() and "g1" in result.gates:
        with removing() as handles:
            for layer, block in blocks:
                means = [stats.figures()["mean"] for stats in result.gates["g1"][layer]]
                handles += result.of(SdpaOutputStats).attach_control(layer, block, means)
            forward()
    return result
