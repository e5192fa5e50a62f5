"""The flat row that a finished run leaves: what it was, where it ran, how it trained."""

from __future__ import annotations

import hashlib
import statistics
import struct
from datetime import UTC, datetime
from typing import Any

import gatebench
from gatebench.config import RunConfig
from gatebench.data.reading import DataSource
from gatebench.metrics import SCHEMA
from gatebench.model.accounting import Accounting
from gatebench.training.rundir import RunDirectory
from gatebench.training.watch import WATCHED


def curve_hash(losses: list[float | None]) -> str:
    """Return a hash of a loss curve; two runs with equal hashes trained identically (a knob that reached nothing)."""
    packed = b"".join(struct.pack("<d", float("nan") if loss is None else loss) for loss in losses)
    return hashlib.sha256(packed).hexdigest()[:16]


def run_summary(
    config: RunConfig,
    corpus: DataSource,
    costs: Accounting,
    directory: RunDirectory,
    diverged: int | None,
    started: datetime,
) -> dict[str, Any]:
    """Return the fields of `summary.json` that do not come from the evaluation (docs/results.md)."""
    rows = directory.metrics_rows()
    tail = [row["loss"] for row in rows[-max(1, len(rows) // 20) :]]
    speeds = [row["tokens_per_s"] for row in rows[10:]] or [row["tokens_per_s"] for row in rows]
    attempts = directory.places()
    last = attempts[-1]
    return {
        "schema": SCHEMA,
        "run": directory.name,
        "status": "done" if diverged is None else "diverged",
        "diverged_step": diverged,
        "variant": config.variant,
        "recipe": config.recipe,
        "seed": config.seed,
        "data_seed": config.data_seed,
        "overrides": config.overrides,
        "fingerprint": config.fingerprint,
        "param_match": config.param_match,
        "n_params": costs.n_params,
        "n_params_baseline": costs.n_params_baseline,
        "n_params_added": costs.added,
        "n_params_active": costs.n_params_active,
        "ffn_dim": costs.model.ffn_dim,
        "flops_per_token": costs.flops_per_token,
        "flops_per_token_baseline": costs.flops_per_token_baseline,
        "corpus": corpus.name,
        "corpus_fingerprint": corpus.fingerprint,
        "vocab_size": corpus.vocab_size,
        "seq_len": config.data.seq_len,
        "bos": config.data.bos,
        "precision": last["precision"],
        "compiled": last["compiled"],
        "device": last["device"],
        "threads": last["threads"],
        "n_devices": last["n_devices"],
        "steps": rows[-1]["step"],
        "tokens": rows[-1]["tokens"],
        "data_hash": hashlib.sha256("".join(row["batch"] for row in rows).encode()).hexdigest()[:16],
        "curve_hash": curve_hash([row["loss"] for row in rows]),
        "final_train_loss": None if diverged is not None else statistics.fmean(tail),
        "tokens_per_s": statistics.median(speeds),
        "train_wall_s": round(_wall_seconds(rows), 1),
        "started": attempts[0]["started"],
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "attempts": len(attempts),
        "git_commit": last["git_commit"],
        "git_dirty": last["git_dirty"],
        "machine": last["machine"],
        "torch_version": last["torch"],
        "gatebench_version": gatebench.__version__,
        **_watched_maxima(rows),
        **({} if config.init is None else {"parent": config.init.run}),
    }


def _watched_maxima(rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return the largest of each column that `train.watch_every` adds, over training; nothing where it adds none."""
    names = [name for name in WATCHED if name in rows[0]]
    return {name: max((row[name] for row in rows if row[name] is not None), default=None) for name in names}


def _wall_seconds(rows: list[dict[str, Any]]) -> float:
    """Return training time: summed over steps, so that pauses between attempts do not count."""
    tokens = rows[0]["tokens"] / rows[0]["step"]
    return sum(tokens / row["tokens_per_s"] for row in rows)
