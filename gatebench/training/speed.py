"""Training throughput by ratio within one process: eager, compiled, and a plain loop around transformers' Qwen3
(with experts: Qwen3-MoE, and the dense model that does as much work a token).

Contenders take turns, round by round, so that a machine whose speed drifts drifts for all of them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader

from gatebench import variants
from gatebench.config import RunConfig
from gatebench.errors import UserError
from gatebench.model.build import build_run_model
from gatebench.training import hardware
from gatebench.training.callbacks import MetricsWriter
from gatebench.training.datamodule import MicroBatches
from gatebench.training.module import LanguageModel
from gatebench.training.optim import make_optimizer
from gatebench.training.run import quieten_lightning
from gatebench.training.rundir import RunDirectory
from gatebench.training.watch import Watch


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


class _UniformTokens:
    """Windows of uniform tokens: throughput does not depend on what they say."""

    def __init__(self, config: RunConfig) -> None:
        self.length = config.data.seq_len + 1
        self.vocab_size = config.model.vocab_size

    def batch(self, step: int, batch_size: int) -> NDArray[np.int64]:
        """Return (batch_size, seq_len + 1) tokens."""
        return np.random.default_rng(step).integers(0, self.vocab_size, (batch_size, self.length))


def _micro_batches(config: RunConfig) -> MicroBatches:
    return MicroBatches(_UniformTokens(config), config, 0, 0, 1)


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


def dense_counterpart(config: RunConfig) -> RunConfig:
    """Return a recipe with experts made dense, with the FFN width that a token goes through: top_k * expert_dim.

    What a variant changes about experts (experts_plus4) has no dense form and no part in that width: it is left out.
    """
    moe = config.model.moe
    assert moe is not None
    dense = config.model.model_copy(update={"moe": None, "ffn_dim": moe.top_k * moe.expert_dim})
    parts = [
        part
        for part in config.variant.split("+")
        if not any(key.startswith("moe.") for key in variants.get(part).ratios)
    ]
    return config.model_copy(update={"model": dense, "variant": "+".join(parts) or "baseline"})


def gatebench_contender(config: RunConfig, *, compiled: bool, label: str = "") -> Contender:
    """Return our training module under Lightning, with metrics as in a run: written every `train.log_every` steps."""
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
        stopwatch = _Stopwatch(device)
        with tempfile.TemporaryDirectory() as folder:
            trainer = L.Trainer(
                accelerator={"cuda": "gpu"}.get(device, device),
                devices=1,
                precision="bf16-mixed" if precision == "bf16" else "32-true",
                accumulate_grad_batches=config.accumulate,
                max_steps=n + 1,
                max_epochs=-1,
                callbacks=[MetricsWriter(config, RunDirectory(Path(folder)), Watch(None)), stopwatch],
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(LanguageModel(config, model), DataLoader(_micro_batches(config), batch_size=None))
        return list(np.diff(stopwatch.marks))

    return Contender(f"{config.variant}{label}, {'compiled' if compiled else 'eager'}", steps, setup)


def qwen3_contender(config: RunConfig) -> Contender:
    """Return a plain training loop around transformers' Qwen3 of the recipe's shape, optimiser and precision.

    With experts it is Qwen3-MoE with its own load-balancing loss, experts computed as transformers does by default.
    """
    try:
        from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
    except ImportError:
        raise UserError(
            "gatebench bench: package transformers is missing; pip install 'gatebench[dev]', or leave --qwen3 out"
        ) from None
    device = hardware.resolve_accelerator(config.train.accelerator)
    precision = hardware.resolve_precision(config.train.precision, device)
    shape = config.model
    common: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.d_model,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "tie_word_embeddings": shape.tie_embeddings,
        "rms_norm_eps": shape.norm_eps,
        "use_cache": False,
    }
    model: Any
    if shape.moe is None:
        model = Qwen3ForCausalLM(Qwen3Config(intermediate_size=shape.ffn_dim, **common))
    else:
        experts: dict[str, Any] = {
            "num_experts": shape.moe.n_experts,
            "num_experts_per_tok": shape.moe.top_k,
            "moe_intermediate_size": shape.moe.expert_dim,
            "norm_topk_prob": shape.moe.norm_topk_prob,
            "output_router_logits": True,
        }
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**experts, **common))
    model.set_attn_implementation("sdpa")
    model = model.to(device)
    optimizer = make_optimizer(model, config.optim)
    data = iter(_micro_batches(config))

    def steps(n: int) -> list[float]:
        stopwatch = _Stopwatch(device)
        for _ in range(n + 1):
            for _ in range(config.accumulate):
                ids = next(data)["ids"].to(device)
                with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
                    answer = model(ids[:, :-1])
                loss = F.cross_entropy(answer.logits.float().flatten(0, 1), ids[:, 1:].flatten())
                if shape.moe is not None:
                    loss = loss + model.router_aux_loss_coef * answer.aux_loss
                (loss / config.accumulate).backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.optim.grad_clip or float("inf"))
            optimizer.step()
            optimizer.zero_grad()
            stopwatch.mark()
        return list(np.diff(stopwatch.marks))

    return Contender(f"transformers Qwen3{'-MoE' if shape.moe else ''}, plain loop", steps)


def take_turns(contenders: list[Contender], rounds: int, steps: int) -> None:
    """Warm every contender up with two steps, then let each make `steps` steps, `rounds` times over."""
    for contender in contenders:
        contender.steps(2)
    for _ in range(rounds):
        for contender in contenders:
            contender.seconds += contender.steps(steps)


def contenders(configs: Sequence[RunConfig], *, compiled: bool, qwen3: bool) -> list[Contender]:
    """Return every run eager; of the first the dense model of equal active width, the compiled one, and the Qwen3."""
    first = configs[0]
    found = [gatebench_contender(config, compiled=False) for config in configs]
    if first.model.moe is not None:
        dense = dense_counterpart(first)
        found.append(gatebench_contender(dense, compiled=False, label=", dense of equal active width"))
    if compiled:
        found.append(gatebench_contender(first, compiled=True))
    if qwen3:
        found.append(qwen3_contender(first))
    return found


def results(timed: Sequence[Contender], config: RunConfig) -> dict[str, Any]:
    """Return where contenders of `config`'s batch were timed (`environment`), and how fast each was (`results`)."""
    device = hardware.resolve_accelerator(config.train.accelerator)
    precision = hardware.resolve_precision(config.train.precision, device)
    per_step = config.train.batch_size * config.data.seq_len
    speeds = [contender.tokens_per_s(per_step) for contender in timed]
    rows = [
        {
            "contender": contender.name,
            "tokens_per_s": round(speed, 1),
            "ratio": round(speed / speeds[0], 4),
            "compile_s": round(contender.setup_s, 1),
            "steps": len(contender.seconds),
        }
        for contender, speed in zip(timed, speeds, strict=True)
    ]
    return {"environment": hardware.environment(config, device, precision, compiled=False), "results": rows}
