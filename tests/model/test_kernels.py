"""Every attention kernel against its formula, written out query by query in fp64, and what each promises besides."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gatebench import variants
from gatebench.config import ModelConfig
from gatebench.design import Design
from gatebench.errors import UserError
from gatebench.model import accounting
from gatebench.model.head_output import HeadOutput
from gatebench.model.kernels import KERNELS, Kernel, Softpick, attention_map, lambda_init
from tests.model.shapes import TINY, build, shape

H, D, T = 4, 8, 9
FUSED = ("softmax", "softmax1", "sink_logits", "kv_bias", "differential")
Row = Callable[[Tensor, Kernel, int, int], Tensor]


def kernel_of(name: str, n_kv_heads: int = 2, **changes: object) -> Kernel:
    """Return a kernel whose parameters are drawn from N(0, 1), so that each of them counts."""
    config = ModelConfig.model_validate({**TINY.model_dump(), "n_kv_heads": n_kv_heads, **changes})
    kernel = KERNELS[name](config, Design(kernel=name), 1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.normal_(generator=generator)
    return kernel


def qkv(n_kv_heads: int = 2, length: int = T, scale: float = 1.5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, length, D, generator=generator) for n in (H, n_kv_heads, n_kv_heads))
    return scale * q, k, v


def decay_of(kernel: Kernel, length: int = T) -> Tensor | None:
    return kernel.decay(torch.randn(2, length, TINY.d_model, generator=torch.Generator().manual_seed(2)))


# --- formulas: the weights of one row, from its scores x (n,) on the n keys that the query sees


def softmax(x: Tensor, kernel: Kernel, head: int, group: int) -> Tensor:
    return x.exp() / x.exp().sum()


def softmax1(x: Tensor, kernel: Kernel, head: int, group: int) -> Tensor:
    return x.exp() / (1 + x.exp().sum())


def sink_logits(x: Tensor, kernel: Kernel, head: int, group: int) -> Tensor:
    return x.exp() / (kernel.sink_logits[head].double().exp() + x.exp().sum())


def sigmoid(x: Tensor, kernel: Kernel, head: int, group: int) -> Tensor:
    return 1 / (1 + (-(x - math.log(128))).exp())  # TINY's context_length is 128


def softpick(x: Tensor, kernel: Kernel, head: int, group: int) -> Tensor:
    excess = x.exp() - 1
    return excess.clamp(min=0) / (excess.abs().sum() + 1e-8)


def clipped_softmax(x: Tensor, kernel: Kernel, head: int, group: int) -> Tensor:
    gamma = -12 / 128
    return ((1 - gamma) * x.exp() / x.exp().sum() + gamma).clamp(0, 1)


ROWS: dict[str, Row] = {
    "softmax": softmax,
    "softmax1": softmax1,
    "sink_logits": sink_logits,
    "sigmoid": sigmoid,
    "softpick": softpick,
    "clipped_softmax": clipped_softmax,
}


def by_row(name: str, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v, out = q.double(), k.double(), v.double(), torch.zeros(q.shape, dtype=torch.float64)
    groups = H // k.shape[1]
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        x = k[b, h // groups, : i + 1] @ q[b, h, i] / math.sqrt(D)
        out[b, h, i] = ROWS[name](x, kernel, h, groups) @ v[b, h // groups, : i + 1]
    return out


def kv_bias(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v, out = q.double(), k.double(), v.double(), torch.zeros(q.shape, dtype=torch.float64)
    null_key, null_value, groups = kernel.null_key.double(), kernel.null_value.double(), H // k.shape[1]
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        keys = torch.cat((k[b, h // groups, : i + 1], null_key[h // groups, None]))
        values = torch.cat((v[b, h // groups, : i + 1], null_value[h // groups, None]))
        out[b, h, i] = (keys @ q[b, h, i] / math.sqrt(D)).softmax(0) @ values
    return out


def forgetting(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    x = torch.randn(2, T, TINY.d_model, generator=torch.Generator().manual_seed(2)).double()
    forget = (x @ kernel.forget.weight.double().T + kernel.forget.bias.double()).sigmoid()  # (B, T, H)
    q, k, v, out = q.double(), k.double(), v.double(), torch.zeros(q.shape, dtype=torch.float64)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        kept = torch.stack([forget[b, j + 1 : i + 1, h].prod() for j in range(i + 1)])
        group = h // (H // k.shape[1])
        x_row = k[b, group, : i + 1] @ q[b, h, i] / math.sqrt(D) + kept.log()
        out[b, h, i] = x_row.softmax(0) @ v[b, group, : i + 1]
    return out


def differential(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Pair p of queries looks at pair p // (pairs per KV pair) of keys, and at both its values side by side."""
    q, k, v, out = q.double(), k.double(), v.double(), torch.zeros(q.shape, dtype=torch.float64)
    first, second = ((getattr(kernel, f"lambda_q{n}") @ getattr(kernel, f"lambda_k{n}")).double().exp() for n in (1, 2))
    subtracted = first - second + 0.8 - 0.6 * math.exp(-0.3)
    for b, p, i in torch.cartesian_prod(torch.arange(2), torch.arange(H // 2), torch.arange(T)).tolist():
        other = 2 * (p // (H // k.shape[1]))
        maps = [(k[b, other + n, : i + 1] @ q[b, 2 * p + n, i] / math.sqrt(D)).softmax(0) for n in (0, 1)]
        wide = torch.cat((v[b, other, : i + 1], v[b, other + 1, : i + 1]), dim=-1)  # (n, 2 D)
        out[b, 2 * p : 2 * p + 2, i] = ((maps[0] - subtracted * maps[1]) @ wide).view(2, D)
    return out


def expected(name: str, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    written_out = {"kv_bias": kv_bias, "forgetting": forgetting, "differential": differential}
    with torch.no_grad():
        if name in written_out:
            return written_out[name](kernel, q, k, v)
        return by_row(name, kernel, q, k, v)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("n_kv_heads", [2, 4])
def test_a_kernel_is_its_formula(name: str, n_kv_heads: int) -> None:
    kernel, (q, k, v) = kernel_of(name, n_kv_heads), qkv(n_kv_heads)
    decay, written_out = decay_of(kernel), expected(name, kernel, q, k, v)
    with torch.no_grad():
        for computed in (kernel(q, k, v, decay), kernel.explicit(q, k, v, decay)):
            torch.testing.assert_close(computed.double(), written_out, atol=1e-5, rtol=1e-5)
    assert (written_out - by_row("softmax", kernel, q, k, v)).abs().max() > 0.05 or name == "softmax"


@pytest.mark.parametrize("name", KERNELS)
def test_in_bf16_a_kernel_stays_near_its_formula(name: str) -> None:
    kernel, (q, k, v) = kernel_of(name), (part.bfloat16() for part in qkv())
    with torch.no_grad():
        computed = kernel(q, k, v, decay_of(kernel))
    assert computed.dtype == torch.bfloat16
    torch.testing.assert_close(computed.double(), expected(name, kernel, q, k, v), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("queries", [1, 3])
def test_the_last_queries_of_cached_keys_are_those_of_the_whole(name: str, queries: int) -> None:
    kernel, (q, k, v) = kernel_of(name), qkv()
    decay = decay_of(kernel)
    with torch.no_grad():
        whole, last = kernel(q, k, v, decay), kernel(q[:, :, -queries:], k, v, decay)
        torch.testing.assert_close(last, whole[:, :, -queries:], atol=1e-5, rtol=1e-5)
        rows = kernel.map(q[:, :, -queries:], k, decay)
        torch.testing.assert_close(rows, kernel.map(q, k, decay)[:, :, -queries:], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_shares_are_a_map_of_shares(name: str) -> None:
    """None negative, none on later keys, no row above one; where weights are no shares, rows of one."""
    kernel, (q, k, _) = kernel_of(name), qkv()
    with torch.no_grad():
        shares = kernel.shares(q, k, decay_of(kernel))
        weights = kernel.map(q, k, decay_of(kernel))
    assert shares.dtype == torch.float32 and shares.min() >= 0.0 and not shares.triu(1).any()
    rows = shares.sum(dim=-1)
    assert rows.max() <= 1.0 + 1e-5
    assert kernel.normalised == (name not in ("sigmoid", "differential"))
    if kernel.normalised:
        assert torch.equal(shares, weights)
    else:
        torch.testing.assert_close(rows, torch.ones_like(rows))
    if name in ("softmax1", "sink_logits", "kv_bias"):
        assert rows.max() < 1.0 - 1e-4 and rows.mean() < 0.9  # the rest is the null key's


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("n_kv_heads", [2, 4])
def test_fused_kernels_apply_forward_and_backward(name: str, n_kv_heads: int) -> None:
    """Torch raises where the flash kernel cannot take the inputs; the explicit path has the same gradients."""
    kernel, inputs = kernel_of(name, n_kv_heads), [part.requires_grad_() for part in qkv(n_kv_heads)]
    watched = [*inputs, *kernel.parameters()]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        fused = torch.autograd.grad(kernel(*inputs).square().sum(), watched)
    explicit = torch.autograd.grad(kernel.explicit(*inputs).square().sum(), watched)
    for ours, theirs in zip(fused, explicit, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("scale", [0.0, 1e3, -1e3])
def test_extreme_scores_leave_outputs_and_gradients_finite(name: str, scale: float) -> None:
    kernel, (_, k, v) = kernel_of(name), qkv()
    q = (scale * k.repeat_interleave(2, dim=1)).requires_grad_()  # scores of 8e3 on the diagonal, of either sign
    out = kernel(q, k, v, decay_of(kernel))
    out.square().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(q.grad).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in kernel.parameters())


# --- known cases


def even(name: str, length: int = 4) -> Tensor:
    """Return the map of one head whose scores are all 0."""
    kernel = kernel_of(name)
    with torch.no_grad():
        return kernel.map(torch.zeros(1, H, length, D), torch.ones(1, 2, length, D), None)[0, 0]


def test_with_scores_of_zero_softmax1_keeps_one_part_in_n_plus_one() -> None:
    assert even("softmax1")[3].tolist() == pytest.approx([1 / 5] * 4)
    assert even("softmax1")[0].tolist() == pytest.approx([1 / 2, 0, 0, 0])


def test_with_scores_of_zero_sigmoid_attention_pays_one_part_in_n_plus_one_of_the_training_context() -> None:
    """σ(-ln n) = 1 / (n + 1), for the first query as for the last."""
    assert even("sigmoid")[3].tolist() == pytest.approx([1 / 129] * 4)
    assert even("sigmoid")[0].tolist() == pytest.approx([1 / 129, 0, 0, 0])


def test_with_scores_of_zero_softpick_attends_to_nothing() -> None:
    assert even("softpick").tolist() == [[0.0] * 4] * 4


def test_softpick_by_hand() -> None:
    """Scores ln 3 and ln 1/2: excesses 2 and -1/2, weights 2 / 2.5 and 0."""
    q = torch.full((1, 1, 2, 1), 1.0)
    k = torch.tensor([math.log(3), math.log(0.5)]).view(1, 1, 2, 1)
    assert Softpick(TINY, Design(kernel="softpick"), 0).map(q, k)[0, 0, 1].tolist() == pytest.approx([0.8, 0.0])


def test_clipped_softmax_by_hand() -> None:
    """γ = -4 / 16 = -0.25: shares of 0.8 and 0.2 become 0.75 and 0, a share of one stays one."""
    config = TINY.model_copy(update={"context_length": 16})
    kernel = KERNELS["clipped_softmax"](config, variants.get("clipped_softmax4").design, 0)
    q, k = torch.full((1, 1, 2, 1), 1.0), torch.tensor([math.log(4), 0.0]).view(1, 1, 2, 1)
    assert kernel.map(q, k)[0, 0].tolist() == [pytest.approx([1.0, 0.0]), pytest.approx([0.75, 0.0])]


def test_a_sink_logit_of_zero_is_softmax1_and_of_minus_infinity_softmax() -> None:
    kernel, (q, k, v) = kernel_of("sink_logits"), qkv()
    with torch.no_grad():
        kernel.sink_logits.zero_()
        torch.testing.assert_close(kernel(q, k, v), kernel_of("softmax1")(q, k, v), atol=1e-5, rtol=0)
        kernel.sink_logits.fill_(-1e4)
        torch.testing.assert_close(kernel(q, k, v), kernel_of("softmax")(q, k, v), atol=1e-5, rtol=0)


def test_a_kv_bias_of_zero_is_softmax1() -> None:
    kernel, (q, k, v) = kernel_of("kv_bias"), qkv()
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter.zero_()
        torch.testing.assert_close(kernel(q, k, v), kernel_of("softmax1")(q, k, v), atol=1e-5, rtol=0)


def test_gates_that_forget_nothing_are_softmax_and_gates_that_forget_all_see_themselves() -> None:
    kernel, (q, k, v) = kernel_of("forgetting"), qkv()
    with torch.no_grad():
        kernel.forget.weight.zero_()
        kernel.forget.bias.fill_(50.0)
        torch.testing.assert_close(kernel(q, k, v, decay_of(kernel)), kernel_of("softmax")(q, k, v), atol=1e-5, rtol=0)
        kernel.forget.bias.fill_(-50.0)
        alone = kernel(q, k, v, decay_of(kernel))
        torch.testing.assert_close(alone, v.repeat_interleave(2, dim=1), atol=1e-5, rtol=0)


def test_decays_are_summed_in_fp32_under_autocast() -> None:
    """4,096 gates of σ(7) have a log of -0.000911 each: -3.7336 together, where a sum in bf16 would stall near -0.5."""
    kernel = kernel_of("forgetting")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        kernel.forget.weight.zero_()
        kernel.forget.bias.fill_(7.0)
        decay = kernel.decay(torch.ones(1, 4096, TINY.d_model))
    assert decay.dtype == torch.float32 and decay.shape == (1, 4, 4096)
    assert decay[0, 0, -1].item() == pytest.approx(-4096 * math.log1p(math.exp(-7)), rel=1e-4)


def test_lambda_by_hand() -> None:
    assert lambda_init(0) == pytest.approx(0.2)
    assert lambda_init(1) == pytest.approx(0.8 - 0.6 * 0.7408182)
    assert lambda_init(27) == pytest.approx(0.8, abs=2e-4)
    model = build("differential")
    with torch.no_grad():
        for depth, block in enumerate(model.blocks):
            for n in "12":
                getattr(block.attn.kernel, f"lambda_q{n}").zero_()
            assert block.attn.kernel.subtracted().item() == pytest.approx(lambda_init(depth))


def test_two_equal_halves_of_a_pair_leave_one_part_of_the_map() -> None:
    """A₁ = A₂ = A and λ = λ₀: (1 - λ₀) A V, which the norm then brings to a length of (1 - λ₀) √(2 D)."""
    kernel, (q, k, v) = kernel_of("differential"), qkv()
    q, k = q[:, 0::2].repeat_interleave(2, dim=1), k[:, :1].expand(-1, 2, -1, -1)
    with torch.no_grad():
        kernel.lambda_q1.zero_()
        kernel.lambda_q2.zero_()
        weights = kernel.map(q, k)
        torch.testing.assert_close(weights, (1 - lambda_init(1)) * attention_map(q, k), atol=1e-6, rtol=1e-5)
        head_output = HeadOutput(TINY, Design(kernel="differential"), 1)
        pairs = head_output(kernel(q, k, v).transpose(1, 2), v.transpose(1, 2)).unflatten(2, (2, 2)).flatten(-2)
    torch.testing.assert_close(pairs.norm(dim=-1), torch.full((2, T, 2), (1 - lambda_init(1)) * 4), atol=1e-4, rtol=0)


# --- costs, initial values and refusals


@pytest.mark.parametrize(
    ("name", "added"),
    [
        *(("softmax1", 0), ("sink_logits", 2 * 4), ("kv_bias", 2 * 2 * 2 * 8), ("forgetting", 2 * 4 * 25)),
        *(("differential", 2 * 6 * 8), ("registers4", 4 * 24), ("value_residual", 0), ("exclusive", 0)),
        *(("sigmoid_attention", 0), ("softpick", 0), ("clipped_softmax", 0)),
        *(("sandwich_norm", 2 * 2 * 24), ("clip300", 0)),
    ],
)
def test_added_parameters_by_hand(name: str, added: int) -> None:
    """Two layers; 4 query heads and 2 KV heads of 8; d_model 24."""
    baseline = accounting.total_params(TINY, variants.get("baseline"))
    assert accounting.total_params(shape(name), variants.get(name)) - baseline == added


def test_flops_by_hand() -> None:
    """Over 10 tokens, two layers, 32 query channels: the null key makes 11² of 10², padded heads are 16 of 8 wide."""

    def extra(name: str) -> int:
        costs = [accounting.forward_flops_per_token(TINY, variants.get(n), 10) for n in (name, "baseline")]
        return costs[0] - costs[1]

    assert extra("softmax1") == 2 * 4 * (121 - 100) * 32 // 10
    assert extra("sink_logits") == 2 * 4 * (121 * 64 - 100 * 32) // 10
    assert extra("differential") == 2 * 4 * 100 * 32 // 10
    assert extra("forgetting") == 2 * 2 * 24 * 4
    assert extra("softpick") == extra("value_residual") == extra("exclusive") == 0
    layer = 2 * (24 * 64 + 768 + 1440)
    assert extra("registers4") == (2 * (4 * layer + 4 * (196 - 100) * 32)) // 10


def test_initial_values() -> None:
    config = ModelConfig(n_layers=8, d_model=256, n_heads=64, n_kv_heads=64, head_dim=32, vocab_size=64)
    stds = {
        "sink_logits": ("kernel.sink_logits", 0.02),
        "kv_bias": ("kernel.null_value", 0.02),
        "forgetting": ("kernel.forget.weight", 0.02),
        "differential": ("kernel.lambda_q1", 0.1),
    }
    for name, (key, std) in stds.items():
        drawn = torch.cat([p.flatten() for k, p in build(name, config).named_parameters() if k.endswith(key)])
        assert drawn.std().item() == pytest.approx(std, rel=0.15), name
    assert not any(block.attn.kernel.forget.bias.any() for block in build("forgetting", config).blocks)
    assert (build("differential", config).blocks[0].attn.head_output.gain == 1).all()
    assert build("registers16", config).registers.std().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(3, 3), (4, 1), (5, 1)])
def test_differential_attention_refuses_heads_that_make_no_pairs(n_heads: int, n_kv_heads: int) -> None:
    with pytest.raises(UserError, match=f"n_heads={n_heads} and model.n_kv_heads={n_kv_heads}; legal: even") as refusal:
        build("differential+g1_headwise", n_heads=n_heads, n_kv_heads=n_kv_heads)
    assert "\n" not in str(refusal.value) and "differential+g1_headwise" in str(refusal.value)


@pytest.mark.parametrize("name", ["sigmoid_attention", "clipped_softmax"])
def test_what_scales_by_the_context_must_know_it(name: str) -> None:
    with pytest.raises(UserError, match=r"model\.context_length=null"):
        build(name, context_length=None)
