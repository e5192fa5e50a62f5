"""What an intervention costs: the loss with it less the loss without, token by token on the same windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats as scipy_stats

from gatebench import metrics
from gatebench.data.tokens import IGNORED_TARGET
from gatebench.evaluation.perplexity import token_nll
from gatebench.evaluation.probes.interventions import Intervention
from gatebench.evaluation.probes.probe import FOLLOWED, probe
from gatebench.model.transformer import Transformer

KEPT = tuple(metric.key for metric in metrics.followed())
NONE = "none"
"""Name of the row of the untouched model."""


@dataclass(frozen=True)
class LossChange:
    """Mean loss over a group of targets, and its change."""

    loss: float
    """Nats per token, with the intervention."""
    change: float
    """Less the untouched model's."""
    low: float | None
    """95 % interval of the change over windows, paired: what other held-out windows would give, for this model.
    None from a single window."""
    high: float | None
    tokens: int


@dataclass(frozen=True)
class Effect:
    """One row: an intervention, the loss by group (`all` first), and the probes under it."""

    intervention: str
    applies: bool
    """False where it can change nothing (no gates to force): then there are no numbers."""
    losses: dict[str, LossChange]
    figures: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(KEPT))
    """The probes of KEPT."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        losses = {group: vars(change) for group, change in self.losses.items()}
        return {"intervention": self.intervention, "applies": self.applies, **self.figures, "losses": losses}


def loss_change(with_it: NDArray[np.float64], without: NDArray[np.float64], chosen: NDArray[np.bool_]) -> LossChange:
    """Return the change over the `chosen` targets; all arrays (N windows, T), losses in nats.

    The interval is that of a ratio estimator with windows as the sampled units (t, N - 1 degrees of freedom).
    """
    tokens = chosen.sum(axis=1).astype(np.float64)
    total = tokens.sum()
    difference = np.where(chosen, with_it - without, 0.0).sum(axis=1)
    change = float(difference.sum() / total)
    used = tokens > 0
    n = int(used.sum())
    loss = float(np.where(chosen, with_it, 0.0).sum() / total)
    if n < 2:
        return LossChange(loss, change, None, None, int(total))
    spread = float(((difference - change * tokens)[used] ** 2).sum()) * n / (n - 1)
    half = float(scipy_stats.t.ppf(0.975, n - 1)) * math.sqrt(spread) / float(total)
    return LossChange(loss, change, change - half, change + half, int(total))


def effects(
    model: Transformer,
    interventions: Sequence[Intervention],
    *,
    inputs: NDArray[np.int64],
    targets: NDArray[np.int64],
    groups: Mapping[str, NDArray[np.bool_]],
    probe_inputs: NDArray[np.int64],
    batch_size: int,
    device: torch.device,
) -> list[Effect]:
    """Return a row for the untouched model and one an intervention.

    `inputs` and `targets` (N, T) are scored where a target is not -100. `groups` names sets of targets, masks (N, T):
    domains, or copies and the rest; an empty one is left out. `probe_inputs` (M, T), full windows, calibrate means and
    quantiles and are what the probes under each intervention read.
    """
    scored = targets != IGNORED_TARGET
    masks = {"all": scored} | {name: mask & scored for name, mask in groups.items()}
    masks = {name: mask for name, mask in masks.items() if mask.any()}
    data: dict[str, Any] = {"batch_size": batch_size, "device": device}
    untouched = token_nll(model, inputs, targets, **data)
    rows = []
    for intervention in (None, *interventions):
        name = NONE if intervention is None else intervention.name
        if intervention is not None and not intervention.applies_to(model):
            rows.append(Effect(name, False, {}))
            continue
        context = nullcontext() if intervention is None else intervention.applied(model, probe_inputs, **data)
        with context:
            nll = untouched if intervention is None else token_nll(model, inputs, targets, **data)
            found = probe(model, probe_inputs, probes=FOLLOWED, **data).summary()
        losses = {group: loss_change(nll, untouched, mask) for group, mask in masks.items()}
        rows.append(Effect(name, True, losses, {key: found[key] for key in KEPT}))
    return rows
