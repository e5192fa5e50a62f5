"""Initialisation: every initial value of every parameter is set in the one function of this file.

Each parameter draws from a generator of its own, keyed by (seed, parameter name). So two variants at one seed share,
bit for bit, every parameter that both have in the same shape: adding a gate shifts nothing (contract 1 of the design).
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import nn

from gatebench.config import ModelConfig
from gatebench.model.gates import Gate


def parameter_generator(seed: int, name: str) -> torch.Generator:
    """Return the CPU generator of the parameter `name` at `seed`."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)


KERNEL_STDS = {"sink_logits": 0.02, "lambda_q1": 0.1, "lambda_k1": 0.1, "lambda_q2": 0.1, "lambda_k2": 0.1}
"""Of vectors that start random: gpt-oss (transformers' GptOss), Differential Transformer (microsoft/unilm)."""


@torch.no_grad()
def initialize(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Set every parameter of `model` in place.

    Weight matrices (experts and routers, too) and embeddings: N(0, init_std), gate matrices N(0, gate_init_std or
    init_std), o_proj and down_proj divided by sqrt(2 n_layers) if depth_scaled_init. RMSNorm weights and gains: 1.
    Biases and the θ of input-independent gates: 0, so that a sigmoid gate starts at (with N(0, 0.02) matrices: near)
    one half; a bias that a gate asks for: `GateSpec.initial_bias`. The first matrix of a rank-r gate: N(0, 1/√r), so
    that the product of the two starts with entries as large as those of the full matrix. Registers and KV biases: N(0,
    init_std), as embeddings and the projections whose outputs they stand beside; sink logits and λ vectors:
    `KERNEL_STDS`.
    Source: `_init_weights` of the released modeling_qwen3.py; θ zero-initialised per section 4.2 of the paper.
    """
    biases = {f"{name}.proj.bias": m.spec.initial_bias for name, m in model.named_modules() if isinstance(m, Gate)}
    for name, parameter in model.named_parameters():
        kind = name.rsplit(".", 1)[-1]
        if kind in ("bias", "theta"):
            parameter.fill_(biases.get(name, 0.0))
        elif kind == "gain" or (parameter.ndim == 1 and kind not in KERNEL_STDS):
            parameter.fill_(1.0)
        else:
            std = KERNEL_STDS.get(kind, config.init_std)
            if ".gates." in name and config.gate_init_std is not None:
                std = config.gate_init_std
            if name.endswith(".reduce.weight"):
                std = 1 / math.sqrt(parameter.shape[0])
            if config.depth_scaled_init and name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                std /= math.sqrt(2 * config.n_layers)
            values = torch.empty(parameter.shape, dtype=torch.float32)
            values.normal_(0.0, std, generator=parameter_generator(seed, name)) if std > 0 else values.zero_()
            parameter.copy_(values)
