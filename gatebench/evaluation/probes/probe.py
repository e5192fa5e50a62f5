"""All probes of one model in one pass: sinks, destinations, massive activations, SDPA output, values, gate scores.

Everything streams over windows; nothing holds a T x T map. The definitions are in `sinks`, `destinations`,
`activations` and `gate_scores`; here are the hooks that feed them and the result. Letters: L layers, H query heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gatebench.evaluation.probes.activations import QUANTITIES, ActivationStats, SdpaOutputStats, ValueNorms
from gatebench.evaluation.probes.destinations import DestinationStats
from gatebench.evaluation.probes.gate_scores import (
    SITES,
    GateStats,
    GateTable,
    gate_arrays,
    gate_spread,
    gate_summary,
    histogram_edges,
    scored_gates,
)
from gatebench.evaluation.probes.hooks import removing, scores_replaced
from gatebench.evaluation.probes.sinks import (
    TRACKED_KEYS,
    SinkStats,
    attention_to_first_keys,
    uniform_first_token_share,
)
from gatebench.model.gates import Gate, GateInputs
from gatebench.model.kernels import Kernel
from gatebench.model.transformer import Block, Transformer

__all__ = ["GateStats", "ProbeResult", "attention_to_first_keys", "probe", "uniform_first_token_share"]


@dataclass
class ProbeResult:
    """What the probes found, per layer."""

    sinks: SinkStats
    activations: ActivationStats
    sdpa_output: SdpaOutputStats
    values: ValueNorms
    gates: GateTable
    """Site -> layer -> gate."""
    n_tokens: int
    seq_len: int
    destinations: DestinationStats | None
    """None where they were not asked for."""

    @property
    def share(self) -> NDArray[np.float64]:
        """(L, H) first-token share over all queries."""
        return self.sinks.share

    @property
    def share_excl(self) -> NDArray[np.float64]:
        """(L, H) first-token share over queries 1 .. T-1."""
        return self.sinks.share_excl

    @property
    def max_activation(self) -> NDArray[np.float64]:
        """(L,) largest |residual stream| after the layer, over all probed tokens."""
        return self.activations.arrays()["max_activation"]

    def summary(self) -> dict[str, float | int | None]:
        """Return the flat metrics of `summary.json`. Gate figures are null without a gate."""
        share, share_excl = float(self.share.mean()), float(self.share_excl.mean())
        floor = uniform_first_token_share(self.seq_len)
        return {
            "first_token_share": share,
            "first_token_share_excl": share_excl,
            "first_token_floor": floor,
            "first_token_floor_excl": uniform_first_token_share(self.seq_len, exclude_first_query=True),
            "first_token_excess": share / floor,
            "sink_rate": self.sinks.summary()["sink_rate"],
            "m_act": float(self.max_activation.mean()),
            **gate_summary(self.gates),
            "probe_tokens": self.n_tokens,
        }

    def details(self) -> dict[str, float | int | None]:
        """Return the further flat figures that `probes.json` holds."""
        sinks = self.sinks.summary()
        del sinks["sink_rate"]
        return {
            **sinks,
            **self.activations.summary(),
            **self.sdpa_output.summary(),
            **self.values.summary(),
            **({} if self.destinations is None else self.destinations.summary()),
            **gate_spread(self.gates),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `probes.npz` holds (docs/results.md)."""
        return {
            **self.sinks.arrays(),
            **self.activations.arrays(),
            **self.sdpa_output.arrays(),
            **self.values.arrays(),
            **({} if self.destinations is None else self.destinations.arrays()),
            **gate_arrays(self.gates),
        }


