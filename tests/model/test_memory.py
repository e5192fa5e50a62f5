"""The memory estimate: its activations are what autograd keeps, its other parts worked out by hand."""

from __future__ import annotations

import pytest
import torch

from gatebench import variants
from gatebench.config import ModelConfig, MoEConfig
from gatebench.model.accounting import KERNEL_COSTS, account
from gatebench.model.build import build_model
from gatebench.model.kernels import KERNELS
from gatebench.model.loss import CHUNK_LOGITS, MIN_ROWS
from gatebench.model.memory import LOGITS_AT_ONCE, ROWS_AT_ONCE, layer_activations, memory
from gatebench.recipes import make_run

SHAPE = {"d_model": 256, "n_heads": 4, "n_kv_heads": 2, "head_dim": 32, "vocab_size": 64}
TOKENS = 512
WITH_MAPS = [name for name, costs in KERNEL_COSTS.items() if costs.kept_maps]


def kept(config: ModelConfig, name: str, bf16: bool) -> int:
    """Bytes that autograd keeps of one forward pass, each storage once; no parameters and no copies of them."""
    model = build_model(config, name)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    shapes = {tuple(p.shape) for p in model.parameters()} | {
        tuple(p.T.shape) for p in model.parameters() if p.ndim == 2
    }
    shapes |= {tuple(p.transpose(1, 2).shape) for p in model.parameters() if p.ndim == 3}
    found: dict[int, tuple[int, torch.UntypedStorage]] = {}  # the storage too, so that no address is used twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tuple(tensor.shape) not in shapes:
            found[storage.data_ptr()] = (storage.nbytes(), storage)
        return tensor

    ids = torch.zeros(2, TOKENS // 2, dtype=torch.long)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        model.loss(ids, ids)
    return sum(size for size, _ in found.values())


@pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "fp32"])
@pytest.mark.parametrize(
    "name",
    [
        *("baseline", "g1_headwise", "g1_elementwise", "g2_elementwise", "g1_rmsnorm", "g5_elementwise"),
        *("sandwich_norm", "switch_v_4top4", "switch_v_1top1", "g1_headwise_from_previous"),
        *("softmax1", "sink_logits", "kv_bias", "differential"),
        *("registers16", "value_residual", "exclusive", "clip100"),
    ],
)
def test_a_layers_activations_are_what_autograd_keeps(name: str, bf16: bool) -> None:
    one, two = (ModelConfig(**SHAPE, ffn_dim=768, n_layers=n, context_length=TOKENS) for n in (1, 2))
    measured = (kept(two, name, bf16) - kept(one, name, bf16)) / TOKENS
    assert layer_activations(one, variants.get(name), TOKENS // 2, bf16=bf16) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "fp32"])
def test_experts_keep_what_autograd_keeps(bf16: bool) -> None:
    moe = MoEConfig(n_experts=8, top_k=2, expert_dim=128)
    one, two = (ModelConfig(**SHAPE, moe=moe, n_layers=n) for n in (1, 2))
    measured = (kept(two, "baseline", bf16) - kept(one, "baseline", bf16)) / TOKENS
    assert layer_activations(one, variants.get("baseline"), TOKENS // 2, bf16=bf16) == pytest.approx(measured, rel=0.05)


def test_the_28_layer_model_by_hand() -> None:
    config = make_run("dense_1b7_28l", "baseline")
    found = memory(config, account(config), bf16=True, gpu=True)
    n, embedding = 1_720_574_976, 151_936 * 2048
    assert (found.weights, found.gradients, found.optimizer) == (4 * n, 4 * n, 8 * n)
    assert found.copies == 2 * (n - embedding)
    # two norms, five copies of the input, queries and outputs, keys and values, the FFN's four tensors
    layer = 16 * 2048 + 10 * 2048 + 12 * (2048 + 1024) + 8 * 6144
    assert found.activations == 2 * 4096 * (28 * layer + 12 * 2048)
    assert found.loss == 6 * embedding + 10 * 2**26
    assert found.total == sum(vars(found).values())


def test_recomputing_keeps_one_layer_and_the_others_inputs() -> None:
    config = make_run("dense_1b7_28l", "baseline", 0, ["train.recompute=true"])
    layer = layer_activations(config.model, variants.get("baseline"), 4096, bf16=True)
    found = memory(config, account(config), bf16=True, gpu=True)
    assert found.activations == 2 * 4096 * (28 * 4 * 2048 + layer + 12 * 2048)


def test_several_devices_hold_the_gradients_twice() -> None:
    config = make_run("dense_60m", "baseline", 0, ["train.devices=4"])
    found = memory(config, account(config), bf16=True, gpu=True)
    assert found.gradients == 2 * found.weights


def test_sharding_divides_weights_gradients_and_moments() -> None:
    config = make_run("moe_15a2b", "baseline", 0, ["train.strategy=fsdp", "train.devices=8"])
    n, found = account(config).n_params, memory(config, account(config), bf16=True, gpu=True)
    whole = 2 * 151_936 * 2048 + 2048 + 2 * 623_120_640  # embeddings, output matrix, last norm, two layers
    assert (found.weights, found.gradients, found.optimizer) == (n // 2 + 4 * whole, n // 2 + 4 * whole, n)
    assert found.copies == 2 * (n - 151_936 * 2048)  # the backward pass keeps those of all matrices


@pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "fp32"])
@pytest.mark.parametrize("name", WITH_MAPS)
def test_maps_that_no_fused_kernel_computes_are_estimated_from_above(name: str, bf16: bool) -> None:
    word = {"sigmoid": "sigmoid_attention"}.get(name, name)
    one, two = (ModelConfig(**SHAPE, ffn_dim=768, n_layers=n, context_length=TOKENS // 2) for n in (1, 2))
    measured = (kept(two, word, bf16) - kept(one, word, bf16)) / TOKENS
    estimate = layer_activations(one, variants.get(word), TOKENS // 2, bf16=bf16)
    assert measured < estimate < 1.25 * measured


def test_every_kernel_without_a_fused_form_counts_its_maps() -> None:
    assert {v.design.kernel for v in variants.registry().values() if v.design.eager} == set(WITH_MAPS)
    assert KERNEL_COSTS.keys() == KERNELS.keys()


def test_the_loss_holds_as_many_logits_as_are_counted() -> None:
    assert (LOGITS_AT_ONCE, ROWS_AT_ONCE) == (CHUNK_LOGITS, MIN_ROWS)


def test_maps_grow_with_the_context() -> None:
    model, softpick = make_run("dense_60m", "baseline").model, variants.get("softpick")
    more = [layer_activations(model, softpick, length, bf16=True) for length in (1024, 2048)]
    assert more[1] - more[0] == 5 * 4 * 8 * 1024


def test_one_layer_is_not_whole_twice() -> None:
    config = make_run("sink_lab", "baseline", 0, ["train.strategy=fsdp", "train.devices=2"])
    n, found = account(config).n_params, memory(config, account(config), bf16=False, gpu=True)
    assert found.weights == 4 * (n // 2 + n)
