"""Which documents are held out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gatebench.data.permutation import stable_hash


@dataclass(frozen=True)
class Candidate:
    """A document as the split sees it. `split_key`: documents that share it fall on the same side."""

    split_key: str
    source: str
    domain: str
    n_bytes: int


def heldout_shares(candidates: Sequence[Candidate], target_bytes: int, bounds: tuple[float, float]) -> dict[str, float]:
    """Share of each domain to hold out: what gives `target_bytes`, within `bounds`."""
    size: dict[str, int] = defaultdict(int)
    for c in candidates:
        size[c.domain] += c.n_bytes
    return {d: min(max(target_bytes / max(n, 1), bounds[0]), bounds[1]) for d, n in size.items()}


def choose_heldout(candidates: Sequence[Candidate], shares: dict[str, float]) -> set[str]:
    """Split keys that are held out.

    Within each (domain, source), keys are taken in the order of their hash until the domain's share of the bytes is
    reached, passing over keys that alone would fill more than half of it. A source of two keys or more holds out one
    at least if the domain would otherwise have no held-out text; a domain never holds out its only key.
    """
    bytes_of: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for c in candidates:
        bytes_of[c.domain, c.source][c.split_key] += c.n_bytes
    chosen: set[str] = set()
    by_domain: dict[str, list[dict[str, int]]] = defaultdict(list)
    for (domain, _), keys in bytes_of.items():
        by_domain[domain].append(keys)
        quota = shares[domain] * sum(keys.values())
        taken = 0
        for key in sorted(keys, key=lambda k: (stable_hash("heldout", k), k)):
            if taken >= quota:
                break
            if keys[key] <= quota / 2:
                chosen.add(key)
                taken += keys[key]
    for sources in by_domain.values():
        merged: dict[str, int] = defaultdict(int)
        for keys in sources:
            for key, n in keys.items():
                merged[key] += n
        if not chosen.intersection(merged) and len(merged) > 1:
            chosen.add(min(merged, key=lambda k: (merged[k], stable_hash("heldout", k), k)))
    return chosen