class _Recorder:
    """Forward hooks that accumulate what `ProbeResult` reports."""

    def __init__(self, model: Transformer, length: int, *, with_destinations: bool) -> None:
        self.model = model
        self.triggers = torch.empty(0)
        """(B, T) of the batch that passes: which of its tokens are triggers."""
        config = model.config
        self.sinks = SinkStats(config.n_layers, config.n_heads, length, min(TRACKED_KEYS, config.head_dim))
        self.activations = ActivationStats(config.n_layers)
        self.sdpa_output = SdpaOutputStats(config.n_layers)
        self.values = ValueNorms(config.n_layers, config.n_kv_heads)
        self.destinations = DestinationStats(config.n_layers, config.n_heads, length) if with_destinations else None
        self.gates: GateTable = {}
        for site in SITES:
            layers = [scored_gates(block, site) for block in model.blocks]
            if layers[0]:
                self.gates[site] = [[GateStats(edges=histogram_edges(gate)) for gate in gates] for gates in layers]

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hold the hooks on the model for the length of the block."""
        with removing() as handles:
            for index, block in enumerate(self.model.blocks):
                assert isinstance(block, Block)
                handles.append(block.attn.kernel.register_forward_pre_hook(self._attention_hook(index)))
                handles.append(block.attn.g1.register_forward_hook(self._sdpa_hook(index)))
                handles.append(block.attn.g2.register_forward_hook(self._value_hook(index)))
                handles.append(block.attn.o_proj.register_forward_hook(self._norm_hook(index, "o_proj")))
                handles.append(block.attn.register_forward_hook(self._norm_hook(index, "output")))
                handles.append(block.attn.register_forward_hook(self._output_hook(index, "attn_output")))
                handles.append(block.ffn_norm.register_forward_pre_hook(self._input_hook(index, "attn_residual")))
                handles.append(block.ffn.register_forward_hook(self._output_hook(index, "ffn_output")))
                handles.append(block.register_forward_hook(self._output_hook(index, "ffn_residual")))
                for site, layers in self.gates.items():
                    for gate, stats in zip(scored_gates(block, site), layers[index], strict=True):
                        handles.append(gate.register_forward_pre_hook(self._gate_hook(stats)))
            yield

    @contextmanager
    def attached_to_control(self) -> Iterator[None]:
        """Hold the hooks that count SDPA output times the gate's mean, which a first pass has to find."""
        with removing() as handles:
            for index, block in enumerate(self.model.blocks):
                assert isinstance(block, Block)
                handles.append(block.attn.g1.register_forward_hook(self._control_hook(index)))
            yield

    def _attention_hook(self, index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            assert isinstance(module, Kernel)
            q, k, _, decay = args
            self.sinks.add(index, attention_to_first_keys(q, k, module, decay))
            if self.destinations is not None:
                self.destinations.add_attention(index, module, q, k, decay, self.triggers)

        return hook

    def _sdpa_hook(self, index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, Tensor], output: Tensor) -> None:
            self.sdpa_output.add(index, "before", args[0])
            self.sdpa_output.add(index, "after", output)
            if self.destinations is not None:
                self.destinations.add_output(index, "sdpa", args[0], self.triggers)
                self.destinations.add_output(index, "gated", output, self.triggers)

        return hook

    def _norm_hook(self, index: int, stage: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            if self.destinations is not None:
                self.destinations.add_output(index, stage, output, self.triggers)

        return hook

    def _control_hook(self, index: int) -> Any:
        means = [stats.mean for stats in self.gates["g1"][index]]

        def hook(module: nn.Module, args: tuple[Tensor, GateInputs], output: Tensor) -> None:
            site, inputs = args
            remaining = iter(means)
            for gate in module.gates:  # type: ignore[union-attr]
                assert isinstance(gate, Gate)
                if gate.spec.source == "self":
                    site = gate.forward(site, inputs)
                    continue
                with scores_replaced(gate, site.new_full((1,), next(remaining))):
                    site = gate.forward(site, inputs)
            self.sdpa_output.add(index, "mean_gate", site)

        return hook

    def _value_hook(self, index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, Tensor], output: Tensor) -> None:
            self.values.add(index, args[0], output, self.triggers)

        return hook

    def _output_hook(self, index: int, quantity: str) -> Any:
        place = QUANTITIES.index(quantity)

        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            self.activations.add(index, place, output)

        return hook

    def _input_hook(self, index: int, quantity: str) -> Any:
        place = QUANTITIES.index(quantity)

        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.activations.add(index, place, args[0])

        return hook

    def _gate_hook(self, stats: GateStats) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            assert isinstance(module, Gate)
            logits = module.logits(args[1]).float()
            scores = module.scores(logits)
            scores = scores.expand(*args[1].hidden.shape[:2], -1, -1)  # a constant gate's count for every token
            stats.add(scores, logits)
            stats.add_first(scores)

        return hook


@torch.no_grad()
def probe(
    model: Transformer,
    inputs: NDArray[np.int64],
    *,
    batch_size: int,
    device: torch.device,
    triggers: NDArray[np.bool_] | None = None,
    with_destinations: bool = True,
) -> ProbeResult:
    """Run all probes on `inputs` (N, T), full windows without padding, in the dtype of the weights (fp32).

    Registers are tokens like others here, and the first of the sequence: shares, floors, norms and maxima are over
    them and the text.
    `triggers` (N, T) says which tokens are triggers, on bigram-backcopy data; None is none. A model with scores at G1
    is passed twice: the control needs the mean gate first. Memory is linear in T.
    """
    model.eval()
    length = model.n_registers + inputs.shape[1]
    recorder = _Recorder(model, length, with_destinations=with_destinations)
    marked = np.zeros((len(inputs), length), dtype=bool)
    if triggers is not None:
        marked[:, model.n_registers :] = triggers

    def forward() -> None:
        for start in range(0, len(inputs), batch_size):
            recorder.triggers = torch.from_numpy(marked[start : start + batch_size]).to(device)
            model.hidden(torch.from_numpy(inputs[start : start + batch_size]).to(device))

    with recorder.attached():
        forward()
    if "g1" in recorder.gates:
        with recorder.attached_to_control():
            forward()
    return ProbeResult(
        sinks=recorder.sinks,
        activations=recorder.activations,
        sdpa_output=recorder.sdpa_output,
        values=recorder.values,
        gates=recorder.gates,
        n_tokens=int(inputs.size),
        seq_len=length,
        destinations=recorder.destinations,
    )
