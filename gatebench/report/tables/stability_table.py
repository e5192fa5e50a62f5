"""How each variant trained under each setting: divergence, spikes, and the largest logits, activations and updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from gatebench import metrics
from gatebench.report.analysis.estimate import Estimate
from gatebench.report.analysis.lr_curves import with_rates
from gatebench.report.analysis.paper_tables import facts_of
from gatebench.report.analysis.spikes import CURVES, OLMO2, OLMO_CORE, score
from gatebench.report.tables.blocks import table
from gatebench.report.tables.document import Document, of_one_table
from gatebench.report.text import NOTHING, mean_and_interval

WATCHED = tuple(metric.key for metric in metrics.measured("training") if metric.title)
"""Columns of a run that was trained with ``train.watch_every``: the largest of the whole training."""

SCORES = {
    "spikes_7s_1000_loss": (OLMO2, ("loss",)),
    "spikes_7s_1000_grad_norm": (OLMO2, ("grad_norm",)),
    "spikes_6s_128_loss": (OLMO_CORE, ("loss",)),
    "spikes_6s_128_grad_norm": (OLMO_CORE, ("grad_norm",)),
    "spikes_6s_128": (OLMO_CORE, CURVES),
}
"""Spike scores by name; the last counts a step with a spike in either curve once, as OLMo-core does."""
SPIKE_COLUMNS = ("spikes 7σ\nloss", "7σ\ngradient", "6σ\nloss", "6σ\ngradient", "6σ\neither")


def stability_table(
    study: str, frame: pd.DataFrame, names: Sequence[str], labels: Mapping[str, str], baseline: str
) -> Document:
    """Lay the runs (with ``spikes.with_spikes``) out, a row a variant and setting, by learning rate."""
    rated = with_rates(frame[frame["variant"].isin(names)])
    keys = sorted(set(zip(rated["batch_size"], rated["group"], rated["lr"], rated["setting"], strict=True)))
    records = []
    for _, _, lr, setting in keys:
        for name in names:
            runs = rated[(rated["setting"] == setting) & (rated["variant"] == name)]
            if len(runs):
                records.append({"setting": setting, "lr": lr, **_record(runs, name, labels.get(name, name))})
    watched = [key for key in WATCHED if any(not math.isnan(record[key]) for record in records)]
    columns = ["setting", "variant", "loss\n(nats)", "diverged", "at step", *SPIKE_COLUMNS]
    columns += [metrics.get(key).wrapped for key in watched]
    return of_one_table(
        "stability",
        f"{study}: how training went",
        facts_of(frame, baseline),
        table(columns, [_cells(record, watched) for record in records], n_words=2),
        pd.DataFrame.from_records(records),
        _legend(bool(watched)),
    )


def _record(runs: pd.DataFrame, name: str, label: str) -> dict[str, Any]:
    done = runs[runs["status"] == "done"]
    losses = Estimate.of(done.set_index("seed")["micro_ppl"].astype(float).map(math.log))
    failed = runs[runs["status"] == "diverged"]
    return {
        "variant": name,
        "label": label,
        "n_seeds": len(runs),
        "loss": losses.mean,
        "loss_half_width": losses.half_width,
        "n_diverged": len(failed),
        "diverged_steps": " ".join(f"{step:.0f}" for step in sorted(failed["diverged_step"])),
        **{key: score(runs, rule, curves) for key, (rule, curves) in SCORES.items()},
        **{key: float(runs[key].astype(float).max()) if key in runs else math.nan for key in WATCHED},
    }


def _cells(record: Mapping[str, Any], watched: Sequence[str]) -> tuple[str, ...]:
    scores = (NOTHING if math.isnan(record[key]) else f"{100 * record[key]:.2f} %" for key in SCORES)
    sizes = (NOTHING if math.isnan(record[key]) else f"{record[key]:.3g}" for key in watched)
    diverged = f"{record['n_diverged']} of {record['n_seeds']}"
    steps = record["diverged_steps"].replace(" ", ", ") or NOTHING
    loss = mean_and_interval(record["loss"], record["loss_half_width"], "nats")
    return record["setting"], record["label"], loss, diverged, steps, *scores, *sizes


def _legend(watched: bool) -> str:
    text = (
        "Loss: held out, mean over the seeds that did not diverge. Spikes: share of all seeds' training steps with a "
        "value at least 7σ from the mean of the 1,000 before it (OLMo 2), or more than 6σ above that of the 128 before "
        "it (OLMo-core), of training loss and gradient norm; runs no longer than the window have none to count in."
    )
    if watched:
        text += (
            " Then the largest of any watched step and seed: q.k / sqrt(D) of a query and a key that it sees, |gate "
            "logit|, |residual stream| after a layer, and of one matrix the norm of a step's change over its own."
        )
    return text
