"""From a configuration to an initialised model."""

from __future__ import annotations

import torch

from gatebench import variants
from gatebench.config import ModelConfig, RunConfig
from gatebench.errors import UserError
from gatebench.model.accounting import final_shape
from gatebench.model.init import initialize
from gatebench.model.transformer import Transformer


def build_model(config: ModelConfig, variant: variants.Variant | str, seed: int = 0) -> Transformer:
    """Return an initialised model; `config` is the final shape."""
    if isinstance(variant, str):
        variant = variants.get(variant)
    with torch.device("meta"):
        model = Transformer(config, variant)
    model = model.to_empty(device="cpu")
    if config.tie_embeddings:
        model.lm_head.weight = model.embed.weight
    initialize(model, config, seed)
    return model


def build_run_model(config: RunConfig) -> Transformer:
    """Return the initialised model of a run, with the variant's overrides and parameter matching applied."""
    return build_model(final_shape(config), config.spec, config.seed)


def count_built(config: ModelConfig, variant: variants.Variant | str) -> int:
    """Return the parameters of the built model, a tied weight once; `config` is the final shape. Takes no memory."""
    try:
        with torch.device("meta"):
            model = Transformer(config, variants.get(variant) if isinstance(variant, str) else variant)
    except (RuntimeError, OverflowError):  # a tensor of more bytes than torch counts
        raise UserError(
            f"model.d_model={config.d_model}: a matrix is too large to count; legal: a smaller model"
        ) from None
    return sum(parameter.numel() for parameter in model.parameters())
