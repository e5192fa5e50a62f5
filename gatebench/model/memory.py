"""Memory of a training step on one device, by arithmetic on the configuration. Imports no torch.

An upper estimate, of eager mode: what is counted as activations is what autograd keeps, and a test compares it with
that. CUDA's fused RMSNorm and torch.compile keep less (docs/scale.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from gatebench.config import ModelConfig, RunConfig
from gatebench.design import Design
from gatebench.model.accounting import KERNEL_COSTS, Accounting, gate_site, layer_params
from gatebench.variants import Variant

LOGITS_AT_ONCE = 1 << 20
"""Of the loss, on a CPU; 64 times as many on a GPU, and more of a large vocabulary (`model/loss.py`)."""
ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, by part.

    With fsdp the first three are its share, and in weights and gradients what is whole at one time: embeddings, output
    matrix and two layers.
    """

    weights: int
    """fp32."""
    gradients: int
    """fp32, and once more in the buckets that DDP exchanges."""
    optimizer: int
    """AdamW's two moments, fp32."""
    copies: int
    """bf16 copies of the matrices, which mixed precision makes in each step."""
    activations: int
    """What the forward pass keeps for the backward pass, of one micro-batch."""
    loss: int
    """The output matrix's gradient and copy, and one chunk of logits."""

    @property
    def total(self) -> int:
        """Upper estimate of the peak, without the allocator's and the libraries' own."""
        return sum(vars(self).values())


def memory(config: RunConfig, costs: Accounting, *, bf16: bool, gpu: bool) -> Memory:
    """Return the memory of a training step of `config` on one of its devices; `costs` is `account(config)`."""
    model, variant = costs.model, config.spec
    element = 2 if bf16 else 4
    embedding = model.vocab_size * model.d_model
    tokens = config.micro_batch_size * config.data.seq_len
    world = config.train.devices * config.train.num_nodes
    sharded = world > 1 and config.train.strategy == "fsdp"
    own = -(-costs.n_params // world) if sharded else costs.n_params
    whole = costs.n_params - max(0, model.n_layers - 2) * layer_params(model, variant) if sharded else 0
    buckets = costs.n_params if world > 1 and not sharded else 0
    layer = layer_activations(model, variant, config.data.seq_len, bf16=bf16)
    kept = 4 * model.d_model * model.n_layers + layer if config.train.recompute else model.n_layers * layer
    logits = max(LOGITS_AT_ONCE * (64 if gpu else 1), ROWS_AT_ONCE * model.vocab_size)
    return Memory(
        weights=4 * (own + whole),
        gradients=4 * (own + whole + buckets),
        optimizer=8 * own,
        copies=2 * (costs.n_params - embedding) if bf16 else 0,
        activations=tokens * (kept + 12 * model.d_model),
        loss=embedding * (4 + element) + logits * (8 + element),
    )


def layer_activations(model: ModelConfig, variant: Variant, seq_len: int, *, bf16: bool) -> int:
    """Return the bytes a token that one layer keeps for its backward pass.

    With a bytes an element: each norm of width w keeps its fp32 input and output (8 w); in bf16 every matrix keeps a
    copy of its input of its own, in fp32 those that read one tensor share it; attention keeps rotated queries and keys,
    values and its output; the FFN keeps four tensors of its inner width. A gate adds its scores and its output, switch
    heads every expert's output, a design what `_design` says; registers are tokens, too.
    """
    a = 2 if bf16 else 4
    c, q, kv = model.d_model, model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
    heads = variant.design.switch_heads
    readers = 3 + sum(gate.source == "hidden" for gate in variant.gates) + (len(heads.tensors) if heads else 0)
    norms = 4 if variant.design.sandwich_norm else 2
    kept = 8 * norms * c + a * c * (readers if bf16 else 1) + (q + kv) * (2 * a + 8 * model.qk_norm)
    for gate in variant.gates:
        site = gate_site(model, gate.position)
        width = site.n_heads * site.width
        scores = 0 if gate.source in ("self", "constant") else gate.score_width(site.n_heads, site.width)
        kept += 8 * width if gate.activation == "rmsnorm" else a * (width + scores)
        kept += a * c * (gate.source == "previous")
    if heads is not None:
        kept += a * len(heads.tensors) * heads.n_experts * (kv + model.n_kv_heads)
    length = seq_len + variant.design.registers
    kept += _design(model, variant.design, a, length) + _ffn(model, a, bf16)
    return kept * length // seq_len


def _design(model: ModelConfig, design: Design, a: int, length: int) -> int:
    """Bytes a token: maps that no fused kernel computes, a null key's copies, a second SDPA, clamps' inputs."""
    q, kv = model.n_heads * model.head_dim, model.n_kv_heads * model.head_dim
    costs = KERNEL_COSTS[design.kernel]
    kept = 4 * costs.kept_maps * model.n_heads * length
    kept += a * q * costs.null_key + 2 * a * costs.padding * (model.n_heads + model.n_kv_heads)
    kept += (costs.passes - 1) * (a * (2 * q + kv) + 8 * q)  # both halves of V twice, and a norm
    if design.output_clip is not None:
        kept += 2 * a * model.d_model
    return kept + 2 * a * q * design.exclusive


def _ffn(model: ModelConfig, a: int, bf16: bool) -> int:
    """Bytes a token: the input's copies and four inner tensors; with experts those of `top_k`, router and rows."""
    if model.moe is None:
        return a * model.d_model * (2 if bf16 else 1) + 4 * a * model.ffn_dim
    k = model.moe.top_k
    return 4 * model.d_model + 2 * a * k * model.d_model + 4 * a * k * model.moe.expert_dim + 8 * model.moe.n_experts
