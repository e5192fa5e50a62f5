"""The one Lightning training module: every variant, every recipe."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from gatebench.config import RunConfig
from gatebench.model.transformer import Transformer
from gatebench.training.optim import lr_factor, make_optimizer


class LanguageModel(L.LightningModule):
    """Next-token training of a `Transformer`. Metrics stay tensors until `callbacks.MetricsWriter` reads them."""

    def __init__(self, config: RunConfig, model: Transformer) -> None:
        super().__init__()
        self.config = config
        self.model = model
        self.loss: Tensor | None = None
        self.grad_norm: Tensor | None = None

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the loss of one micro-batch: `batch["ids"]` is (B, T + 1), inputs and targets overlapping."""
        ids = batch["ids"]
        loss = self.model.loss(ids[:, :-1], ids[:, 1:])
        self.loss = loss.detach()
        return loss

    def configure_gradient_clipping(
        self, optimizer: torch.optim.Optimizer, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip the global norm, and keep it (unclipped) for the metrics."""
        limit = self.config.optim.grad_clip
        self.grad_norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), limit if limit is not None else float("inf")
        )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW and its schedule, stepped once per optimiser step."""
        config = self.config
        optimizer = make_optimizer(self.model, config.optim)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: lr_factor(step, config.train.steps, config.optim)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
