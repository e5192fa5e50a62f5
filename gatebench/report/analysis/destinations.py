"""Where attention goes, over variants and seeds: destinations, entropy, output norms and value norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gatebench.report.read.probe_files import ProbedRun, by_variant

DESTINATIONS = ("first", "self", "previous", "trigger", "rest", "none")
QUERIES = ("idle", "trigger")
STAGES = {"sdpa": "SDPA", "gated": "after G1", "o_proj": "o_proj", "output": "after G5"}
ROUNDING = 1e-4
"""A share below it is a row of softmax that does not sum to one in fp32."""
VALUES = ("first", "trigger", "ordinary")


@dataclass(frozen=True)
class Row:
    """One variant, one kind of queries, in one layer or over all: means over heads and seeds."""

    variant: str
    n_seeds: int
    layer: int | None
    """From 1; None is the mean over layers."""
    queries: str
    """`idle`, `trigger`, or `all` on text, where nothing says which are which."""
    shares: dict[str, float]
    """Of the attention, by destination; without `trigger` on text, without `none` where all goes to tokens."""
    shares_by_seed: dict[str, tuple[float, ...]]
    entropy: float
    """Of the attention row, nats."""
    norms: dict[str, float]
    """Of the output, by stage; SDPA and G1 by head, the others by layer."""
    values: dict[str, float]
    """Norm of the value after G2, by the kind of token: the same for both kinds of queries."""


def rows(runs: Sequence[ProbedRun], baseline: str = "baseline") -> list[Row]:
    """Return a row for every variant, kind of queries and layer (first over all layers, then each where several)."""
    found: list[Row] = []
    for variant, seeds in by_variant(runs, baseline).items():
        n_layers = seeds[0].arrays["attention_idle"].shape[0]
        layers = [None, *range(n_layers)] if n_layers > 1 else [None]
        found += [_row(variant, seeds, layer, queries) for layer in layers for queries in _queries(seeds)]
    return found


def _queries(seeds: Sequence[ProbedRun]) -> list[str]:
    return [queries for queries in QUERIES if all(f"attention_{queries}" in run.arrays for run in seeds)]


def _row(variant: str, seeds: Sequence[ProbedRun], layer: int | None, queries: str) -> Row:
    chosen = slice(None) if layer is None else slice(layer, layer + 1)

    def mean(name: str) -> float:
        return float(np.mean([run.arrays[name][chosen].mean() for run in seeds]))

    has_triggers = len(_queries(seeds)) > 1
    by_seed = {
        name: tuple(float(run.arrays[f"attention_{queries}"][chosen][..., place].mean()) for run in seeds)
        for place, name in enumerate(DESTINATIONS)
        if name != "trigger" or has_triggers
    }
    if max(by_seed["none"]) < ROUNDING:
        del by_seed["none"]
    values = {name: f"value_norm_{name}" for name in VALUES} if has_triggers else {}
    values |= {} if has_triggers else {"first": "value_norm_first", "ordinary": "value_norm_rest"}
    return Row(
        variant=variant,
        n_seeds=len(seeds),
        layer=None if layer is None else layer + 1,
        queries=queries if has_triggers else "all",
        shares={name: float(np.mean(found)) for name, found in by_seed.items()},
        shares_by_seed=by_seed,
        entropy=mean(f"attention_{queries}_entropy"),
        norms={stage: mean(f"norm_{stage}_{queries}") for stage in STAGES},
        values={name: mean(array) for name, array in values.items()},
    )
