"""Attention sinks: how much attention the first keys get, streamed over windows, and explicit maps for pictures.

Letters: B windows, T tokens, L layers, H query heads, K tracked keys, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gatebench.errors import UserError
from gatebench.evaluation.probes.base import Array, Batch, Probe
from gatebench.evaluation.probes.hooks import removing
from gatebench.model.kernels import Kernel, sdpa
from gatebench.model.transformer import Block, Transformer

SINK_EPSILON = 0.3
"""A head has a sink on a key that gets more than this share of the attention (Gu et al. 2024, arXiv 2410.10781)."""
SHORT_LENGTH = 64
"""Context at which Gu et al. measure their rate."""
BLOCK = 32
"""Queries whose attention is explicit at a time, where it has to be: memory is B x H x BLOCK x T."""
TRACKED_KEYS = 8
"""How many first keys are reported."""
MAX_MAP_LENGTH = 512
"""Longest explicit map; a map is a picture, and its memory grows with T^2."""


def uniform_first_token_share(length: int, *, exclude_first_query: bool = False) -> float:
    """Return the first-token share of uniform causal attention over `length` tokens: H_T / T, every sink's floor.

    With query 0 excluded: (H_T - 1) / (T - 1). 0.3397 at T=8, 0.01331 at T=512, 0.00733 at T=1024.
    """
    harmonic = math.fsum(1 / i for i in range(1, length + 1))
    return (harmonic - 1) / (length - 1) if exclude_first_query else harmonic / length


def uniform_first_keys_share(length: int, n_keys: int) -> NDArray[np.float64]:
    """Return (n_keys,): what uniform causal attention gives the first 1, 2, .. keys together; [0] is H_T / T."""
    queries = np.arange(1, length + 1)
    return np.array([(np.minimum(k, queries) / queries).mean() for k in range(1, n_keys + 1)])


def attention_to_first_keys(q: Tensor, k: Tensor, kernel: Kernel | None = None, decay: Tensor | None = None) -> Tensor:
    """Return the attention of every query on each of the first min(D, T) keys: (B, H, T, min(D, T)), fp32.

    q (B, H, T, D), k (B, K, T, D), `decay` as the kernel gets it; without a kernel it is softmax. The kernel runs with
    a value tensor whose first rows are the identity, so its output *is* that part of the map; no kernel has to return
    weights, and memory is linear in T. What a kernel adds that is not from `v` is taken off. Where weights are no
    shares (`Kernel.normalised`), rows of `Kernel.shares` are computed a block of queries at a time.
    """
    q, k = q.float(), k.float()
    length, width = q.shape[2], q.shape[3]
    n_keys = min(width, length)
    if kernel is not None and not kernel.normalised:
        blocks = [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]
        rows = [kernel.shares(*up_to(block, q, k, decay))[..., :n_keys] for block in blocks]
        return torch.cat([F.pad(part, (0, n_keys - part.shape[-1])) for part in rows], dim=2)
    probe = torch.zeros(length, width, dtype=torch.float32, device=q.device)
    probe.fill_diagonal_(1.0)
    values = probe.expand(q.shape[0], k.shape[1], length, width).contiguous()
    if kernel is None:
        return sdpa(q, k, values)[..., :n_keys]
    shares = kernel.forward(q, k, values, decay)
    if kernel.adds_value:
        shares = shares - kernel.forward(q, k, torch.zeros_like(values), decay)
    return shares[..., :n_keys]


def up_to(queries: slice, q: Tensor, k: Tensor, decay: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the chosen queries, and the keys and decays that they can see."""
    keys = slice(0, queries.stop)
    return q[:, :, queries], k[:, :, keys], None if decay is None else decay[:, :, keys]


