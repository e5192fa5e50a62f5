"""How large things get while a model trains, every `train.watch_every` steps: docs/stability.md says what each means.

A forward pass of its own, without gradients, over the micro-batch that the step ended with: training is the same to the
bit with it and without it. Letters: B batch, T queries, S keys, H query heads, K KV heads, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from gatebench.model.gates import Gate
from gatebench.model.kernels import Kernel, masked_scores
from gatebench.model.moe import take_routings
from gatebench.model.transformer import Block, Transformer
from gatebench.training.module import LanguageModel
from gatebench.training.sharding import whole

SIZES = ("attn_logit_max", "gate_logit_max", "activation_max")
"""Largest q kᵀ / √D that a query has for a key it may see, |gate logit|, and |residual stream| after a layer."""
UPDATES = ("update_ratio", "update_ratio_max")
"""‖change in this step‖ / ‖weights before it‖ over all matrices together, and the largest of one matrix."""
WATCHED = (*SIZES, *UPDATES)
"""Columns of `metrics.jsonl`; null between the watched steps, `gate_logit_max` also in a model without gates."""

SCORES_AT_ONCE = 1 << 24
"""Attention logits computed at one time; never a whole map of a long window."""


def largest_logit(q: Tensor, k: Tensor, at_once: int = SCORES_AT_ONCE) -> Tensor:
    """Return the largest q kᵀ / √D of a query and a key that it may see, a scalar: q (B, H, T, D), k (B, K, S, D)."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    rows = max(1, at_once // (q.shape[0] * q.shape[1] * n_keys))
    largest = []
    for start in range(0, n_queries, rows):
        part = q[:, :, start : start + rows]
        seen = k[:, :, : n_keys - n_queries + start + part.shape[2]]  # by the last of these queries
        largest.append(masked_scores(part, seen).amax())
    return torch.stack(largest).amax()


class Watch(L.Callback):
    """Measures at step 1, at every `every` steps and, in `take`, gives each row its columns; None measures nothing."""

    def __init__(self, every: int | None) -> None:
        self.every = every
        self._weights: list[Tensor] | None = None  # before the optimiser step that is being watched
        self._measured: dict[int, Tensor] = {}

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Any) -> None:
        """Keep the weights where the step to come is one to watch."""
        step = trainer.global_step + 1
        if self.every is not None and (step == 1 or step % self.every == 0):
            self._weights = [weight.detach().clone() for weight in _matrices(pl_module)]

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure once the watched step is made."""
        if self._weights is None:
            return
        assert isinstance(pl_module, LanguageModel)
        updates = _update_ratios(self._weights, _matrices(pl_module))  # first: a forward pass unshards some of them
        with torch.no_grad(), trainer.precision_plugin.forward_context():
            sizes = sizes_of(pl_module.model, batch["ids"][:, :-1])
        measured = torch.stack((*sizes, *updates))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(measured, torch.distributed.ReduceOp.MAX)
        self._measured[trainer.global_step] = measured
        self._weights = None

    def take(self, step: int) -> dict[str, float | None]:
        """Return the columns of the row of `step`, once; none at all where nothing is watched."""
        if self.every is None:
            return {}
        measured = self._measured.pop(step, None)
        values = [math.nan] * len(WATCHED) if measured is None else measured.tolist()
        return {name: v if math.isfinite(v) else None for name, v in zip(WATCHED, values, strict=True)}


def sizes_of(model: Transformer, ids: Tensor) -> tuple[Tensor, ...]:
    """Return SIZES of a forward pass over `ids` (B, T), scalars in fp32; NaN for the gates of a model without any."""
    found: dict[str, list[Tensor]] = {name: [] for name in SIZES}
    with torch.compiler.set_stance("force_eager"), _recording(model, found):
        model.hidden(ids)
    take_routings(model)
    nothing = torch.tensor(math.nan, device=ids.device)
    return tuple(torch.stack(values).float().amax() if values else nothing for values in found.values())


@contextmanager
def _recording(model: Transformer, found: dict[str, list[Tensor]]) -> Iterator[None]:
    """Append to `found` what each layer's kernel, gates and output show while the context is open."""

    def kernel(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        found["attn_logit_max"].append(largest_logit(inputs[0], inputs[1]))

    def gate(module: Gate, inputs: tuple[Any, ...]) -> None:
        found["gate_logit_max"].append(module.logits(inputs[1]).abs().amax())

    def block(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        found["activation_max"].append(output.abs().amax())

    handles: list[torch.utils.hooks.RemovableHandle] = []
    for module in model.modules():
        if isinstance(module, Kernel):
            handles.append(module.register_forward_pre_hook(kernel))
        elif isinstance(module, Gate) and module.spec.mode != "transform":
            handles.append(module.register_forward_pre_hook(gate))
        elif isinstance(module, Block):
            handles.append(module.register_forward_hook(block))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _matrices(module: nn.Module) -> list[Tensor]:
    """All weight matrices, embeddings among them."""
    return [weight for weight in module.parameters() if weight.ndim >= 2]


@torch.no_grad()
def _update_ratios(before: list[Tensor], after: list[Tensor]) -> tuple[Tensor, Tensor]:
    """UPDATES, scalars in fp32. A matrix of zeros has no ratio of its own. All processes must call it together."""
    sizes = torch.stack([whole(torch.linalg.vector_norm(old)).float() for old in before])
    pairs = zip(before, after, strict=True)
    changes = torch.stack([whole(torch.linalg.vector_norm(new - old)).float() for old, new in pairs])
    return changes.norm() / sizes.norm(), torch.where(sizes > 0, changes / sizes, 0).amax()
