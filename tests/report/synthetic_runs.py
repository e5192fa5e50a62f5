"""Run directories written from numbers, in the format of docs/results.md, for tests of the report package."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

DOMAINS = ("code", "encyclopedia", "law", "literature", "math", "web")
N_LAYERS, N_HEADS, SEQ_LEN, VOCAB = 4, 3, 256, 4096
N_PARAMS = 2_376_384
ADDED = {"baseline": 0, "g1_headwise": 2_304, "g1_elementwise": 147_456, "g2_headwise": 768}


def uniform_floor(seq_len: int = SEQ_LEN) -> float:
    """H_T / T, query 0 included."""
    return sum(1 / i for i in range(1, seq_len + 1)) / seq_len


def summary(variant: str, seed: int, avg_ppl: float, **changes: Any) -> dict[str, Any]:
    """A legal summary.json of a finished run; ``changes`` replaces any field."""
    rng = np.random.default_rng(zlib.crc32(f"{variant}/{seed}".encode()))
    spread = np.linspace(0.7, 1.3, len(DOMAINS))
    ppl = {name: avg_ppl * factor for name, factor in zip(DOMAINS, spread, strict=True)}
    floor, gated = uniform_floor(), variant != "baseline"
    share = floor * (1.1 if not gated else 0.9) * float(rng.uniform(0.98, 1.02))
    floor_excl = (SEQ_LEN * floor - 1) / (SEQ_LEN - 1)
    row: dict[str, Any] = {
        "schema": 1,
        "run": f"{variant}-s{seed}",
        "status": "done",
        "diverged_step": None,
        "variant": variant,
        "recipe": "quick",
        "seed": seed,
        "data_seed": seed,
        "overrides": [],
        "fingerprint": f"{zlib.crc32(variant.encode()):08x}",
        "param_match": "none",
        "n_params": N_PARAMS + ADDED.get(variant, 1_000),
        "n_params_baseline": N_PARAMS,
        "n_params_added": ADDED.get(variant, 1_000),
        "flops_per_token": 1.43e7,
        "corpus": "six_domains",
        "corpus_fingerprint": "c0ffee",
        "vocab_size": VOCAB,
        "seq_len": SEQ_LEN,
        "bos": True,
        "precision": "fp32",
        "compiled": False,
        "device": "cpu",
        "threads": 1,
        "n_devices": 1,
        "steps": 1200,
        "tokens": 4_915_200,
        "data_hash": f"data{seed}",
        "curve_hash": f"{variant}{seed}",
        "final_train_loss": math.log(avg_ppl),
        "avg_ppl": avg_ppl,
        "avg_bpb": math.log2(avg_ppl) / 3.4,
        "micro_ppl": avg_ppl * 0.97,
        **{f"ppl/{name}": value for name, value in ppl.items()},
        **{f"bpb/{name}": math.log2(value) / 3.4 for name, value in ppl.items()},
        **{f"nll/{name}": math.log(value) for name, value in ppl.items()},
        **{f"eval_tokens/{name}": 32_768 for name in DOMAINS},
        "eval_seq_len": SEQ_LEN,
        "first_token_share": share,
        "first_token_share_excl": (SEQ_LEN * share - 1) / (SEQ_LEN - 1),
        "first_token_floor": floor,
        "first_token_floor_excl": floor_excl,
        "first_token_excess": share / floor,
        "m_act": 41.0 if not gated else 38.0 + float(rng.normal()),
        "gate_mean": 0.31 if gated else None,
        "gate_closed": 0.22 if gated else None,
        "gate_open": 0.04 if gated else None,
        "gate_abs_logit": 1.34 if gated else None,
        "probe_tokens": 65_536,
        "tokens_per_s": 10_800.0 if not gated else 10_500.0,
        "train_wall_s": 455.0,
        "started": "2026-01-01T00:00:00Z",
        "finished": "2026-01-01T00:08:00Z",
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "git_dirty": False,
        "machine": "test",
        "torch_version": "2.13.0",
        "gatebench_version": "0.1.0",
    }
    row.update(changes)
    return row


def diverged(variant: str, seed: int, step: int) -> dict[str, Any]:
    """The summary of a run whose loss became non-finite: every metric is null."""
    row = summary(variant, seed, 100.0, status="diverged", diverged_step=step)
    measured = ("final_train_loss", "avg_ppl", "avg_bpb", "micro_ppl", "m_act")
    for key in row:
        if key in measured or key.startswith(("ppl/", "bpb/", "nll/", "first_token_", "gate_")):
            row[key] = None
    return row


def write_run(root: Path, row: Mapping[str, Any], n_steps: int = 300, probes: str = "all") -> Path:
    """Write one run directory with this summary, a loss curve that falls to it and probes that agree with it.

    ``probes``: "all"; "shares" for those of attention and gates alone, of which fewer figures are drawn; "none".
    """
    directory = root / str(row["run"])
    directory.mkdir(parents=True)
    rng = np.random.default_rng(zlib.crc32(f"curve/{row['run']}".encode()))
    _write_curve(directory / "metrics.jsonl", row, n_steps, rng)
    if row["status"] == "done":
        if probes != "none":
            _write_probes(directory / "probes.npz", row, rng, of_activations=probes == "all")
        flat = {key: value for key, value in row.items() if key.startswith(("first_token_", "gate_"))}
        (directory / "probes.json").write_text(json.dumps(flat), encoding="utf-8")
    (directory / "summary.json").write_text(json.dumps(row), encoding="utf-8")
    return directory


def write_study(root: Path, avg_ppl: Mapping[str, Mapping[int, float]], **changes: Any) -> Path:
    """Write a run a variant and seed; ``avg_ppl`` maps variant -> seed -> Avg PPL."""
    for variant, by_seed in avg_ppl.items():
        for seed, value in by_seed.items():
            write_run(root, summary(variant, seed, value, **changes))
    return root


def _write_curve(path: Path, row: Mapping[str, Any], n_steps: int, rng: np.random.Generator) -> None:
    last = row["final_train_loss"] or 6.0
    t = np.linspace(0, 1, n_steps)
    loss = last + (math.log(VOCAB) - last) * np.exp(-6 * t) * (1 - t) + 0.05 * rng.standard_normal(n_steps)
    per_step = int(row["tokens"]) // n_steps
    with path.open("w", encoding="utf-8") as file:
        for step in range(n_steps):
            record = {
                "step": step + 1,
                "tokens": (step + 1) * per_step,
                "loss": float(loss[step]),
                "grad_norm": 0.5,
                "lr": 6e-3,
                "tokens_per_s": row["tokens_per_s"],
                "batch": f"{zlib.crc32(str(step).encode()):08x}",
            }
            file.write(json.dumps(record) + "\n")


def _write_probes(path: Path, row: Mapping[str, Any], rng: np.random.Generator, of_activations: bool) -> None:
    share = row["first_token_share"] * (1 + 0.2 * rng.standard_normal((N_LAYERS, N_HEADS)))
    share += row["first_token_share"] - share.mean()
    arrays = {
        "first_token_share": share,
        "first_token_share_excl": (SEQ_LEN * share - 1) / (SEQ_LEN - 1),
        "max_activation": row["m_act"] * np.linspace(0.5, 1.5, N_LAYERS),
    }
    if of_activations:
        arrays |= {
            "activation_max": row["m_act"] * np.linspace(0.5, 1.5, 4 * N_LAYERS).reshape(N_LAYERS, 4),
            "activation_top3": row["m_act"] * np.linspace(1.5, 0.5, 12 * N_LAYERS).reshape(N_LAYERS, 4, 3),
            "activation_median": np.ones((N_LAYERS, 4)),
            "sdpa_abs_before": np.full(N_LAYERS, 0.7),
            "sdpa_below_before": np.full((N_LAYERS, 2), 0.1),
        }
    if row["gate_mean"] is not None:
        edges = np.linspace(0, 1, 51)
        scores = [rng.beta(1.0 + 0.4 * layer, 2.4, size=20_000) for layer in range(N_LAYERS)]
        site = str(row["variant"])[:2]
        arrays |= {
            f"gate_{site}_mean": np.array([s.mean() for s in scores]),
            f"gate_{site}_closed": np.array([(s < 0.1).mean() for s in scores]),
            f"gate_{site}_open": np.array([(s > 0.9).mean() for s in scores]),
            f"gate_{site}_abs_logit": np.full(N_LAYERS, 1.3),
            f"gate_{site}_hist": np.stack([np.histogram(s, edges)[0] for s in scores]),
            f"gate_{site}_edges": edges,
        }
    np.savez(path, **arrays)  # type: ignore[arg-type]
