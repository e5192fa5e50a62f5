"""Causal interventions on a trained model: change one thing in the forward pass, leave every weight alone.

Each is a context manager that attaches hooks and takes them off again; none is a branch in the model. `Intervention`
is the same by name, as the command line writes it. Letters: B windows, T tokens, H query heads, K KV heads, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from gatebench.errors import UserError, nearest
from gatebench.evaluation.probes.gate_scores import SITES, scored_gates
from gatebench.evaluation.probes.hooks import method_replaced, removing, scores_replaced
from gatebench.model.gates import Gate
from gatebench.model.transformer import Transformer

KINDS = {
    "mean-gate": "force every gate score to its mean over tokens, so that it depends on no input",
    "block-first": "no query but the first may look at the first token; the other weights are renormalised",
    "zero-first-value": "the first token's value is zero, so that what is paid to it adds nothing",
    "clip-activations": "clamp the residual stream to [-c, c] before the first layer and after each",
}
"""Name on the command line -> what it does."""
DEFAULT_QUANTILE = 0.999
_OPTIONS = {"mean-gate": ("per", "layers"), "clip-activations": ("c", "q", "layers")}


@dataclass(frozen=True)
class Intervention:
    """One intervention as the command line names it: `kind[:option=value,...]`."""

    kind: str
    layers: tuple[int, ...] | None = None
    """Layers that it acts on, from 0 here and from 1 in `name`; None is all.

    For clip-activations: the residual stream after these layers.
    """
    per: str = "score"
    """mean-gate: `score`, a mean for every head (and channel); `layer`, one for all scores of a gate."""
    limit: float | None = None
    """clip-activations: c."""
    quantile: float | None = None
    """clip-activations: c of each place is this quantile of |h| there on the calibration windows."""

    @property
    def name(self) -> str:
        """What `parse` reads back to an equal object."""
        options = [f"layers={'+'.join(str(n + 1) for n in self.layers)}"] if self.layers is not None else []
        options += [f"per={self.per}"] if self.per != "score" else []
        options += [f"c={self.limit:.10g}"] if self.limit is not None else []
        options += [f"q={self.quantile:.10g}"] if self.quantile is not None else []
        return ":".join([self.kind, ",".join(options)] if options else [self.kind])

    def applies_to(self, model: Transformer) -> bool:
        """Return whether it can change anything: forcing gates needs gates with scores."""
        if self.kind != "mean-gate":
            return True
        return any(scored_gates(block, site) for block in model.blocks for site in SITES)

    @contextmanager
    def applied(
        self, model: Transformer, calibration: NDArray[np.int64], *, batch_size: int, device: torch.device
    ) -> Iterator[None]:
        """Hold the intervention on `model`; means and quantiles come from `calibration` (N, T), untouched model.

        Raises UserError for a layer that the model has not.
        """
        n_layers = model.config.n_layers
        for layer in self.layers or ():
            if layer >= n_layers:
                raise UserError(f"--intervene {self.name}: no layer {layer + 1}; legal: 1 to {n_layers}")
        layers = range(n_layers) if self.layers is None else self.layers
        data: dict[str, Any] = {"batch_size": batch_size, "device": device}
        with ExitStack() as stack:
            if self.kind == "mean-gate":
                means = mean_gate_scores(model, calibration, layers=layers, per=self.per, **data)
                stack.enter_context(forced_gates(means))
            elif self.kind == "block-first":
                stack.enter_context(blocked_first_key(model, layers))
            elif self.kind == "zero-first-value":
                stack.enter_context(zeroed_first_value(model, layers))
            else:
                places = range(n_layers + 1) if self.layers is None else [layer + 1 for layer in self.layers]
                if self.limit is not None:
                    limits = dict.fromkeys(places, self.limit)
                else:
                    limits = residual_quantiles(model, calibration, self.quantile or DEFAULT_QUANTILE, **data)
                    limits = {place: limits[place] for place in places}
                stack.enter_context(clipped_residual(model, limits))
            yield


def parse(text: str) -> Intervention:
    """Return the intervention that `text` names. Raises UserError saying what is legal."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise UserError(f"--intervene {text}: unknown; {nearest(kind, [*KINDS, 'all'])}")
    legal = _OPTIONS.get(kind, ("layers",))
    found: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if key not in legal or not equals:
            raise UserError(f"--intervene {text}: '{part}' is no option of {kind}; legal: {', '.join(legal)} (=value)")
        found[key] = value
    try:
        limit = float(found["c"]) if "c" in found else None
        quantile = float(found["q"]) if "q" in found else None
        layers = tuple(int(word) - 1 for word in found["layers"].split("+")) if "layers" in found else None
    except ValueError as error:
        raise UserError(f"--intervene {text}: {error}; legal: c and q numbers, layers as in 1+3+4") from None
    per = found.get("per", "score")
    if per not in ("score", "layer"):
        raise UserError(f"--intervene {text}: per={per}; legal: score, layer")
    if limit is not None and quantile is not None:
        raise UserError(f"--intervene {text}: both c and q; legal: one of them")
    if limit is not None and not 0 < limit < math.inf:
        raise UserError(f"--intervene {text}: c={limit:g}; legal: a positive number")
    if quantile is not None and not 0 < quantile < 1:
        raise UserError(f"--intervene {text}: q={quantile:g}; legal: above 0 and below 1")
    if layers is not None and min(layers) < 0:
        raise UserError(f"--intervene {text}: layers={found['layers']}; legal: counted from 1")
    return Intervention(kind, layers=layers, per=per, limit=limit, quantile=quantile)


