"""Fully sharded training (FSDP2): each process keeps its share of weights, gradients and optimiser state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from safetensors.torch import save_file, save_model
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from gatebench.config import RunConfig
from gatebench.files import publish
from gatebench.model.transformer import Transformer


def trainer_strategy(config: RunConfig) -> str | Strategy:
    """Return Lightning's strategy for `train.strategy`; checkpoints of a sharded run are one file, as all others."""
    if config.train.strategy != "fsdp":
        return config.train.strategy
    n_processes = config.train.devices * config.train.num_nodes
    return ModelParallelStrategy(n_processes, tensor_parallel_size=1, save_distributed_checkpoint=False)


def shard(model: Transformer, mesh: DeviceMesh) -> None:
    """Shard `model` in place over the processes of `mesh`, block by block.

    Embedding, final norm and output layer stay whole from the forward pass to the end of the backward pass: the loss
    reads the output layer's weight outside of any module's forward.
    """
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    register_fsdp_forward_method(model, "hidden")


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that may be sharded as a plain one. All processes must call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def save_weights(model: Transformer, path: Path, *, write: bool) -> None:
    """Write the whole weights to `path` by rename, in the process that has `write`.

    All processes of a sharded run must call it together.
    """
    sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights: dict[str, Any] = get_model_state_dict(model, options=options) if sharded else {}
    if not write:
        return
    temporary = path.with_suffix(".tmp")
    try:
        if sharded:
            if model.config.tie_embeddings:
                weights.pop("lm_head.weight")  # as save_model does: one name for one tensor
            save_file({name: value.contiguous() for name, value in weights.items()}, temporary, {"format": "pt"})
        else:
            save_model(model, str(temporary))
        publish(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
