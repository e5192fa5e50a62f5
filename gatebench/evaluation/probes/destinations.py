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
from torch.utils.hooks import RemovableHandle

from gatebench.evaluation.probes.base import Array, Batch, Probe
from gatebench.evaluation.probes.sinks import BLOCK, up_to
from gatebench.model.kernels import Kernel
from gatebench.model.transformer import Block

DESTINATIONS = ("first", "self", "previous", "trigger", "rest", "none")
"""What a key is to a query. One that is two of these counts for the first in this order.

`none` is what goes to no token: 0 of softmax attention, which has to put its whole sum somewhere.
"""
QUERIES = ("idle", "trigger")
STAGES = ("sdpa", "gated", "o_proj", "output")
"""SDPA output per head before and after what sits at G1; the layer's output projection, and what G5 makes of it."""
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


class DestinationStats(Probe):
    """Means over idle and over trigger queries: attention by destination, entropy of its row, norms of the output."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.start = skipped_queries(length)
        self._windows_left: dict[int, int] = {}
        """By layer."""

    def attach(self, layer: int, block: Block, batch: Batch) -> list[RemovableHandle]:
        """Count a layer's attention rows and outputs from now on."""

        def attention(kernel: Any, args: tuple[Any, ...]) -> None:
            q, k, _, decay = args
            self.add_attention(layer, kernel, q, k, decay, batch.triggers)

        def output(stage: str, values: Tensor) -> None:
            self.add_output(layer, stage, values, batch.triggers)

        attn = block.attn
        return [
            attn.kernel.register_forward_pre_hook(attention),
            attn.g1.register_forward_hook(lambda _, args, gated: output("sdpa", args[0])),
            attn.g1.register_forward_hook(lambda _, args, gated: output("gated", gated)),
            attn.o_proj.register_forward_hook(lambda _, args, projected: output("o_proj", projected)),
            attn.register_forward_hook(lambda _, args, whole: output("output", whole)),
        ]

    def add_attention(
        self, layer: int, kernel: Kernel, q: Tensor, k: Tensor, decay: Tensor | None, triggers: Tensor
    ) -> None:
        """Count the shares that `kernel` gives keys `k` (B, K, T, D) of queries `q` (B, H, T, D); `triggers` is (B, T).

        `decay` (B, H, T) is what `Kernel.decay` returned.
        """
        left = self._windows_left.setdefault(layer, max(1, MAX_TOKENS // self.length))
        if left == 0:
            return
        q, k, triggers = q[:left], k[:left], triggers[:left]
        decay = None if decay is None else decay[:left]
        self._windows_left[layer] = left - len(q)
        length = q.shape[2]
        for start in range(self.start, length, BLOCK):
            stop = min(start + BLOCK, length)
            rows = kernel.shares(*up_to(slice(start, stop), q, k, decay))  # (B, H, Q, stop)
            shares = destinations(rows, triggers[:, :stop], start)
            entropy = torch.special.entr(rows).sum(dim=-1)  # (B, H, Q)
            for queries, chosen in _queries(triggers[:, start:stop]).items():
                weights, n = chosen.to(rows.dtype), int(chosen.sum())
                self.count(f"attention_{queries}", layer, _numpy(torch.einsum("bhqn,bq->hn", shares, weights)), n)
                row_entropy = _numpy(torch.einsum("bhq,bq->h", entropy, weights))
                self.count(f"attention_{queries}_entropy", layer, row_entropy, n)

    def add_output(self, layer: int, stage: str, output: Tensor, triggers: Tensor) -> None:
        """Count the norms of `output`: (B, T, H, D) at the first two of STAGES, (B, T, C) at the others."""
        norms = output[:, self.start :].float().norm(dim=-1)  # (B, T', H) or (B, T')
        for queries, chosen in _queries(triggers[:, self.start :]).items():
            self.count(f"norm_{stage}_{queries}", layer, _numpy(norms[chosen].double().sum(dim=0)), int(chosen.sum()))

    def summary(self) -> dict[str, float | None]:
        """Return means over layers and heads; null for trigger keys and queries where there is none."""
        arrays = self.arrays()
        flat: dict[str, float | None] = {}
        for queries in QUERIES:
            shares = arrays.get(f"attention_{queries}")
            for place, name in enumerate(DESTINATIONS):
                known = name != "trigger" or "attention_trigger" in arrays
                share = float(shares[..., place].mean()) if shares is not None and known else None
                flat[f"attention_{queries}_{name}"] = share
            for name in (f"attention_{queries}_entropy", *(f"norm_{stage}_{queries}" for stage in STAGES)):
                flat[name] = float(arrays[name].mean()) if name in arrays else None
        return flat

    def arrays(self) -> dict[str, Array]:
        """Return `attention_<queries>` (L, H, 6), `attention_<queries>_entropy` (L, H) in nats, and output norms.

        Those are `norm_<stage>_<queries>`, (L, H) or (L,). Nothing of trigger queries where there is none.
        """
        means, arrays = self.means(), {}
        for queries in QUERIES:
            if f"attention_{queries}" in means:
                norms = (f"norm_{stage}_{queries}" for stage in STAGES)
                for name in (f"attention_{queries}", f"attention_{queries}_entropy", *norms):
                    arrays[name] = means[name]
        return arrays


def _queries(triggers: Tensor) -> dict[str, Tensor]:
    """Masks of the idle and of the trigger queries."""
    return dict(zip(QUERIES, (~triggers, triggers), strict=True))


def _numpy(values: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = values.double().cpu().numpy()
    return array
