"""Where attention goes, and what a head says when it has work and when it is idle.

On bigram-backcopy data a query that is a trigger has work (the next token is a copy, which only attention can make) and
any other is idle. On text nothing says which is which: every query counts as idle. Letters: B windows, T tokens, Q
queries, S keys, L layers, H query heads, D head_dim, C d_model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gatebench.evaluation.probes.sinks import BLOCK, up_to
from gatebench.model.kernels import Kernel

DESTINATIONS = ("first", "self", "previous", "trigger", "rest", "none")
"""What a key is to a query. One that is two of these counts for the first in this order.

`none` is what goes to no token: 0 of softmax attention, which has to put its whole sum somewhere.
"""
QUERIES = ("idle", "trigger")
STAGES = ("sdpa", "gated", "o_proj", "output")
"""SDPA output per head before and after what sits at G1; the layer's output projection, and what G5 makes of it."""
PER_HEAD = STAGES[:2]
MAX_TOKENS = 16_384
"""Tokens, in whole windows from the first on, over which the attention rows are read: their cost grows with T."""
SKIPPED = 32


def skipped_queries(length: int) -> int:
    """Return how many first positions are no query here: 32, an eighth of the window if that is less, at least one.

    With few keys in sight even uniform attention is all on the first token, itself and the one before.
    """
    return max(1, min(SKIPPED, length // 8))


def destinations(rows: Tensor, triggers: Tensor, start: int) -> Tensor:
    """Return the attention of each query on each of DESTINATIONS, (B, H, Q, 6); they sum to one.

    `rows` (B, H, Q, S) is the causal attention of the queries start .. start + Q - 1, start at least 1, on the keys
    0 .. S - 1, S at least start + Q; `triggers` (B, S) says which keys are triggers.
    """
    left = rows.clone()
    shares = [left[..., 0].clone()]
    left[..., 0] = 0.0
    for offset in (start, start - 1):  # self, previous
        diagonal = left.diagonal(offset=offset, dim1=-2, dim2=-1)
        shares.append(diagonal.clone())
        diagonal.zero_()
    shares += [torch.einsum("bhqs,bs->bhq", left, keys.to(left.dtype)) for keys in (triggers, ~triggers)]
    shares.append(1.0 - rows.sum(dim=-1))
    return torch.stack(shares, dim=-1)


class DestinationStats:
    """Means over idle and over trigger queries: attention by destination, entropy of its row, norms of the output."""

    def __init__(self, n_layers: int, n_heads: int, length: int) -> None:
        self.start = skipped_queries(length)
        self.max_windows = max(1, MAX_TOKENS // length)
        self.n_windows = np.zeros(n_layers, dtype=np.int64)
        self._n_rows = np.zeros((n_layers, len(QUERIES)), dtype=np.int64)
        self._share = np.zeros((len(QUERIES), n_layers, n_heads, len(DESTINATIONS)))
        self._entropy = np.zeros((len(QUERIES), n_layers, n_heads))
        self._n_outputs = np.zeros((len(STAGES), n_layers, len(QUERIES)), dtype=np.int64)
        self._norms = {
            stage: np.zeros((len(QUERIES), n_layers, *([n_heads] if stage in PER_HEAD else []))) for stage in STAGES
        }

    def add_attention(
        self, layer: int, kernel: Kernel, q: Tensor, k: Tensor, decay: Tensor | None, triggers: Tensor
    ) -> None:
        """Count the shares that `kernel` gives keys `k` (B, K, T, D) of queries `q` (B, H, T, D); `triggers` is (B, T).

        `decay` (B, H, T) is what `Kernel.decay` returned.
        """
        left = self.max_windows - int(self.n_windows[layer])
        if left <= 0:
            return
        q, k, triggers = q[:left], k[:left], triggers[:left]
        decay = None if decay is None else decay[:left]
        self.n_windows[layer] += len(q)
        length = q.shape[2]
        for start in range(self.start, length, BLOCK):
            stop = min(start + BLOCK, length)
            rows = kernel.shares(*up_to(slice(start, stop), q, k, decay))  # (B, H, Q, stop)
            shares = destinations(rows, triggers[:, :stop], start)
            entropy = torch.special.entr(rows).sum(dim=-1)  # (B, H, Q)
            for place, chosen in enumerate(_queries(triggers[:, start:stop])):
                weights = chosen.to(rows.dtype)
                self._n_rows[layer, place] += int(chosen.sum())
                self._share[place, layer] += _numpy(torch.einsum("bhqn,bq->hn", shares, weights))
                self._entropy[place, layer] += _numpy(torch.einsum("bhq,bq->h", entropy, weights))

    def add_output(self, layer: int, stage: str, output: Tensor, triggers: Tensor) -> None:
        """Count the norms of `output`: (B, T, H, D) at the stages of PER_HEAD, (B, T, C) at the others."""
        norms = output[:, self.start :].float().norm(dim=-1)  # (B, T', H) or (B, T')
        for place, chosen in enumerate(_queries(triggers[:, self.start :])):
            self._n_outputs[STAGES.index(stage), layer, place] += int(chosen.sum())
            self._norms[stage][place, layer] += _numpy(norms[chosen].double().sum(dim=0))

    def summary(self) -> dict[str, float | None]:
        """Return means over layers and heads; null for trigger keys and queries where there is none."""
        arrays = self.arrays()
        flat: dict[str, float | None] = {}
        for queries in QUERIES:
            shares = arrays.get(f"attention_{queries}")
            for place, name in enumerate(DESTINATIONS):
                known = name != "trigger" or self._has_triggers
                share = float(shares[..., place].mean()) if shares is not None and known else None
                flat[f"attention_{queries}_{name}"] = share
            for name in (f"attention_{queries}_entropy", *(f"norm_{stage}_{queries}" for stage in STAGES)):
                flat[name] = float(arrays[name].mean()) if name in arrays else None
        return flat

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return `attention_<queries>` (L, H, 6), `attention_<queries>_entropy` (L, H) in nats, and output norms.

        Those are `norm_<stage>_<queries>`, (L, H) or (L,). Nothing of trigger queries where there is none.
        """
        arrays: dict[str, NDArray[Any]] = {}
        for place, queries in enumerate(QUERIES):
            n_rows = self._n_rows[:, place]
            if not n_rows.any():
                continue
            arrays[f"attention_{queries}"] = self._share[place] / n_rows[:, None, None]
            arrays[f"attention_{queries}_entropy"] = self._entropy[place] / n_rows[:, None]
            for stage, sums in self._norms.items():
                n = self._n_outputs[STAGES.index(stage), :, place]
                arrays[f"norm_{stage}_{queries}"] = sums[place] / n.reshape(-1, *[1] * (sums.ndim - 2))
        return arrays

    @property
    def _has_triggers(self) -> bool:
        return bool(self._n_rows[:, QUERIES.index("trigger")].any())


def _queries(triggers: Tensor) -> tuple[Tensor, Tensor]:
    """Masks of the idle and of the trigger queries, in the order of QUERIES."""
    return ~triggers, triggers


def _numpy(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.double().cpu().numpy()
    return array