def forced_gates(scores: Mapping[Gate, Tensor]) -> ExitStack:
    """Return a context in which each gate applies the given `scores` instead of its own."""
    stack = ExitStack()
    for gate, values in scores.items():
        stack.enter_context(scores_replaced(gate, values))
    return stack


@torch.no_grad()
def mean_gate_scores(
    model: Transformer,
    inputs: NDArray[np.int64],
    *,
    layers: Collection[int] | None = None,
    per: str = "score",
    batch_size: int,
    device: torch.device,
) -> dict[Gate, Tensor]:
    """Return the mean score over all tokens of `inputs` (N, T) of every scored gate, (1, 1, H, D or 1), fp32.

    With `per="layer"` one number for all scores of a gate, (1, 1, 1, 1).
    """
    sums: dict[Gate, Tensor] = {}
    counts: dict[Gate, int] = {}

    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(module, Gate)
        scores = module.scores(module.logits(args[1]).float()).cpu().double()
        total = scores.sum(dim=(0, 1), keepdim=True)
        sums[module] = sums[module] + total if module in sums else total
        counts[module] = counts.get(module, 0) + scores.shape[0] * scores.shape[1]

    with removing() as handles:
        for index, block in enumerate(model.blocks):
            for site in SITES if layers is None or index in layers else ():
                handles += [gate.register_forward_pre_hook(hook) for gate in scored_gates(block, site)]
        _forward(model, inputs, batch_size, device)
    means = {gate: total / counts[gate] for gate, total in sums.items()}
    if per == "layer":
        means = {gate: mean.mean().reshape(1, 1, 1, 1) for gate, mean in means.items()}
    return {gate: mean.float().to(device) for gate, mean in means.items()}


@contextmanager
def blocked_first_key(model: Transformer, layers: Collection[int] | None = None) -> Iterator[None]:
    """Take the first key away from every query but the first, which has no other; the kernel is that over the rest.

    With registers it is the first register. Null keys stay. Needs no mask: queries and keys from the second on are
    causal among themselves. What probes read (`Kernel.shares`) is blocked alike. Prefill only (no KV cache),
    no padding.
    """
    with ExitStack() as stack:
        for attention in _attentions(model, layers):
            kernel = attention.kernel
            stack.enter_context(method_replaced(kernel, "shares", _shares_without_first_key(kernel.shares)))
            stack.enter_context(method_replaced(kernel, "forward", _without_first_key(kernel.forward)))
        yield


