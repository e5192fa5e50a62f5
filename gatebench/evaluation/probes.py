"""Probes: first-token attention, massive activations and gate scores of a trained model.

Everything streams over windows; nothing holds a T x T map. Letters: B windows, T tokens, L layers, H query heads, D
head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from gatebench.model.attention import Attention
from gatebench.model.gates import Gate
from gatebench.model.transformer import Block, Transformer

CLOSED, OPEN = 0.1, 0.9
HISTOGRAM_BINS = 50


def uniform_first_token_share(length: int, *, exclude_first_query: bool = False) -> float:
    """Return the first-token share of uniform causal attention over `length` tokens: H_T / T, every sink's floor.

    With query 0 excluded: (H_T - 1) / (T - 1). 0.3397 at T=8, 0.01331 at T=512, 0.00733 at T=1024.
    """
    harmonic = math.fsum(1 / i for i in range(1, length + 1))
    return (harmonic - 1) / (length - 1) if exclude_first_query else harmonic / length


def attention_to_first_keys(q: Tensor, k: Tensor) -> Tensor:
    """Return the attention of every query on each of the first min(D, T) keys: (B, H, T, min(D, T)), fp32.

    q (B, H, T, D), k (B, K, T, D). SDPA runs with a value tensor whose first rows are the identity, so its output
    *is* that part
    of the map; no kernel has to return weights, and memory is linear in T.
    """
    length, width = q.shape[2], q.shape[3]
    probe = torch.zeros(length, width, dtype=torch.float32, device=q.device)
    probe.fill_diagonal_(1.0)
    values = probe.expand(q.shape[0], k.shape[1], length, width)
    gqa = q.shape[1] != k.shape[1]
    shares = F.scaled_dot_product_attention(q.float(), k.float(), values.contiguous(), is_causal=True, enable_gqa=gqa)
    return shares[..., : min(width, length)]


@dataclass
class GateStats:
    """Sums over the scores of one gate in one layer; `closed` and `open` count scores below 0.1 and above 0.9."""

    n: int = 0
    total: float = 0.0
    closed: int = 0
    open: int = 0
    abs_logit: float = 0.0
    edges: NDArray[np.float64] = field(default_factory=lambda: np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(HISTOGRAM_BINS, dtype=np.int64))

    def add(self, scores: Tensor, logits: Tensor) -> None:
        """Count fp32 `scores` and `logits` of any shape. The outer bins take what lies beyond the edges."""
        values, raw = scores.flatten().cpu().double(), logits.flatten().cpu().double()  # MPS has no fp64
        self.n += values.numel()
        self.total += float(values.sum())
        self.closed += int((values < CLOSED).sum())
        self.open += int((values > OPEN).sum())
        self.abs_logit += float(raw.abs().mean()) * values.numel()
        low, high = float(self.edges[0]), float(self.edges[-1])
        self.counts += np.histogram(values.clamp(low, high).numpy(), bins=HISTOGRAM_BINS, range=(low, high))[0]

    @property
    def mean(self) -> float:
        """Mean score."""
        return self.total / self.n

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


@dataclass
class ProbeResult:
    """What the probes found, per layer."""

    share: NDArray[np.float64]
    """(L, H) first-token share over all queries."""
    share_excl: NDArray[np.float64]
    """(L, H) first-token share over queries 1 .. T-1."""
    max_activation: NDArray[np.float64]
    """(L,) largest |residual stream| after the layer, over all probed tokens."""
    gates: dict[str, list[list[GateStats]]]
    """Site -> layer -> gate."""
    n_tokens: int
    seq_len: int

    def summary(self) -> dict[str, float | int | None]:
        """Return the flat metrics. Gate figures are means over every gate of every layer (null without a gate)."""
        stats = [s for layers in self.gates.values() for gates in layers for s in gates]
        share, share_excl = float(self.share.mean()), float(self.share_excl.mean())
        floor = uniform_first_token_share(self.seq_len)
        return {
            "first_token_share": share,
            "first_token_share_excl": share_excl,
            "first_token_floor": floor,
            "first_token_floor_excl": uniform_first_token_share(self.seq_len, exclude_first_query=True),
            "first_token_excess": share / floor,
            "m_act": float(self.max_activation.mean()),
            "gate_mean": float(np.mean([s.mean for s in stats])) if stats else None,
            "gate_closed": float(np.mean([s.closed_share for s in stats])) if stats else None,
            "gate_open": float(np.mean([s.open_share for s in stats])) if stats else None,
            "gate_abs_logit": float(np.mean([s.mean_abs_logit for s in stats])) if stats else None,
            "probe_tokens": self.n_tokens,
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `probes.npz` holds. Several gates at one site: their mean, and summed histograms."""
        arrays: dict[str, NDArray[Any]] = {
            "first_token_share": self.share,
            "first_token_share_excl": self.share_excl,
            "max_activation": self.max_activation,
        }
        for site, layers in self.gates.items():
            for name, attribute in (
                ("mean", "mean"),
                ("closed", "closed_share"),
                ("open", "open_share"),
                ("abs_logit", "mean_abs_logit"),
            ):
                arrays[f"gate_{site}_{name}"] = np.array(
                    [np.mean([getattr(s, attribute) for s in gates]) for gates in layers]
                )
            arrays[f"gate_{site}_hist"] = np.stack([np.sum([s.counts for s in gates], axis=0) for gates in layers])
            arrays[f"gate_{site}_edges"] = layers[0][0].edges
        return arrays


