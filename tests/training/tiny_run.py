"""A tiny corpus and a tiny recipe: 20 steps of 4 x 32 tokens through 2 layers, well under a second in fp32."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from gatebench.config import RunConfig
from gatebench.evaluation.evaluate import evaluate
from gatebench.recipes import make_run
from gatebench.training.run import run
from tests.tiny_corpus import build_tiny_corpus

VOCAB = 512
CONTENT: dict[str, Any] = {
    "model": {
        "n_layers": 2,
        "d_model": 32,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 8,
        "ffn_dim": 64,
        "vocab_size": VOCAB,
    },
    "data": {"seq_len": 32},
    "optim": {"lr": 1e-2, "warmup_steps": 5},
    "train": {
        "steps": 20,
        "batch_size": 4,
        "precision": "fp32",
        "compile": "off",
        "accelerator": "cpu",
        "checkpoint_every": 5,
        "log_every": 10,
    },
    "eval": {"tokens_per_domain": 256, "probe_tokens": 512},
}
COMPARED = ("step", "tokens", "loss", "grad_norm", "lr", "batch")
"""Columns of metrics.jsonl that a repetition must reproduce bit for bit: all but the speed."""

RunTiny = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, built once a session whichever tests ask."""
    path = tmp_path_factory.getbasetemp() / "tiny_run" / "tiny"
    return path if (path / "manifest.json").is_file() else build_tiny_corpus(path, vocab_size=VOCAB)


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: Path) -> str:
    """The path of the recipe."""
    path = tmp_path_factory.mktemp("recipes") / "tiny.yaml"
    path.write_text(yaml.safe_dump({**CONTENT, "data": {"corpus": str(tiny_corpus), "seq_len": 32}}), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def run_tiny(tiny_recipe: str) -> RunTiny:
    """run_tiny(out, *overrides, variant=, seed=): the summary of a run made, resumed or found done in this process."""

    def make(out: Path, *overrides: str, variant: str = "g1_headwise", seed: int = 0) -> dict[str, Any]:
        return run(make_run(tiny_recipe, variant, seed, overrides), evaluate, out=out, threads=1)

    return make


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, run_tiny: RunTiny) -> Path:
    """The directory of one g1_headwise run, seed 0, that nothing interrupted. Not to be written to."""
    out = tmp_path_factory.mktemp("reference") / "run"
    run_tiny(out)
    return out


def tiny_config(recipe: str, *overrides: str, variant: str = "baseline", seed: int = 0) -> RunConfig:
    return make_run(recipe, variant, seed, overrides)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def reproducible_rows(directory: Path) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in COMPARED) for row in rows_of(directory)]


def assert_same_result(ours: Path, reference: Path) -> None:
    """Same rows, each step once; same weights, bit for bit; same scores and probes."""
    rows = reproducible_rows(ours)
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    assert rows == reproducible_rows(reference)
    weights = [load_file(path / "checkpoints" / "model.safetensors") for path in (ours, reference)]
    assert weights[0].keys() == weights[1].keys()
    for name, values in weights[0].items():
        assert torch.equal(values, weights[1][name]), name
    for name in ("eval.json", "probes.json"):
        assert (ours / name).read_bytes() == (reference / name).read_bytes(), name
    changing = ("run", "started", "finished", "attempts", "tokens_per_s", "train_wall_s", "git_dirty")
    summaries = [json.loads((path / "summary.json").read_text(encoding="utf-8")) for path in (ours, reference)]
    assert summaries[0].keys() == summaries[1].keys()
    for name in summaries[0].keys() - set(changing):
        assert summaries[0][name] == summaries[1][name], name


def train_command(recipe: str, out: Path, *more: str, variant: str = "g1_headwise", seed: int = 0) -> list[str]:
    """The command line of a run, as a user types it."""
    command = [sys.executable, "-m", "gatebench", "train", "--recipe", recipe, "--variant", variant]
    return [*command, "--seed", str(seed), "--threads", "1", "--out", str(out), *more]


def set_options(*settings: str) -> list[str]:
    """`--set` before each setting."""
    return [word for setting in settings for word in ("--set", setting)]


def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a program whose output can be read."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def wait_for_step(process: subprocess.Popen[str], out: Path, step: int) -> None:
    """Return as soon as the metrics of `step` are on disk."""
    deadline = time.monotonic() + 120
    metrics = out / "metrics.jsonl"
    while not metrics.is_file() or f'"step": {step},' not in metrics.read_text(encoding="utf-8"):
        if process.poll() is not None or time.monotonic() > deadline:
            output = process.communicate(timeout=10)
            pytest.fail(f"no step {step}: exit {process.returncode}\n{output[1]}")
        time.sleep(0.002)


def pid_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