class SinkStats(Probe):
    """What each head pays to each of the first K keys, means over windows.

    With A the causal map of a window and k a key counted from 1, alpha_k = (1 / (T - k + 1)) sum over i >= k of A_ik:
    all those queries are included (the diagonal counts). Sink_k is the share of (window, layer, head) with
    alpha_k > epsilon, strictly. Source: sail-sg/Attention-Sink `eval_sink_open_source.py`, there at T=64 and times 100.
    Since attention is causal, the first 64 queries of a longer window are that window at T=64.
    """

    def attach(self, layer: int, block: Block, batch: Batch) -> list[RemovableHandle]:
        """Count what a layer attends to from now on."""

        def hook(kernel: Any, args: tuple[Any, ...]) -> None:
            q, k, _, decay = args
            self.add(layer, attention_to_first_keys(q, k, kernel, decay)[..., :TRACKED_KEYS])

        return [block.attn.kernel.register_forward_pre_hook(hook)]

    def add(self, layer: int, attention: Tensor) -> None:
        """Count `attention` (B, H, T, K) of one layer on its first keys."""
        shares = attention.cpu().double().numpy()
        self.count("first_token_share_excl", layer, shares[:, :, 1:, 0].mean(axis=2).sum(axis=0), len(shares))
        for suffix, length in (("", self.length), *([("_64", SHORT_LENGTH)] if self.length >= SHORT_LENGTH else [])):
            alpha = shares[:, :, :length].sum(axis=2) / (length - np.arange(shares.shape[-1]))  # (B, H, K)
            self.count(f"sink_alpha{suffix}", layer, alpha.sum(axis=0), len(shares))
            self.count(f"sink_rate{suffix}", layer, (alpha > SINK_EPSILON).sum(axis=0), len(shares))

    def summary(self) -> dict[str, float | None]:
        """Return share (with its floors) and rate on the first key, at T and at 64: means over layers and heads."""
        arrays, floor = self.arrays(), uniform_first_token_share(self.length)
        share, short = float(arrays["first_token_share"].mean()), "sink_alpha_64" in arrays
        return {
            "first_token_share": share,
            "first_token_share_excl": float(arrays["first_token_share_excl"].mean()),
            "first_token_floor": floor,
            "first_token_floor_excl": uniform_first_token_share(self.length, exclude_first_query=True),
            "first_token_excess": share / floor,
            "sink_epsilon": SINK_EPSILON,
            "sink_rate": float(arrays["sink_rate"][..., 0].mean()),
            "sink_rate_64": float(arrays["sink_rate_64"][..., 0].mean()) if short else None,
            "first_token_share_64": float(arrays["sink_alpha_64"][..., 0].mean()) if short else None,
            "first_token_floor_64": uniform_first_token_share(SHORT_LENGTH) if short else None,
        }

    def arrays(self) -> dict[str, Array]:
        """Return everything by layer, head and key: (L, H) or (L, H, K).

        `first_keys_share` is the attention on the first 1 .. K keys together, mean over all T queries.
        """
        means = self.means()
        alpha = means["sink_alpha"]
        keys = np.arange(alpha.shape[-1])
        return {
            "first_token_share": alpha[..., 0],
            "first_token_share_excl": means.pop("first_token_share_excl"),
            "sink_alpha": alpha,
            "sink_rate": means["sink_rate"],
            "first_keys_share": np.cumsum(alpha * ((self.length - keys) / self.length), axis=-1),
            "first_keys_floor": uniform_first_keys_share(self.length, len(keys)),
            **means,
        }


@torch.no_grad()
def attention_maps(
    model: Transformer,
    inputs: NDArray[np.int64],
    layers: Sequence[int],
    *,
    device: torch.device,
    length: int = 128,
) -> NDArray[np.float32]:
    """Return the explicit maps of `layers` over the first `length` tokens, mean over windows: (layers, H, T, T).

    They are what `Kernel.shares` says; registers are the first of the T. `inputs` is (N, >= length), `layers` counts
    from 0. Windows go through one at a time.
    Raises UserError for a layer that the model has not, and for a length over 512, where a picture shows nothing and
    T^2 begins to cost.
    """
    n_layers = model.config.n_layers
    for layer in layers:
        if not 0 <= layer < n_layers:
            raise UserError(f"attention map of layer {layer + 1}: legal: 1 to {n_layers}")
    length = min(length, inputs.shape[1])
    if length > MAX_MAP_LENGTH:
        raise UserError(f"attention map over {length} tokens: legal: at most {MAX_MAP_LENGTH}")
    n_keys = model.n_registers + length
    total = torch.zeros(len(layers), model.config.n_heads, n_keys, n_keys)

    def hook(place: int) -> Any:
        def add(module: nn.Module, args: tuple[Any, ...]) -> None:
            assert isinstance(module, Kernel)
            q, k, _, decay = args
            total[place] += module.shares(q, k, decay)[0].cpu()

        return add

    model.eval()
    with removing() as handles:
        for place, layer in enumerate(layers):
            block = model.blocks[layer]
            assert isinstance(block, Block)
            handles.append(block.attn.kernel.register_forward_pre_hook(hook(place)))
        for row in inputs:
            model.hidden(torch.from_numpy(row[None, :length]).to(device))
    return (total / len(inputs)).numpy()