def _edges(gate: Gate) -> NDArray[np.float64]:
    """Return histogram edges that suit the gate's activation: [0, 1], or [-2, 2] for unbounded scores."""
    bounded = gate.spec.activation in ("sigmoid", "ns_sigmoid")
    low, high = (0.0, 1.0) if bounded else (-1.0, 1.0) if gate.spec.activation == "tanh" else (-2.0, 2.0)
    return np.linspace(low, high, HISTOGRAM_BINS + 1)


def _scored_gates(block: nn.Module, site: str) -> list[Gate]:
    """Return the gates at `site` that compute scores; transforms of the tensor itself have none."""
    return [gate for gate in getattr(block.attn, site).gates if gate.spec.source != "self"]


class _Recorder:
    """Forward hooks that accumulate what `ProbeResult` reports."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        n_layers, n_heads = model.config.n_layers, model.config.n_heads
        self.share = torch.zeros(n_layers, n_heads, dtype=torch.float64)
        self.share_excl = torch.zeros(n_layers, n_heads, dtype=torch.float64)
        self.max_activation = np.zeros(n_layers)
        self.gates: dict[str, list[list[GateStats]]] = {}
        for site in ("g1", "g2", "g3", "g4", "g5"):
            layers = [_scored_gates(block, site) for block in model.blocks]
            if layers[0]:
                self.gates[site] = [[GateStats(edges=_edges(gate)) for gate in gates] for gates in layers]

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hold the hooks on the model for the length of the block."""
        handles = []
        for index, block in enumerate(self.model.blocks):
            assert isinstance(block, Block)
            handles.append(block.attn.register_forward_pre_hook(self._attention_hook(index)))
            handles.append(block.register_forward_hook(self._block_hook(index)))
            for site, layers in self.gates.items():
                for gate, stats in zip(_scored_gates(block, site), layers[index], strict=True):
                    handles.append(gate.register_forward_pre_hook(self._gate_hook(stats)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _attention_hook(self, index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            assert isinstance(module, Attention)
            x, cos, sin = args[:3]
            q, k = module.queries_keys(x, cos, sin)
            first = attention_to_first_keys(q, k)[..., 0].cpu().double()  # (B, H, T)
            self.share[index] += first.mean(dim=-1).sum(dim=0)
            self.share_excl[index] += first[..., 1:].mean(dim=-1).sum(dim=0)

        return hook

    def _block_hook(self, index: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            self.max_activation[index] = max(self.max_activation[index], float(output.abs().max()))

        return hook

    @staticmethod
    def _gate_hook(stats: GateStats) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            assert isinstance(module, Gate)
            logits = module.logits(args[1]).float()
            stats.add(module.scores(logits), logits)

        return hook


@torch.no_grad()
def probe(model: Transformer, inputs: NDArray[np.int64], *, batch_size: int, device: torch.device) -> ProbeResult:
    """Run all probes on `inputs` (N, T), full windows without padding, in the dtype of the weights (fp32)."""
    model.eval()
    recorder = _Recorder(model)
    with recorder.attached():
        for start in range(0, len(inputs), batch_size):
            model(torch.from_numpy(inputs[start : start + batch_size]).to(device))
    return ProbeResult(
        share=(recorder.share / len(inputs)).numpy(),
        share_excl=(recorder.share_excl / len(inputs)).numpy(),
        max_activation=recorder.max_activation,
        gates=recorder.gates,
        n_tokens=int(inputs.size),
        seq_len=inputs.shape[1],
    )
