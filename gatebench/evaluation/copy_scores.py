"""Measurements that only a process whose probabilities are known allows: excess loss, and copying after triggers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from gatebench.data.backcopy import BigramBackcopy
from gatebench.data.tokens import HeldoutWindows


@torch.no_grad()
def copy_scores(
    model: nn.Module, process: BigramBackcopy, windows: HeldoutWindows, *, batch_size: int, device: torch.device
) -> dict[str, Any]:
    """Return how far the model is from the true process on the targets of `windows`: means, null where there are none.

    Keys are those of summary.json, and `copy_targets` and `other_targets`: how many follow a trigger, or not.
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

    def per_target(total: float, n: int) -> float | None:
        return float(total / n) if n else None

    (on_others, on_copies), (n_other, n_copy) = excess.tolist(), count.tolist()
    return {
        "excess_loss": per_target(on_copies + on_others, n_copy + n_other),
        "excess_loss_copy": per_target(on_copies, n_copy),
        "excess_loss_other": per_target(on_others, n_other),
        "copy_accuracy": per_target(n_correct, n_copy),
        "copy_targets": n_copy,
        "other_targets": n_other,
    }