def _without_first_key(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def blocked(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None = None, mask: None = None) -> Tensor:
        first = attend(q[:, :, :1], k[:, :, :1], v[:, :, :1], _part(decay, slice(0, 1)))  # (B, H, 1, D)
        if q.shape[2] == 1:
            return first
        rest = attend(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], _part(decay, slice(1, None)))
        return torch.cat((first, rest), dim=2)

    return blocked


def _shares_without_first_key(shares: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the same for the explicit map of all queries, or of later ones (fewer than there are keys)."""

    def blocked(q: Tensor, k: Tensor, decay: Tensor | None = None) -> Tensor:
        if q.shape[2] < k.shape[2]:
            return F.pad(shares(q, k[:, :, 1:], _part(decay, slice(1, None))), (1, 0))
        first = F.pad(shares(q[:, :, :1], k[:, :, :1], _part(decay, slice(0, 1))), (0, k.shape[2] - 1))
        if q.shape[2] == 1:
            return first
        return torch.cat((first, blocked(q[:, :, 1:], k, decay)), dim=2)

    return blocked


def _part(decay: Tensor | None, keys: slice) -> Tensor | None:
    return None if decay is None else decay[:, :, keys]


@contextmanager
def zeroed_first_value(model: Transformer, layers: Collection[int] | None = None) -> Iterator[None]:
    """Set the first token's value to zero after G2, for every query, its own included; the weights stay.

    With registers it is the first register's. The value of a `kv_bias` is no token's and stays.
    """

    def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return torch.cat((torch.zeros_like(output[:, :1]), output[:, 1:]), dim=1)  # (B, T, K, D)

    with removing() as handles:
        handles += [attention.g2.register_forward_hook(hook) for attention in _attentions(model, layers)]
        yield


@contextmanager
def clipped_residual(model: Transformer, limits: Mapping[int, float]) -> Iterator[None]:
    """Clamp the residual stream to [-c, c] at places: 0 is before the first layer, n after layer n (from 1)."""

    def before(limit: float) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (args[0].clamp(-limit, limit), *args[1:])

        return hook

    def after(limit: float) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            return output.clamp(-limit, limit)

        return hook

    with removing() as handles:
        for place, limit in limits.items():
            if place == 0:
                handles.append(model.blocks[0].register_forward_pre_hook(before(limit)))
            else:
                handles.append(model.blocks[place - 1].register_forward_hook(after(limit)))
        yield


@torch.no_grad()
def residual_quantiles(
    model: Transformer, inputs: NDArray[np.int64], quantile: float, *, batch_size: int, device: torch.device
) -> dict[int, float]:
    """Return the quantile of |h| over all values of `inputs` (N, T) at each place of `clipped_residual`.

    Exact, as the smallest of the largest (1 - quantile) share of values: at least one value lies at or above it.
    Memory grows with that share alone.
    """
    kept = max(1, math.ceil((1 - quantile) * inputs.size * model.config.d_model))
    largest: dict[int, Tensor] = {}

    def count(place: int, values: Tensor) -> None:
        magnitudes = values.float().abs().flatten().cpu()
        joined = torch.cat((largest[place], magnitudes)) if place in largest else magnitudes
        largest[place] = joined.topk(min(kept, joined.numel()), sorted=False).values

    def before(module: nn.Module, args: tuple[Any, ...]) -> None:
        count(0, args[0])

    def after(place: int) -> Any:
        return lambda module, args, output: count(place, output)

    with removing() as handles:
        handles.append(model.blocks[0].register_forward_pre_hook(before))
        handles += [block.register_forward_hook(after(n)) for n, block in enumerate(model.blocks, start=1)]
        _forward(model, inputs, batch_size, device)
    return {place: float(values.min()) for place, values in sorted(largest.items())}


def _attentions(model: Transformer, layers: Collection[int] | None) -> list[Any]:
    return [block.attn for n, block in enumerate(model.blocks) if layers is None or n in layers]


def _forward(model: Transformer, inputs: NDArray[np.int64], batch_size: int, device: torch.device) -> None:
    model.eval()
    for start in range(0, len(inputs), batch_size):
        model.hidden(torch.from_numpy(inputs[start : start + batch_size]).to(device))
