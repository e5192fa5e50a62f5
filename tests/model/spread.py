"""A few variants that have all parts that any variant has: for facts about a part, whatever it stands beside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

from gatebench import variants
from tests.model.shapes import EVERY_VARIANT

Trait = tuple[str, Any]


def traits(name: str) -> frozenset[Trait]:
    """Return what the variant `name` is made of: each field of a gate and of a design with its value.

    Of a number that is only that it is set: another number changes no code that runs.
    """
    variant = variants.get(name)
    found = {(field, _value(value)) for field, value in variant.design.changes.items()}
    for gate in variant.gates:
        found |= {(f.name, _value(getattr(gate, f.name), f.default)) for f in fields(gate)}
    found |= {("ratio", key) for key in variant.ratios}
    if len(variant.gates) > 1:
        one_site = len({gate.position for gate in variant.gates}) < len(variant.gates)
        found.add(("gates", "two at one site" if one_site else "at several sites"))
    if variant.gates and variant.design.changes:
        found.add(("gates", "beside a design"))
    return frozenset(found)


def _value(value: Any, default: Any = None) -> Any:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value != default
    if hasattr(value, "top_k"):  # switch heads
        return value.tensors, value.top_k < value.n_experts
    return value


def spread(names: Iterable[str]) -> Iterator[str]:
    """Yield names of `names` whose traits are all that `names` have: at each step the one with most that are new."""
    left = {name: traits(name) for name in names}
    missing = frozenset[Trait]().union(*left.values())
    while missing:
        best = max(left, key=lambda name: len(left[name] & missing))
        missing -= left.pop(best)
        yield best


SPREAD = ("baseline", *spread(EVERY_VARIANT))
