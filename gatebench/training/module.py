"""The one Lightning training module: every variant, every recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from gatebench.config import RunConfig
from gatebench.model.moe import Routing, load_balancing_loss, objective, take_routings
from gatebench.model.transformer import Transformer
from gatebench.training.optim import lr_factor, make_optimizer
from gatebench.training.sharding import shard, whole


def sum_over_processes(values: Tensor) -> Tensor:
    """Return the sum of `values` over all processes of the run; in a run of one process, `values`."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        values = values.clone()
        torch.distributed.all_reduce(values)
    return values


@dataclass(frozen=True)
class RouterStatistics:
    """What the routers of an MoE did with one micro-batch of one process; everything without gradient."""

    counts: Tensor
    """(L, E) int64: tokens sent to each expert."""
    means: Tensor
    """(3,): load-balancing loss in the recipe's convention, z-loss, entropy in nats; means over layers."""


class LanguageModel(L.LightningModule):
    """Next-token training of a `Transformer`. Metrics stay tensors until `callbacks.MetricsWriter` reads them.

    `loss` is the cross-entropy alone: the losses of the routers are minimised with it and recorded beside it.
    """

    def __init__(self, config: RunConfig, model: Transformer) -> None:
        super().__init__()
        self.config = config
        self.model = model
        self.loss: Tensor | None = None
        self.grad_norm: Tensor | None = None
        self.router: RouterStatistics | None = None
        self._step_counts: Tensor | None = None
        self._micro_batch = 0
        model.recompute = config.train.recompute

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return what to minimise on one micro-batch: `batch["ids"]` is (B, T + 1), inputs and targets overlapping.

        The first micro-batch of a step brings `batch["step_ids"]` along, all of this process's (accumulate * B, T + 1),
        where `model.moe.lbl_scope` has to count them ahead.
        """
        ids = batch["ids"]
        if "step_ids" in batch:
            self._step_counts = self._count_ahead(batch["step_ids"], len(ids))
        loss = self.model.loss(ids[:, :-1], ids[:, 1:])
        self.loss = loss.detach()
        return loss if self.model.config.moe is None else loss + self._router_losses(take_routings(self.model))

    def on_after_backward(self) -> None:
        """Forget the routings that recomputation made again: they are counted already."""
        take_routings(self.model)

    def _router_losses(self, routings: list[Routing]) -> Tensor:
        """Return the weighted losses of all routers for this micro-batch, and keep the statistics."""
        moe = self.model.config.moe
        assert moe is not None
        counts = torch.stack([routing.counts for routing in routings])  # (L, E)
        probs = [routing.mean_probs for routing in routings]
        lbl = load_balancing_loss(probs, self._balanced_counts(counts), moe)
        z_loss = torch.stack([routing.z for routing in routings]).mean()
        entropy = torch.stack([routing.entropy for routing in routings]).mean()
        self.router = RouterStatistics(counts, torch.stack([lbl.detach(), z_loss.detach(), entropy]))
        return objective(lbl, z_loss, len(routings), moe)

    def _balanced_counts(self, counts: Tensor) -> Tensor:
        """Return the (L, E) counts that the load-balancing loss of this micro-batch reads, by `lbl_scope`."""
        moe = self.model.config.moe
        assert moe is not None
        first = self._micro_batch == 0
        self._micro_batch = (self._micro_batch + 1) % self.config.accumulate
        if moe.lbl_scope == "micro_batch":
            return counts
        if moe.lbl_scope == "running":  # Algorithm 1 of 2501.11873: synchronised, cumulative, reset with each step
            counts = sum_over_processes(counts)
            self._step_counts = counts if first or self._step_counts is None else self._step_counts + counts
        elif self.config.accumulate == 1:
            self._step_counts = sum_over_processes(counts)
        assert self._step_counts is not None
        return self._step_counts

    @torch.no_grad()
    def _count_ahead(self, ids: Tensor, micro_batch_size: int) -> Tensor:
        """Return the (L, E) counts of a whole optimiser step on all devices; `ids` are this process's sequences."""
        counts: Tensor | int = 0
        for part in ids.split(micro_batch_size):
            self.model.hidden(part[:, :-1])
            counts = counts + torch.stack([routing.counts for routing in take_routings(self.model)])
        torch.clear_autocast_cache()  # it holds weights that were cast without gradient
        assert isinstance(counts, Tensor)
        return sum_over_processes(counts)

    def configure_model(self) -> None:
        """Shard the model where the strategy does; Lightning calls this once the processes know one another."""
        if self.config.train.strategy == "fsdp":
            assert self.device_mesh is not None
            shard(self.model, self.device_mesh["data_parallel"])

    def configure_gradient_clipping(
        self, optimizer: torch.optim.Optimizer, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip the global norm, and keep it (unclipped) for the metrics."""
        limit = self.config.optim.grad_clip
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit if limit is not None else float("inf"))
        self.grad_norm = whole(norm)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW and its schedule, stepped once per optimiser step."""
        config = self.config
        optimizer = make_optimizer(self.model, config.optim)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: lr_factor(step, config.train.steps, config.optim)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
