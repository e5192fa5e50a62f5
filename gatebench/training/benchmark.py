"""Training throughput by ratio within one process: eager, compiled, and a plain loop around transformers' Qwen3.

Contenders take turns, round by round, so that a machine whose speed drifts drifts for all of them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from gatebench.config import RunConfig
from gatebench.errors import UserError
from gatebench.model.build import build_run_model
from gatebench.training import hardware
from gatebench.training.callbacks import MetricsWriter
from gatebench.training.module import LanguageModel
from gatebench.training.optim import make_optimizer
from gatebench.training.run import quieten_lightning
from gatebench.training.rundir import RunDirectory


@dataclass
class Contender:
    """Something that trains: `steps(n)` makes n optimiser steps and returns their seconds."""

    name: str
    steps: Callable[[int], list[float]]
    setup_s: float = 0.0
    seconds: list[float] = field(default_factory=list)

    def tokens_per_s(self, tokens_per_step: int) -> float:
        """Return the median over all steps."""
        return tokens_per_step / statistics.median(self.seconds)


class _RandomTokens(IterableDataset[dict[str, Any]]):
    """Endless micro-batches of uniform tokens: throughput does not depend on what they say."""

    def __init__(self, config: RunConfig) -> None:
        self.shape = (config.micro_batch_size, config.data.seq_len + 1)
        self.vocab_size = config.model.vocab_size

    def __iter__(self) -> Any:
        rng = np.random.default_rng(0)
        while True:
            yield {"ids": torch.from_numpy(rng.integers(0, self.vocab_size, self.shape)), "crc": 0}


class _Stopwatch(L.Callback):
    def __init__(self, device: str) -> None:
        self.device = device
        self.marks: list[float] = []

    def mark(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.marks.append(time.perf_counter())

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.mark()


def gatebench_contender(config: RunConfig, *, compiled: bool) -> Contender:
    """Return our training module under Lightning, metrics written as in a run."""
    quieten_lightning()
    device = hardware.resolve_accelerator(config.train.accelerator)
    precision = hardware.resolve_precision(config.train.precision, device)
    model = build_run_model(config).to(device)
    started = time.perf_counter()
    if compiled:
        example = torch.zeros(config.micro_batch_size, config.data.seq_len, dtype=torch.long, device=device)
        if reason := hardware.compile_blocks(model, example, device, precision):
            raise UserError(f"gatebench bench: torch.compile does not work here: {reason}")
    setup = time.perf_counter() - started

    def steps(n: int) -> list[float]:
        watch = _Stopwatch(device)
        with tempfile.TemporaryDirectory() as folder:
            trainer = L.Trainer(
                accelerator={"cuda": "gpu"}.get(device, device),
                devices=1,
                precision="bf16-mixed" if precision == "bf16" else "32-true",
                accumulate_grad_batches=config.accumulate,
                max_steps=n + 1,
                max_epochs=-1,
                callbacks=[MetricsWriter(config, RunDirectory(Path(folder))), watch],
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(LanguageModel(config, model), DataLoader(_RandomTokens(config), batch_size=None))
        return list(np.diff(watch.marks))

    return Contender(f"{config.variant}, {'compiled' if compiled else 'eager'}", steps, setup)


def qwen3_contender(config: RunConfig) -> Contender:
    """Return a plain training loop around transformers' Qwen3 of the recipe's shape, optimiser and precision."""
    try:
        from transformers import Qwen3Config, Qwen3ForCausalLM
    except ImportError:
        raise UserError(
            "gatebench bench: package transformers is missing; pip install 'gatebench[dev]', or leave --qwen3 out"
        ) from None
    device = hardware.resolve_accelerator(config.train.accelerator)
    precision = hardware.resolve_precision(config.train.precision, device)
    shape = config.model
    model: Any = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=shape.vocab_size,
            hidden_size=shape.d_model,
            intermediate_size=shape.ffn_dim,
            num_hidden_layers=shape.n_layers,
            num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_kv_heads,
            head_dim=shape.head_dim,
            tie_word_embeddings=shape.tie_embeddings,
            rms_norm_eps=shape.norm_eps,
            use_cache=False,
        )
    )
    model.set_attn_implementation("sdpa")
    model = model.to(device)
    optimizer = make_optimizer(model, config.optim)
    data = iter(_RandomTokens(config))

    def steps(n: int) -> list[float]:
        watch = _Stopwatch(device)
        for _ in range(n + 1):
            for _ in range(config.accumulate):
                ids = next(data)["ids"].to(device)
                with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
                    logits = model(ids[:, :-1]).logits
                loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
                (loss / config.accumulate).backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.optim.grad_clip or float("inf"))
            optimizer.step()
            optimizer.zero_grad()
            watch.mark()
        return list(np.diff(watch.marks))

    return Contender("transformers Qwen3, plain loop", steps)


def take_turns(contenders: list[Contender], rounds: int, steps: int) -> None:
    """Warm every contender up with two steps, then let each make `steps` steps, `rounds` times over."""
    for contender in contenders:
        contender.steps(2)
    for _ in range(rounds):
        for contender in contenders:
            contender.seconds += contender.steps(steps)
