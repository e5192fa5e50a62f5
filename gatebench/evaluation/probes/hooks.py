"""Temporary changes to a built model: each is undone at the end of its block, whatever happens in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
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
def method_replaced(module: nn.Module, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Make `module` call `function` for its own method `name`; its hooks go on as before. May nest."""
    outer = vars(module).get(name)
    vars(module)[name] = function
    try:
        yield
    finally:
        if outer is None:
            del vars(module)[name]
        else:
            vars(module)[name] = outer


def scores_replaced(gate: Gate, scores: Tensor) -> AbstractContextManager[None]:
    """Make `gate` apply `scores` (anything that broadcasts to (B, T, H, D)) instead of its own.

    What is done with a score stays the gate's business: it multiplies or is added, as its `GateSpec` says. May nest.
    """
    return method_replaced(gate, "scores", lambda logits: scores.to(logits.dtype))
