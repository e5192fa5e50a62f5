"""Attention kernels: how queries, keys and values become a head's output: the paper's `Softmax`, and its rivals.

Every kernel is causal and linear in the values (`KvBias` adds a constant). `map` returns the weights that multiply
them, `explicit` the output through that map, `forward` the same by the cheapest exact way there is. What follows the
average and is not linear is `HeadOutput`'s. Sources and costs in words: docs/rivals.md.

Letters: B batch, T queries, S keys (T plus what is cached), H query heads, K KV heads, D head_dim, C d_model.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gatebench.config import ModelConfig
from gatebench.design import NULL_KEY_PADDING, Design
from gatebench.errors import UserError

OptTensor = Tensor | None


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return (queries, keys), True where a query may look; the last query sees every key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Return k and v (B, K or H, S, D) and SDPA's `enable_gqa` such that a fused kernel applies.

    On CUDA no fused kernel takes fp32 with grouped heads: SDPA would fall back to the whole T x S map. There the KV
    heads are repeated, which costs memory linear in S.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1 and q.is_cuda and q.dtype == torch.float32 and not torch.is_autocast_enabled("cuda"):
        return k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1), False
    return k, v, groups > 1


def sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, mask: OptTensor = None) -> Tensor:
    """Return softmax(scale q kᵀ) v, causal: q (B, H, T, D), k and v (B, K, S, D) -> (B, H, T, D); scale is 1 / √D.

    Torch's fused kernels where they apply. With cached keys (S > T) the mask is aligned to the last key. A `mask` as of
    `Kernel` is used in place of the causal one.
    """
    k, v, enable_gqa = grouped(q, k, v)
    if mask is None and q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa)
    if mask is None:
        mask = causal_mask(q.shape[2], k.shape[2], q.device)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)


def masked_scores(q: Tensor, k: Tensor, mask: OptTensor = None) -> Tensor:
    """Return q kᵀ / √D in fp32, -inf where a query may not look: q (B, H, T, D), k (B, K, S, D) -> (B, H, T, S)."""
    if mask is None:
        mask = causal_mask(q.shape[2], k.shape[2], q.device)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = (q @ k.mT).float() / math.sqrt(q.shape[-1])
    return scores.masked_fill(~mask, float("-inf"))


def attention_map(q: Tensor, k: Tensor, mask: OptTensor = None) -> Tensor:
    """Return the explicit causal map softmax(q kᵀ / √D), fp32: q (B, H, T, D), k (B, K, S, D) -> (B, H, T, S).

    Memory grows with T * S: for tests and for pictures of chosen layers; probes stream instead.
    """
    return masked_scores(q, k, mask).softmax(dim=-1)


class Kernel(nn.Module, ABC):
    """Base of every kernel; by itself it computes the output through the explicit map, at B H T S numbers of memory.

    Arguments throughout: q (B, H, T, D), k and v (B, K, S, D), and `decay` (B, H, S), which `Forgetting` alone reads:
    for each key the log of its forget gates, summed up to it. The queries are those of the last T keys. `mask` (B, 1,
    T, S) says which keys a query may look at, in a batch with padding; None is every key up to its own.
    """

    normalised = True
    """Whether weights are shares: none negative, each row at most one (what is missing goes to no token)."""
    adds_value = False
    """Whether the output has a part that does not come from `v`."""

    def __init__(self, config: ModelConfig, design: Design, depth: int) -> None:
        """Build the kernel of the layer `depth`, counted from 0."""
        super().__init__()

    def decay(self, x: Tensor) -> Tensor | None:
        """Return (B, H, T) in fp32 for the attention input `x` (B, T, C), summed from its first token on; or None."""
        return None

    @abstractmethod
    def map(self, q: Tensor, k: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return the weights that multiply the values, (B, H, T, S) in fp32."""

    def shares(self, q: Tensor, k: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return which share of its attention a query pays each key, (B, H, T, S) in fp32.

        That is `map`; where the weights are no shares, their magnitudes over the row's sum, as the proxy scores of Gu
        et al. (2024, arXiv 2410.10781) for sigmoid attention. A row of zeros stays zeros.
        """
        weights = self.map(q, k, decay, mask)
        if self.normalised:
            return weights
        return F.normalize(weights, p=1.0, dim=-1).abs()

    def by_query_head(self, v: Tensor, n_heads: int) -> Tensor:
        """Return the values that each query head averages, (B, H, S, D)."""
        return v.repeat_interleave(n_heads // v.shape[1], dim=1)

    def explicit(self, q: Tensor, k: Tensor, v: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return the output (B, H, T, D) through the explicit map."""
        return self.map(q, k, decay, mask).to(v.dtype) @ self.by_query_head(v, q.shape[1])

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return the output (B, H, T, D)."""
        return self.explicit(q, k, v, decay, mask)


class Softmax(Kernel):
    """softmax(q kᵀ / √D) v."""

    def map(self, q: Tensor, k: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return `attention_map`."""
        return attention_map(q, k, mask)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return `sdpa`."""
        return sdpa(q, k, v, mask=mask)


class NullKey(Kernel):
    """Softmax over the keys and one more that belongs to no token and that every query sees.

    Exact through SDPA's fused kernels: the null key is put before the others, and a query that is thrown away before
    the queries, so that `is_causal` goes on meaning that query i sees the keys up to i. Under autocast the null key is
    rounded to the dtype of the other keys.
    """

    @abstractmethod
    def null_scores(self, q: Tensor) -> Tensor:
        """Return the score of the null key, something that broadcasts to (B, H, T, 1), in fp32."""

    def map(self, q: Tensor, k: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return the weights of the tokens' keys; a row sums to less than one by the null key's share."""
        scores = masked_scores(q, k, mask)
        null = self.null_scores(q).expand(*scores.shape[:3], 1)
        return torch.cat((null, scores), dim=-1).softmax(dim=-1)[..., 1:]

    def beside(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        null_key: Tensor,
        null_value: OptTensor = None,
        *,
        scale: float,
        mask: OptTensor,
    ) -> Tensor:
        """Return `sdpa` beside a null key and value (K or 1, 1, D); no value is a value of zero."""
        k = torch.cat((null_key.to(k.dtype).expand(*k.shape[:2], 1, -1), k), dim=2)  # (B, K, 1 + S, D)
        if null_value is None:
            v = F.pad(v, (0, 0, 1, 0))
        else:
            v = torch.cat((null_value.to(v.dtype).expand(*v.shape[:2], 1, -1), v), dim=2)
        if mask is not None:
            mask = F.pad(mask, (1, 0, 1, 0), value=True)
        return sdpa(F.pad(q, (0, 0, 1, 0)), k, v, scale, mask)[:, :, 1:]


class Softmax1(NullKey):
    """exp(x) / (1 + Σ exp(x)), softmax-off-by-one: a null key with score 0 and value 0."""

    def null_scores(self, q: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros(1, 1, 1, 1, device=q.device)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return the output (B, H, T, D)."""
        null = torch.zeros(1, 1, q.shape[-1], device=q.device)
        return self.beside(q, k, v, null, scale=q.shape[-1] ** -0.5, mask=mask)


class SinkLogits(NullKey):
    """exp(x) / (exp(s_h) + Σ exp(x)) with a learned s_h per query head, as in gpt-oss.

    A key alone cannot give each head of a group a score of its own, so queries carry it: q' = [q, s_h √D, 0 ..],
    k' = [k, 0 ..], and the null key is [0 .., 1, 0 ..]. `NULL_KEY_PADDING` more dimensions keep heads aligned for the
    fused kernels.
    """

    def __init__(self, config: ModelConfig, design: Design, depth: int) -> None:
        super().__init__(config, design, depth)
        self.sink_logits = nn.Parameter(torch.empty(config.n_heads))

    def null_scores(self, q: Tensor) -> Tensor:
        """Return s_h."""
        return self.sink_logits.float()[:, None, None]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return the output (B, H, T, D)."""
        width = q.shape[-1]
        s = (self.sink_logits * math.sqrt(width)).to(q.dtype)[:, None, None].expand(*q.shape[:3], 1)
        padding = (0, NULL_KEY_PADDING)
        q = F.pad(torch.cat((q, s), dim=-1), (0, NULL_KEY_PADDING - 1))
        null = torch.zeros(1, 1, width + NULL_KEY_PADDING, device=q.device)
        null[..., width] = 1.0
        y = self.beside(q, F.pad(k, padding), F.pad(v, padding), null, scale=width**-0.5, mask=mask)
        return y[..., : v.shape[-1]]


class KvBias(NullKey):
    """A learned key k' and value v' for every KV head beside the tokens' (not normed, gated or rotated)."""

    adds_value = True

    def __init__(self, config: ModelConfig, design: Design, depth: int) -> None:
        super().__init__(config, design, depth)
        self.null_key = nn.Parameter(torch.empty(config.n_kv_heads, config.head_dim))
        self.null_value = nn.Parameter(torch.empty(config.n_kv_heads, config.head_dim))

    def null_scores(self, q: Tensor) -> Tensor:
        """Return q k'ᵀ / √D."""
        k = self.null_key.to(q.dtype)[None, :, None]  # (1, K, 1, D)
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        return (q @ k.mT).float() / math.sqrt(q.shape[-1])

    def explicit(self, q: Tensor, k: Tensor, v: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return the output (B, H, T, D) through the explicit map: what the tokens leave goes to v'."""
        weights = self.map(q, k, decay, mask)
        left = (1.0 - weights.sum(dim=-1, keepdim=True)).to(v.dtype)
        null_value = self.by_query_head(self.null_value[None, :, None].to(v.dtype), q.shape[1])
        return weights.to(v.dtype) @ self.by_query_head(v, q.shape[1]) + left * null_value

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return the output (B, H, T, D)."""
        null_key, null_value = self.null_key[:, None], self.null_value[:, None]
        return self.beside(q, k, v, null_key, null_value, scale=q.shape[-1] ** -0.5, mask=mask)


def trained_length(config: ModelConfig, design: Design) -> int:
    """Return `config.context_length`. Raises UserError where it is not set: `account` sets it to the run's seq_len."""
    if config.context_length is None:
        raise UserError(
            f"model.context_length=null: {design.kernel} scales by it; legal: the training context's length"
        )
    return config.context_length


class Sigmoid(Kernel):
    """σ(x + b) with b = -ln n, no normalisation; n is the length of the training context, for every query alike."""

    normalised = False

    def __init__(self, config: ModelConfig, design: Design, depth: int) -> None:
        super().__init__(config, design, depth)
        self.bias = -math.log(trained_length(config, design))

    def map(self, q: Tensor, k: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return weights in (0, 1); a row may sum to anything."""
        return (masked_scores(q, k, mask) + self.bias).sigmoid()


class Softpick(Kernel):
    """relu(exp(x) - 1) / (Σ |exp(x) - 1| + 1e-8)."""

    def map(self, q: Tensor, k: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return weights of at least 0; a row sums to at most one, and to 0 where every score is negative."""
        scores = masked_scores(q, k, mask)
        shift = scores.detach().amax(dim=-1, keepdim=True).clamp(min=0.0)  # divides everything by exp(shift)
        one = (-shift).exp()
        excess = (scores - shift).exp() - one
        seen = excess.masked_fill(scores.isneginf(), 0.0)
        return seen.relu() / (seen.abs().sum(dim=-1, keepdim=True) + 1e-8 * one)


class ClippedSoftmax(Kernel):
    """clip((ζ - γ) softmax(x) + γ, 0, 1) with ζ = 1, γ = -α / n; n is the length of the training context."""

    def __init__(self, config: ModelConfig, design: Design, depth: int) -> None:
        super().__init__(config, design, depth)
        self.gamma = -design.clipped_alpha / trained_length(config, design)

    def map(self, q: Tensor, k: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return weights in [0, 1], exactly 0 where softmax is below about α / n; a row sums to at most one."""
        return ((1.0 - self.gamma) * attention_map(q, k, mask) + self.gamma).clamp(0.0, 1.0)


class Forgetting(Kernel):
    """softmax(x_ij + c_i - c_j), c the running sum of log σ(w_h · x + b_h): FoX, with RoPE and without its other parts.

    Decays are in fp32 whatever the rest is in.
    """

    def __init__(self, config: ModelConfig, design: Design, depth: int) -> None:
        super().__init__(config, design, depth)
        self.forget = nn.Linear(config.d_model, config.n_heads)

    def decay(self, x: Tensor) -> Tensor:
        """Return c (B, H, T)."""
        return F.logsigmoid(self.forget(x).float()).cumsum(dim=1).transpose(1, 2)

    def map(self, q: Tensor, k: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return weights whose rows sum to one."""
        assert decay is not None
        bias = decay[:, :, -q.shape[2] :, None] - decay[:, :, None, :]  # (B, H, T, S)
        return (masked_scores(q, k, mask) + bias).softmax(dim=-1)


class Differential(Kernel):
    """(A₁ - λ A₂) V for each pair of heads, 2p and 2p + 1 of queries and of keys; V is the pair's two values.

    λ = exp(λ_q1 · λ_k1) - exp(λ_q2 · λ_k2) + λ₀, one for a layer, λ₀ = 0.8 - 0.6 exp(-0.3 depth), depth from 0. The
    output of pair p is 2 D wide: its halves stand as heads 2p and 2p + 1, so that nothing else changes shape. Its norm
    is `HeadOutput`'s. The halves of V go through SDPA one after the other, which wants values as wide as keys.
    """

    normalised = False

    def __init__(self, config: ModelConfig, design: Design, depth: int) -> None:
        super().__init__(config, design, depth)
        # A tensor, so that torch.compile needs no graph for every depth; on the CPU, so that it is never a meta tensor.
        self.lambda_init = torch.tensor(lambda_init(depth), dtype=torch.float32, device="cpu")
        self.lambda_q1 = nn.Parameter(torch.empty(config.head_dim))
        self.lambda_k1 = nn.Parameter(torch.empty(config.head_dim))
        self.lambda_q2 = nn.Parameter(torch.empty(config.head_dim))
        self.lambda_k2 = nn.Parameter(torch.empty(config.head_dim))

    def subtracted(self) -> Tensor:
        """Return λ, a scalar in fp32."""
        first = (self.lambda_q1 * self.lambda_k1).float().sum().exp()
        second = (self.lambda_q2 * self.lambda_k2).float().sum().exp()
        return first - second + self.lambda_init

    def map(self, q: Tensor, k: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return signed weights, the same for both heads of a pair; a row sums to 1 - λ."""
        first, second = attention_map(_pairs(q), _pairs(k), mask).chunk(2, dim=1)  # (B, H/2, T, S) each
        return (first - self.subtracted() * second).repeat_interleave(2, dim=1)

    def by_query_head(self, v: Tensor, n_heads: int) -> Tensor:
        """Return the values that each query head averages: even heads a first half of V, odd heads a second."""
        return v.unflatten(1, (-1, 2)).repeat_interleave(n_heads // v.shape[1], dim=1).flatten(1, 2)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, decay: OptTensor = None, mask: OptTensor = None) -> Tensor:
        """Return the output (B, H, T, D)."""
        q, k, subtracted = _pairs(q), _pairs(k), self.subtracted().to(v.dtype)
        halves = []
        for half in (v[:, 0::2], v[:, 1::2]):  # (B, K/2, S, D)
            first, second = sdpa(q, k, torch.cat((half, half), dim=1), mask=mask).chunk(2, dim=1)
            halves.append(first - subtracted * second)
        return torch.stack(halves, dim=2).flatten(1, 2)


def lambda_init(depth: int) -> float:
    """Return λ₀ of `Differential` for the layer `depth`, from 0."""
    return 0.8 - 0.6 * math.exp(-0.3 * depth)


def _pairs(heads: Tensor) -> Tensor:
    """Reorder heads (B, 2P, ...): the first member of every pair, then the second."""
    return torch.cat((heads[:, 0::2], heads[:, 1::2]), dim=1)


KERNELS: dict[str, type[Kernel]] = {
    "softmax": Softmax,
    "softmax1": Softmax1,
    "sink_logits": SinkLogits,
    "kv_bias": KvBias,
    "sigmoid": Sigmoid,
    "softpick": Softpick,
    "clipped_softmax": ClippedSoftmax,
    "forgetting": Forgetting,
    "differential": Differential,
}
"""`Design.kernel` -> what computes it."""
