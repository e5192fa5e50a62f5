"""Mixture of experts: transformers' Qwen3-MoE weight for weight, and the router's losses with their known values."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gatebench import variants
from gatebench.config import ModelConfig, MoEConfig
from gatebench.errors import UserError
from gatebench.model.accounting import account
from gatebench.model.build import build_model
from gatebench.model.grouped import grouped_mm, grouped_outer
from gatebench.model.moe import MoE, Routing, load_balancing_loss, objective, take_routings
from gatebench.model.transformer import Transformer
from gatebench.recipes import make_run, run_from_yaml, to_yaml
from tests.model.released_layout import our_name
from tests.model.shapes import token_ids, use_eager


def moe_config(**changes: object) -> MoEConfig:
    return MoEConfig.model_validate({"n_experts": 8, "top_k": 2, "expert_dim": 16} | changes)


def layer(config: MoEConfig, d_model: int = 24, std: float = 0.3) -> MoE:
    moe = MoE(d_model, config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in moe.parameters():
            parameter.normal_(0, std, generator=generator)
    return moe


def direct(moe: MoE, x: Tensor) -> Tensor:
    """The layer token by token, as the formula says it."""
    out = torch.zeros_like(x)
    half = moe.config.expert_dim
    for n, token in enumerate(x):
        probs = (moe.router.weight @ token).softmax(0)
        chosen = probs.argsort(descending=True)[: moe.config.top_k]
        weights = probs[chosen] / (probs[chosen].sum() if moe.config.norm_topk_prob else 1)
        for weight, e in zip(weights, chosen, strict=True):
            both = moe.gate_up_proj[e] @ token
            out[n] += weight * (moe.down_proj[e] @ (F.silu(both[:half]) * both[half:]))
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("width", [(24, 40), (25, 21)], ids=["aligned", "odd"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_grouped_product_is_the_product_of_each_group(
    dtype: torch.dtype, width: tuple[int, int], transposed: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, width[0], generator=generator).to(dtype).requires_grad_()
    matrices = torch.randn(4, *width, generator=generator).to(dtype)
    if transposed:
        matrices = matrices.transpose(1, 2).contiguous().transpose(1, 2)
    matrices.requires_grad_()
    ends = torch.tensor([0, 30, 30, 50], dtype=torch.int32)  # two groups are empty
    expected = torch.cat([rows[:30] @ matrices[1], rows[30:] @ matrices[3]])
    gradients = torch.autograd.grad(expected.square().sum(), (rows, matrices))
    ours = grouped_mm(rows, matrices, ends)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.1, "rtol": 0.02}
    torch.testing.assert_close(ours, expected, **tolerance)
    for mine, theirs in zip(torch.autograd.grad(ours.square().sum(), (rows, matrices)), gradients, strict=True):
        torch.testing.assert_close(mine, theirs, atol=10 * tolerance["atol"], rtol=tolerance["rtol"])
    assert not grouped_outer(rows.detach(), ours.detach(), ends)[[0, 2]].any()


def test_grouped_products_pass_torchs_own_checks_of_an_operator() -> None:
    rows, matrices = torch.randn(12, 8, requires_grad=True), torch.randn(3, 8, 4, requires_grad=True)
    ends = torch.tensor([5, 5, 12], dtype=torch.int32)
    torch.library.opcheck(grouped_mm, (rows, matrices, ends))
    torch.library.opcheck(grouped_outer, (rows.detach(), torch.randn(12, 4), ends))


@pytest.mark.parametrize("norm_topk_prob", [True, False])
@pytest.mark.parametrize("expert_dim", [16, 13])
def test_the_layer_is_its_formula(norm_topk_prob: bool, expert_dim: int) -> None:
    moe = layer(moe_config(norm_topk_prob=norm_topk_prob, expert_dim=expert_dim))
    x = torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(1), requires_grad=True)
    expected = direct(moe, x.flatten(0, 1)).view_as(x)
    theirs = torch.autograd.grad(expected.square().sum(), (x, *moe.parameters()))
    ours = moe(x)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    for mine, other in zip(torch.autograd.grad(ours.square().sum(), (x, *moe.parameters())), theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("norm_topk_prob", [True, False])
@pytest.mark.parametrize("implementation", ["eager", "grouped_mm"])
def test_logits_equal_qwen3_moe(norm_topk_prob: bool, implementation: str) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    moe = moe_config(norm_topk_prob=norm_topk_prob, lbl_convention="transformers")
    config = ModelConfig(
        n_layers=3, d_model=24, n_heads=6, n_kv_heads=2, head_dim=16, vocab_size=64, tie_embeddings=False,
        init_std=0.2, moe=moe,
    )  # fmt: skip
    theirs = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            hidden_size=config.d_model,
            moe_intermediate_size=moe.expert_dim,
            num_experts=moe.n_experts,
            num_experts_per_tok=moe.top_k,
            norm_topk_prob=norm_topk_prob,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            num_key_value_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            vocab_size=config.vocab_size,
            tie_word_embeddings=False,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            use_sliding_window=False,
            output_router_logits=True,
        )
    ).eval()
    theirs.set_experts_implementation(implementation)
    ours = build_model(config, "baseline", seed=0)
    state = ours.state_dict()
    renamed = {"experts.gate_up_proj": "gate_up_proj", "experts.down_proj": "down_proj", "gate.weight": "router.weight"}

    def name(key: str) -> str:
        for old, new in renamed.items():
            key = key.replace(f"mlp.{old}", f"mlp.{new}")
        return our_name(key)

    with torch.no_grad():
        theirs.load_state_dict({key: state[name(key)] for key in theirs.state_dict()}, strict=True)
        assert {name(key) for key in theirs.state_dict()} == set(state)
        ids = token_ids(batch=3, length=33)
        answer = theirs(ids)
        assert answer.logits.std() > 0.1
        torch.testing.assert_close(ours(ids), answer.logits, atol=1e-5, rtol=0)
        routings = take_routings(ours)
        torch.testing.assert_close(use_eager(ours)(ids), answer.logits, atol=1e-5, rtol=0)
        expected = load_balancing_loss_func(answer.router_logits, moe.n_experts, moe.top_k)
    counts = torch.stack([routing.counts for routing in routings])
    loss = load_balancing_loss([routing.mean_probs for routing in routings], counts, moe)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss.item() > moe.top_k  # not even
    for routing, logits in zip(routings, answer.router_logits, strict=True):
        lse = logits.logsumexp(-1)
        assert routing.z.item() == pytest.approx(lse.square().mean().item(), rel=1e-5)
        entropy = torch.distributions.Categorical(logits=logits).entropy().mean().item()
        assert routing.entropy.item() == pytest.approx(entropy, rel=1e-5)


def balance(share_per_layer: list[list[float]], **changes: object) -> float:
    """The loss of layers whose probabilities and loads are both `share_per_layer`."""
    shares = torch.tensor(share_per_layer)
    config = moe_config(n_experts=shares.shape[1], **changes)
    return load_balancing_loss(list(shares), (shares * 1000).long(), config).item()


def test_even_routing_is_1_in_one_convention_and_k_in_the_other() -> None:
    even = [[1 / 8] * 8] * 3
    assert balance(even, top_k=4, lbl_convention="megatron") == pytest.approx(1.0)
    assert balance(even, top_k=4, lbl_convention="transformers") == pytest.approx(4.0)


def test_two_layers_that_collapse_to_different_experts_are_2_per_layer_and_look_even_when_pooled() -> None:
    collapsed = [[1.0, 0.0], [0.0, 1.0]]
    one = {"top_k": 1, "norm_topk_prob": False}
    assert balance(collapsed, **one, lbl_convention="megatron") == 2.0
    assert balance(collapsed, **one, lbl_convention="transformers") == 1.0


def test_the_objective_adds_layers_up_in_megatrons_convention_alone() -> None:
    one = torch.tensor(1.0)
    megatron = moe_config(lbl_coef=0.01, z_loss_coef=0.001)
    assert objective(one, 4 * one, 24, megatron).item() == pytest.approx(24 * 0.01 + 24 * 0.004)
    pooled = moe_config(lbl_coef=0.01, z_loss_coef=0, lbl_convention="transformers")
    # docs/moe.md: for even loads the coefficients c and c * K / L weigh the same
    assert objective(2 * one, one, 24, pooled).item() == pytest.approx(
        objective(one, one, 24, moe_config(lbl_coef=0.01 * 2 / 24, z_loss_coef=0)).item()
    )


def test_gradient_reaches_the_router_through_probabilities_alone() -> None:
    probs = torch.tensor([0.7, 0.3], requires_grad=True)
    counts = torch.tensor([[30, 10]])
    load_balancing_loss([probs], counts, moe_config(n_experts=2)).backward()
    assert probs.grad is not None
    assert probs.grad.tolist() == [2 * 0.75, 2 * 0.25]  # E f_e


def test_routing_says_where_tokens_went() -> None:
    moe = layer(moe_config(n_experts=4, top_k=1, norm_topk_prob=False), d_model=4)
    with torch.no_grad():
        moe.router.weight.copy_(20 * torch.eye(4))
    moe(torch.eye(4)[[0, 0, 3, 0, 1]][None])
    (routing,) = take_routings(moe)
    assert routing.counts.tolist() == [3, 1, 0, 1]
    torch.testing.assert_close(routing.mean_probs, torch.tensor([0.6, 0.2, 0, 0.2]), atol=1e-6, rtol=0)
    assert routing.z.item() == pytest.approx(400, rel=1e-4)
    assert routing.entropy.item() < 1e-4
    assert take_routings(moe) == []
    with torch.no_grad():
        moe.router.weight.zero_()
    moe(torch.randn(1, 5, 4))
    assert take_routings(moe)[0].entropy.item() == pytest.approx(math.log(4))


def test_the_router_stays_fp32_under_autocast() -> None:
    moe = layer(moe_config())
    x = torch.randn(1, 64, 24, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad():
        moe(x.float())
        expected = take_routings(moe)[0]
        with torch.autocast("cpu", torch.bfloat16):
            out = moe(x)
        low: Routing = take_routings(moe)[0]
    assert out.dtype == torch.bfloat16
    assert torch.equal(low.mean_probs, expected.mean_probs)
    assert torch.equal(low.counts, expected.counts)


def test_more_experts_leave_the_first_ones_initial_values() -> None:
    shape = {"n_layers": 1, "d_model": 32, "vocab_size": 64}
    small, large = (
        dict(build_model(ModelConfig(**shape, moe=moe_config(n_experts=n)), "baseline").named_parameters())
        for n in (8, 9)
    )
    for name in ("router.weight", "gate_up_proj", "down_proj"):
        name = f"blocks.0.ffn.{name}"
        assert torch.equal(small[name], large[name][:8])
        assert large[name][8].std().item() == pytest.approx(0.02, rel=0.5)


PAPER = make_run("moe_15a2b", "baseline")


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("experts_plus4", 453_181_440),  # 4 x (3 x 2048 x 768 + 2048) x 24; the paper prints 400 M
        ("kv_heads_x2", 50_331_648),
        ("q_heads_x1p5", 201_326_592),
        ("g1_elementwise", 201_326_592),
        ("g1_headwise", 1_572_864),
    ],
)
def test_the_papers_moe_and_what_variants_add_to_it(name: str, added: int) -> None:
    # Table 7 and definitions: 15.58 B at a vocabulary of 151,936, 1.99 B of them active (the paper says 2.54 B).
    costs = account(make_run("moe_15a2b", name))
    assert costs.n_params_baseline == 15_577_227_264
    assert costs.added == added
    with torch.device("meta"):
        model = Transformer(costs.model, variants.get(name))
    assert sum(p.numel() for p in model.parameters()) == costs.n_params
    assert account(PAPER).n_params_active == 1_987_682_304


def test_active_parameters_leave_out_the_experts_that_a_token_misses() -> None:
    costs = account(make_run("moe_tiny", "baseline"))
    dense = account(make_run("quick", "baseline"))
    assert costs.n_params - costs.n_params_active == 4 * 28 * 3 * 128 * 88
    # quick has the same active width: 4 experts of 88 are its 352; the routers are what is left
    assert costs.n_params_active - dense.n_params == 4 * 128 * 32
    assert costs.flops_per_token - dense.flops_per_token == 3 * 2 * 4 * 128 * 32
    assert dense.n_params_active == dense.n_params


def test_parameter_matching_narrows_every_expert() -> None:
    costs = account(make_run("moe_tiny", "kv_heads_x2", 0, ["param_match=ffn"]))
    unit = 3 * 128 * 32  # one column of each expert of a layer; kv_heads_x2 adds 2 x 128 x 64 = 16,384 a layer
    assert (costs.model.ffn_dim, costs.model.moe and costs.model.moe.expert_dim) == (87, 87)
    assert costs.added == 4 * (16_384 - unit)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.moe.top_k=33", r"model.moe.top_k=33: there are model.moe.n_experts=32; legal: 1 to 32"),
        ("model.moe.top_k=1", r"model.moe.norm_topk_prob=true: with top_k=1 .*; legal: false, or top_k of at least 2"),
        ("model.moe.n_experts=1", r"model.moe.n_experts=1: .*greater than or equal to 2"),
        ("model.moe.experts=1", r"key 'model.moe.experts' is unknown"),
        ("model.moe.lbl_scope=global", r"model.moe.lbl_scope='global': .*'global_batch', 'running' or 'micro_batch'"),
        (
            "model.ffn_dim=352",
            r"model.ffn_dim=352: with experts it is model.moe.expert_dim=88; legal: that, or .* left",
        ),
    ],
)
def test_bad_settings_are_one_line(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        make_run("moe_tiny", "baseline", 0, [override])
    assert "\n" not in str(error.value)


def test_a_mixture_needs_its_sizes() -> None:
    with pytest.raises(UserError, match=r"^recipe 'quick': key 'model.moe.top_k' is missing, and has no default$"):
        make_run("quick", "baseline", 0, ["model.moe.n_experts=8", "model.moe.expert_dim=88"])


def test_the_inner_size_of_an_expert_is_the_ffn_dim() -> None:
    assert make_run("moe_tiny", "baseline").model.ffn_dim == 88
    assert make_run("moe_tiny", "baseline", 0, ["model.moe.expert_dim=40"]).model.ffn_dim == 40
    config = make_run("moe_tiny", "experts_plus4")
    assert run_from_yaml(to_yaml(config), "config.yaml") == config


def test_runs_without_experts_are_the_runs_that_they_were() -> None:
    config = make_run("quick", "baseline")
    assert config.fingerprint == "92432aca"  # as before there were experts
    assert make_run("quick", "baseline", 0, ["train.recompute=true"]).fingerprint == "92432aca"
    assert (
        make_run("moe_tiny", "baseline").fingerprint
        != make_run("moe_tiny", "baseline", 0, ["model.moe.lbl_scope=running"]).fingerprint
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_are_those_of_each_group_whatever_its_size(dtype: torch.dtype) -> None:
    # In bf16 on a CPU groups are padded to 64 rows: none, one, one block but one, a block, a block and one.
    counts = [0, 1, 63, 64, 65]
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(sum(counts), 24, generator=generator, dtype=dtype, requires_grad=True)
    matrices = torch.randn(len(counts), 24, 20, generator=generator, dtype=dtype, requires_grad=True)
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    upstream = torch.randn(sum(counts), 20, generator=generator, dtype=dtype)
    ours = grouped_mm(rows, matrices, ends)
    direct = torch.cat([part @ matrix for part, matrix in zip(rows.split(counts), matrices, strict=True)])
    torch.testing.assert_close(ours, direct)
    for got, expected in zip(
        torch.autograd.grad(ours, (rows, matrices), upstream),
        torch.autograd.grad(direct, (rows, matrices), upstream),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)
