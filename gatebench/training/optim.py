"""Optimiser, parameter groups and learning-rate schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from gatebench.config import OptimConfig


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, object]]:
    """Return AdamW groups; every parameter is in exactly one.

    `decay`: weight matrices (experts and routers, too). `no_decay`: norms, biases (those of `kv_bias` and sink logits,
    too), λ vectors and, unless decay_embeddings, the embedding (and a tied output layer) and registers.
    `gates`: gate matrices, decayed like other matrices, at lr * gate_lr_multiplier. `gates_no_decay`: θ, gains and
    biases of gates, at the same rate.
    """
    names = ("decay", "no_decay", "gates", "gates_no_decay")
    members: dict[str, list[nn.Parameter]] = {name: [] for name in names}
    for name, parameter in model.named_parameters():  # a tied weight is listed once
        is_gate = ".gates." in name
        is_embedding = name.endswith(("embed.weight", "registers"))
        decayed = parameter.ndim >= 2 and not name.endswith((".theta", ".gain", ".null_key", ".null_value"))
        if is_embedding:
            decayed = config.decay_embeddings
        members[("gates" if decayed else "gates_no_decay") if is_gate else ("decay" if decayed else "no_decay")].append(
            parameter
        )
    groups: list[dict[str, object]] = []
    for name in names:
        if members[name]:
            lr = config.lr * (config.gate_lr_multiplier if name.startswith("gates") else 1.0)
            decay = 0.0 if name.endswith("no_decay") else config.weight_decay
            groups.append({"name": name, "params": members[name], "lr": lr, "weight_decay": decay})
    return groups


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Return fused AdamW over `parameter_groups`."""
    return torch.optim.AdamW(
        parameter_groups(model, config), betas=(config.beta1, config.beta2), eps=config.eps, fused=True
    )


def lr_factor(step: int, steps: int, config: OptimConfig) -> float:
    """Return the learning rate of optimiser step `step` (0-based, of `steps`) as a share of its peak.

    Linear warm-up reaches the peak after `warmup_steps`; then cosine or linear decay reaches `min_lr_ratio` at the
    last step.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    progress = min(1.0, (step - config.warmup_steps) / max(1, steps - 1 - config.warmup_steps))
    shape = 0.5 * (1 + math.cos(math.pi * progress)) if config.schedule == "cosine" else 1 - progress
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * shape
