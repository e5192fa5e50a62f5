"""Temporary changes to a built model: each is undone at the end of its block, whatever happens in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from gatebench.model.gates import Gate


@contextmanager
def removing() -> Iterator[list[Any]]:
    """Give a list for hook handles, and remove them all at the end of the block."""
    handles: list[Any] = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def forward_replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Make `module` compute `forward` instead of its own; its hooks go on as before. May nest."""
    outer = vars(module).get("forward")
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        if outer is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = outer


@contextmanager
def scores_replaced(gate: Gate, scores: Tensor) -> Iterator[None]:
    """Make `gate` apply `scores` (anything that broadcasts to (B, T, H, D)) instead of its own.

    What is done with a score stays the gate's business: it multiplies or is added, as its `GateSpec` says. May nest.
    """
    outer = vars(gate).get("scores")
    vars(gate)["scores"] = lambda logits: scores.to(logits.dtype)
    try:
        yield
    finally:
        if outer is None:
            del vars(gate)["scores"]
        else:
            vars(gate)["scores"] = outer
