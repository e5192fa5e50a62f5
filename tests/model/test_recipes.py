"""Every shipped recipe builds and runs on the meta device: shapes and counts without memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gatebench import variants
from gatebench.model.accounting import account
from gatebench.model.transformer import Transformer
from gatebench.recipes import make_run, recipe_names
from gatebench.sweep.study import load_study


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


@pytest.mark.parametrize(
    ("recipe", "n_params", "tokens"),
    [
        ("dense_1b7_28l", 1_720_574_976, 400e9),  # Table 7: 1.7 B; Table 2: 400 B tokens
        ("dense_1b7_48l", 1_705_735_680, 400e9),
        ("dense_60m", 60_834_048, 20 * 60_834_048),
        ("dense_190m", 187_996_288, 20 * 187_996_288),
    ],
)
def test_sizes_and_tokens_of_the_dense_recipes(recipe: str, n_params: int, tokens: float) -> None:
    config = make_run(recipe, "baseline")
    assert account(config).n_params == n_params
    assert config.train.steps * config.train.batch_size * config.data.seq_len == pytest.approx(tokens, rel=1e-3)


def test_the_papers_learning_rates_and_schedule() -> None:
    for recipe in ("dense_1b7_28l", "dense_1b7_48l"):
        config = make_run(recipe, "baseline")
        assert (config.optim.lr, config.train.batch_size, config.data.seq_len) == (4e-3, 1024, 4096)
        assert config.optim.lr * config.optim.min_lr_ratio == pytest.approx(3e-5)
        assert (config.optim.schedule, config.optim.warmup_steps) == ("cosine", 1000)


def test_the_studies_at_the_papers_size_decay_to_one_floor_and_read_the_papers_tokens() -> None:
    tokens = {"400b": 400e9, "1t": 1e12, "3.5t": 3.5e12}
    for study in ("table2_28l", "table2_48l"):
        for config, cell in zip((loaded := load_study(study)).runs(), loaded.cells(), strict=True):
            optim, train = config.optim, config.train
            assert optim.lr * optim.min_lr_ratio == pytest.approx(3e-5, rel=2e-3), cell
            read = train.steps * train.batch_size * config.data.seq_len
            assert read == pytest.approx(tokens[cell.combination.label.split("-")[1]], rel=1e-3), cell


@pytest.mark.parametrize("recipe", ["dense_60m", "dense_190m"])
def test_the_intermediates_follow_the_fit_that_they_name(recipe: str) -> None:
    config = make_run(recipe, "baseline")
    n = account(config).n_params
    assert config.optim.lr == pytest.approx(4.7e-3 * (n / 108e6) ** (-1 / 3), rel=0.01)
    rule = 160 * (n / 108e6) ** (2 / 3)
    assert rule <= config.train.batch_size < 2 * rule
    warmup = config.optim.warmup_steps * config.train.batch_size * config.data.seq_len
    assert warmup == pytest.approx(n, rel=0.01)
    assert config.model.ffn_dim == 3 * config.model.d_model
    assert config.model.init_std == pytest.approx(0.02 * (2048 / config.model.d_model) ** 0.5, rel=0.02)
