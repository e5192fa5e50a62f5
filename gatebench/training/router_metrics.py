"""The columns that a mixture of experts adds to `metrics.jsonl`, for whole optimiser steps over all processes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gatebench.training.module import RouterStatistics, sum_over_processes

Columns = dict[str, float | int | None]


class RouterMetrics:
    """Gathers the statistics of micro-batches, step by step, and leaves them on the device until they are read."""

    def __init__(self) -> None:
        self._micro_batches: list[RouterStatistics] = []
        self._counts: list[Tensor] = []  # a step each, (L, E)
        self._means: list[Tensor] = []  # a step each, (3,)

    def add(self, statistics: RouterStatistics | None) -> None:
        """Take those of one micro-batch; None, from a dense model, leaves everything without columns."""
        if statistics is not None:
            self._micro_batches.append(statistics)

    def close_step(self) -> None:
        """Say that the micro-batches so far were one optimiser step."""
        if self._micro_batches:
            self._counts.append(torch.stack([s.counts for s in self._micro_batches]).sum(0))
            self._means.append(torch.stack([s.means for s in self._micro_batches]).mean(0))
            self._micro_batches.clear()

    def read(self, n_steps: int) -> list[Columns]:
        """Return the columns of the `n_steps` closed steps that wait, oldest first; empty ones for a dense model.

        `load_balancing_loss` (in the recipe's convention), `z_loss` and `router_entropy` (nats) are means over layers;
        `max_load` is the load of the fullest expert over the even load, a mean over layers; `dead_experts` counts the
        experts of all layers that no token was sent to. All processes must call it together.
        """
        if not self._counts:
            return [{} for _ in range(n_steps)]
        counts = sum_over_processes(torch.stack(self._counts))  # (S, L, E)
        n_processes = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        means = sum_over_processes(torch.stack(self._means)) / n_processes  # (S, 3)
        max_load = (counts.amax(-1) * counts.shape[-1] / counts.sum(-1)).mean(-1, keepdim=True)  # (S, 1)
        dead = (counts == 0).sum((-1, -2)).unsqueeze(-1)  # (S, 1)
        rows = torch.cat((means, max_load, dead), dim=-1).tolist()  # the one sync
        self._counts.clear()
        self._means.clear()
        return [
            {
                "load_balancing_loss": lbl if math.isfinite(lbl) else None,
                "z_loss": z_loss if math.isfinite(z_loss) else None,
                "router_entropy": entropy if math.isfinite(entropy) else None,
                "max_load": load,
                "dead_experts": int(n_dead),
            }
            for lbl, z_loss, entropy, load, n_dead in rows
        ]
