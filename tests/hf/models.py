"""Small models that the tests of `gatebench.hf` share."""

from __future__ import annotations

import torch
from torch import Tensor

from gatebench.hf import GatebenchConfig, GatebenchForCausalLM
from gatebench.hf.load import with_weights
from tests.model.shapes import build

LENGTHS = (11, 4, 7)


def wrapped(name: str, **changes: object) -> GatebenchForCausalLM:
    """Return an initialised model of the variant `name`, with norms and biases that leave their mark."""
    model = build(name, **changes)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(("norm.weight", ".bias")):
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(parameter.numel()))
    config = GatebenchConfig(
        variant=name,
        model=model.config.model_dump(mode="json"),
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return with_weights(config, model.state_dict(), "tests")


def padded_batch() -> tuple[Tensor, Tensor]:
    """Return ids (3, 11) and the attention mask of a left-padded batch: rows of 11, 4 and 7 tokens."""
    mask = (torch.arange(max(LENGTHS)) >= max(LENGTHS) - torch.tensor(LENGTHS)[:, None]).long()
    ids = torch.randint(2, 61, (len(LENGTHS), max(LENGTHS)), generator=torch.Generator().manual_seed(0))
    return ids.masked_fill(mask == 0, 1), mask
