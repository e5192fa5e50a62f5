"""Measurements that only a process whose probabilities are known allows: excess loss, and copying after triggers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from gatebench.data.backcopy import BigramBackcopy
from gatebench.data.tokens import HeldoutWindows


@dataclass(frozen=True)
class CopyScores:
    """Sums over the targets that follow a trigger (copies) and over all others."""

    excess_copy: float
    """Divergence in nats, summed."""
    excess_other: float
    n_copy: int
    n_other: int
    n_correct: int
    """Copies to which the model gave the largest logit."""

    def summary(self) -> dict[str, float | None]:
        """Return the flat metrics, per target; null where there is no such target."""
        n_targets = self.n_copy + self.n_other
        return {
            "excess_loss": _share(self.excess_copy + self.excess_other, n_targets),
            "excess_loss_copy": _share(self.excess_copy, self.n_copy),
            "excess_loss_other": _share(self.excess_other, self.n_other),
            "copy_accuracy": _share(self.n_correct, self.n_copy),
        }


@torch.no_grad()
def copy_scores(
    model: nn.Module, process: BigramBackcopy, windows: HeldoutWindows, *, batch_size: int, device: torch.device
) -> CopyScores:
    """Return how far the model is from the true process on every target of `windows`.

    A target's excess is the divergence KL(true || model) of the next-token distribution, given all tokens before: the
    model's expected loss there less the true predictor's. It is never negative and, unlike a difference of losses,
    free of the luck of which token was drawn. After a trigger it equals the loss.
    """
    model.eval()
    excess = np.zeros(2)  # other, copy
    count = np.zeros(2, np.int64)
    n_correct = 0
    for start in range(0, len(windows.inputs), batch_size):
        inputs, targets = windows.inputs[start : start + batch_size], windows.targets[start : start + batch_size]
        logits = model(torch.from_numpy(inputs).to(device)).float().cpu()  # (B, T, V)
        true = torch.from_numpy(process.next_token_probabilities(inputs))
        divergence = (torch.xlogy(true, true) - true * logits.double().log_softmax(dim=-1)).sum(dim=-1).numpy()
        copies = process.is_trigger(inputs)
        for kind, chosen in enumerate((~copies, copies)):
            excess[kind] += divergence[chosen].sum()
            count[kind] += chosen.sum()
        n_correct += int((logits.argmax(dim=-1).numpy() == targets)[copies].sum())
    return CopyScores(float(excess[1]), float(excess[0]), int(count[1]), int(count[0]), n_correct)


def _share(total: float, n: int) -> float | None:
    return total / n if n else None
