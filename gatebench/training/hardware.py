"""What a run runs on: accelerator, precision, threads, compilation, and a record of all of it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import gatebench
from gatebench.config import ModelConfig, RunConfig
from gatebench.errors import UserError
from gatebench.files import read_object
from gatebench.model.accounting import Accounting
from gatebench.model.transformer import Transformer
from gatebench.paths import project_root


def resolve_accelerator(name: str) -> str:
    """Return `cuda`, `mps` or `cpu` for a config's `train.accelerator`. Raises UserError where it is not here."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "gpu" and not torch.cuda.is_available():
        raise UserError("train.accelerator='gpu': torch finds no CUDA device here; legal here: auto, cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError("train.accelerator='mps': torch finds no MPS device here; legal here: auto, cpu")
    return {"gpu": "cuda"}.get(name, name)


def check_devices(config: RunConfig, device: str) -> None:
    """Refuse more devices than there are. Raises UserError."""
    train = config.train
    if device == "cuda" and train.devices > torch.cuda.device_count():
        raise UserError(f"train.devices={train.devices}: legal here: 1 to {torch.cuda.device_count()} (CUDA devices)")
    if device == "mps" and config.model.moe is not None:
        raise UserError("train.accelerator='mps': grouped products of experts need CUDA or a CPU; legal: gpu, cpu")
    if device == "mps" and train.strategy == "fsdp":
        raise UserError("train.strategy='fsdp': legal on MPS: auto")
    if device == "mps" and train.devices > 1:
        raise UserError(f"train.devices={train.devices}: legal on MPS: 1")


def machine_memory() -> int:
    """Return the bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(config: RunConfig, costs: Accounting) -> None:
    """Refuse a model whose weights alone, fp32, are more than this machine's memory, where they are made.

    Raises UserError naming the size that is furthest above its default, the bytes needed and those that there are.
    """
    needed, there = 4 * costs.n_params, machine_memory()
    if needed <= there:
        return
    sizes = ("d_model", "ffn_dim", "vocab_size", "n_layers", "n_heads", "n_kv_heads", "head_dim")
    default = ModelConfig()
    key = max(sizes, key=lambda name: getattr(config.model, name) / getattr(default, name))
    raise UserError(
        f"model.{key}={getattr(config.model, key)}: {config.variant} has {costs.n_params:,} parameters, whose weights "
        f"take {needed:,} bytes; this machine has {there:,}; legal: a smaller model"
    )


def resolve_precision(name: str, device: str) -> str:
    """Return `fp32` or `bf16`. `auto` takes bf16 mixed precision where the hardware multiplies bf16 natively.

    On CPUs that is AVX512-BF16 or AMX: 1.7 times the fp32 throughput where it was measured (docs/training.md).
    """
    if name != "auto":
        return name
    if device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if device == "cpu":
        capable = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return "bf16" if capable else "fp32"
    return "fp32"


COMPILE_PAYS_FLOPS = 1e14
"""Training FLOPs from which compilation pays on a CPU: a sixth of ten minutes on two cores, against 6 to 26 s."""


def wants_compile(name: str, device: str, train_flops: float) -> bool:
    """Return whether blocks are compiled; `auto` compiles where it pays: on CUDA, and on a CPU for long runs.

    `train_flops` are those of the whole run. docs/training.md has the measured gain.
    """
    if name != "auto":
        return name == "on"
    return device == "cuda" or (device == "cpu" and train_flops >= COMPILE_PAYS_FLOPS)


def compile_blocks(model: Transformer, example: torch.Tensor, device: str, precision: str) -> str | None:
    """Compile every block of `model` in place; return None, or why it fell back to eager.

    `example` is one micro-batch of ids (B, T) on the model's device. A forward and backward pass through the model is
    made at once, so that a missing compiler is found here and not in the middle of a run.
    """
    blocks = list(model.blocks)
    for block in blocks:
        block.compile()
    try:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16"):
            model.loss(example, example).backward()
    except Exception as error:
        uncompile_blocks(model)
        torch._dynamo.reset()
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        warnings.warn(f"torch.compile is off, the run goes on in eager mode: {reason}", stacklevel=2)
        return reason
    finally:
        model.zero_grad(set_to_none=True)
    return None


def uncompile_blocks(model: Transformer) -> None:
    """Take `compile_blocks` back: compiled code passes hooks by, and an evaluation is eager in every run."""
    for block in model.blocks:
        block._compiled_call_impl = None


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


SNAPSHOT = "snapshot.json"
"""Beside a copy of the package that a queued run uses: the commit that the copy was made at."""


def git_state() -> tuple[str | None, bool | None]:
    """Return (commit, dirty) of the checkout, or (None, None) outside one; in a copy of the code, what was copied.

    Changed files below `results/` make nothing dirty: an earlier study's tables are no code.
    """
    snapshot = Path(gatebench.__file__).parent.parent / SNAPSHOT
    if snapshot.is_file():
        copied = read_object(snapshot)
        return copied["git_commit"], copied["git_dirty"]

    def git(*args: str) -> str:
        command = ["git", "-C", str(project_root()), *args]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        return commit, bool(git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def environment(config: RunConfig, device: str, precision: str, compiled: bool) -> dict[str, Any]:
    """Return the record of where and with what a run is made (`environment.json`)."""
    import lightning
    import numpy
    import tokenizers

    commit, dirty = git_state()
    return {
        "gatebench_version": gatebench.__version__,
        "git_commit": commit,
        "git_dirty": dirty,
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "numpy": numpy.__version__,
        "tokenizers": tokenizers.__version__,
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "machine": torch.cuda.get_device_name() if device == "cuda" else _cpu_name(),
        "device": device,
        "n_devices": config.train.devices * config.train.num_nodes,
        "threads": torch.get_num_threads(),
        "precision": precision,
        "compiled": compiled,
    }
