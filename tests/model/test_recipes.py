"""Every shipped recipe builds and runs on the meta device: shapes and counts without memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gatebench import variants
from gatebench.model.accounting import account
from gatebench.model.transformer import Transformer
from gatebench.recipes import make_run, recipe_names


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("variant", ["baseline", "g1_headwise", "g1_elementwise"])
def test_recipe_dry_runs(recipe: str, variant: str) -> None:
    config = make_run(recipe, variant)
    costs = account(config)
    with torch.device("meta"):
        model = Transformer(costs.model, variants.get(variant))
        ids = torch.zeros(2, config.data.seq_len + 1, dtype=torch.long)
        logits = model(ids[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    assert logits.shape == (2, config.data.seq_len, costs.model.vocab_size)
    assert sum(parameter.numel() for parameter in model.parameters()) == costs.n_params
    assert all(parameter.grad is not None for parameter in model.parameters())
