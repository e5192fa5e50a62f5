"""What a variant changes of the architecture besides its gates, and the words that spell it. Imports no torch.

Each field of `Design` has the paper's baseline as its default, and one word (or a family of words) that changes it:

    sandwich_norm, clip{c}, switch_{k|v|kv}_{E}top{K},
    softmax1, sink_logits, kv_bias, sigmoid_attention, softpick, clipped_softmax[{alpha}], forgetting, differential,
    registers{m}, value_residual, exclusive

Words join gates and one another by `+` (`sandwich_norm+g1_headwise`). To add one: a field here, an entry in `WORDS`,
and the place in `model/` that reads the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from gatebench.errors import UserError


@dataclass(frozen=True)
class SwitchHeads:
    """Experts of the key or value projection: `top_k` of `n_experts` for each token and KV head (`model/switch.py`)."""

    tensors: str
    """`k`, `v` or `kv`: which projections have experts."""
    n_experts: int
    top_k: int

    @property
    def name(self) -> str:
        """`switch_v_8top2`."""
        return f"switch_{self.tensors}_{self.n_experts}top{self.top_k}"

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.n_experts:
            raise UserError(
                f"'{self.name}': selects {self.top_k} of {self.n_experts} experts; legal: 1 to {self.n_experts}"
            )


@dataclass(frozen=True)
class Design:
    """A layer of the transformer apart from its gates; the defaults are the paper's baseline."""

    sandwich_norm: bool = False
    """Norm each sublayer's output too, before it is added: h + N2(Attn(N1(h))) (the paper's Table 2)."""
    output_clip: float | None = None
    """Clamp each sublayer's output to [-c, c] before it is added (the paper's appendix A.6); None does not."""
    switch_heads: SwitchHeads | None = None
    """Experts in place of the key or value projection (the paper's Table 6)."""
    kernel: str = "softmax"
    """How scores become weights of values: a name of `model/kernels.py` KERNELS (docs/rivals.md)."""
    clipped_alpha: float = 12.0
    """Of clipped softmax: gamma = -alpha / context_length (12 in the Quantizable Transformers' script for OPT-125m)."""
    registers: int = 0
    """Learned embeddings before the text, at positions of their own, whose outputs are dropped."""
    value_residual: bool = False
    """Average each layer's values with the first layer's (ResFormer)."""
    exclusive: bool = False
    """Take out of a head's output what points along the token's own value (exclusive self attention)."""

    def __post_init__(self) -> None:
        if self.exclusive and self.kernel == "differential":
            raise UserError(
                "exclusive with differential: a pair's output has two values, no own one; legal: one of both"
            )

    @property
    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from the baseline's, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    @property
    def words(self) -> tuple[str, ...]:
        """The words that spell this design, in the order of `WORDS`; none for the baseline's."""
        return tuple(name for word in WORDS if (name := word.spell(self)) is not None)

    @property
    def equations(self) -> tuple[str, ...]:
        """One line for each word: what it does."""
        return tuple(word.equation(self) for word in WORDS if word.spell(self) is not None)

    @property
    def costs(self) -> tuple[str, ...]:
        """One line for each word that costs memory or time beyond parameters: how much."""
        return tuple(f"{name}: {word.cost}" for word in WORDS if word.cost and (name := word.spell(self)) is not None)

    @property
    def eager(self) -> bool:
        """Whether attention needs the explicit T x T map, which no fused kernel of SDPA computes."""
        return any(word.eager for word in WORDS if word.spell(self) is not None)

    def check_heads(self, n_heads: int, n_kv_heads: int, variant: str) -> None:
        """Raise UserError, naming `variant`, where this design has no meaning for so many heads."""
        if self.kernel == "differential" and (n_heads % 2 or n_kv_heads % 2):
            raise UserError(
                f"variant '{variant}': differential attention pairs heads, but model.n_heads={n_heads} and "
                f"model.n_kv_heads={n_kv_heads}; legal: even numbers of both"
            )

    def merged(self, other: Design, name: str) -> Design:
        """Return the changes of both. Raises UserError, naming variant `name`, where both change one field."""
        ours, theirs = self.changes, other.changes
        if both := sorted(ours.keys() & theirs.keys()):
            setters = [word for word in WORDS if both[0] in word.fields]
            found = [word.spell(design) for design in (self, other) for word in setters]
            raise UserError(
                f"variant '{name}': {' and '.join(filter(None, found))} both set {both[0]}; each may be set once"
            )
        return Design(**ours, **theirs)


@dataclass(frozen=True)
class Word:
    """A word, or a family of words with numbers in it, that sets fields of a `Design`."""

    pattern: str
    """Regular expression of the whole word."""
    form: str
    """How a message shows it: `clip{c}`."""
    fields: tuple[str, ...]
    """The fields that it sets."""
    read: Callable[[re.Match[str]], Mapping[str, Any]]
    """From a match to those fields' values. May raise UserError."""
    spell: Callable[[Design], str | None]
    """The word of a design; None where its fields are the baseline's."""
    equation: Callable[[Design], str]
    """What it does, in one line."""
    cost: str = ""
    """What it costs beyond parameters, in one line; empty for nothing."""
    eager: bool = False
    """Whether it needs the explicit T x T map."""


NULL_KEY_PADDING = 8
"""Dimensions that `sink_logits` adds to every head, one of which it needs; 8 keeps the fused kernels' alignment."""
_NULL_KEY = "fused; one more key and query in every window and layer"
_EAGER = "no fused kernel: explicit maps, heads x T x T x 4 bytes a window and layer, several such in training"


def flag(word: str, field: str, equation: str, value: Any = True, *, cost: str = "", eager: bool = False) -> Word:
    """Return the word that sets one field to one value."""
    return Word(
        word,
        word,
        (field,),
        lambda match: {field: value},
        lambda design: word if getattr(design, field) == value else None,
        lambda design: equation,
        cost,
        eager,
    )


WORDS: tuple[Word, ...] = (
    flag("sandwich_norm", "sandwich_norm", "h' = h + N₂(f(N₁(h))) for attention and FFN"),
    Word(
        r"clip(?P<c>[1-9]\d*)",
        "clip{c}",
        ("output_clip",),
        lambda match: {"output_clip": float(match["c"])},
        lambda design: None if design.output_clip is None else f"clip{design.output_clip:.0f}",
        lambda design: f"h' = h + clamp(f(N(h)), ±{design.output_clip:g}) for attention and FFN",
    ),
    Word(
        r"switch_(?P<tensors>k|v|kv)_(?P<experts>[1-9]\d*)top(?P<top>\d+)",
        "switch_{k|v|kv}_{E}top{K}",
        ("switch_heads",),
        lambda match: {"switch_heads": SwitchHeads(match["tensors"], int(match["experts"]), int(match["top"]))},
        lambda design: None if design.switch_heads is None else design.switch_heads.name,
        lambda design: _switch_equation(design.switch_heads),
    ),
    flag("softmax1", "kernel", "A_ij = exp(x_ij) / (1 + Σ_j exp(x_ij))", "softmax1", cost=_NULL_KEY),
    flag("sink_logits", "kernel", "A_ij = exp(x_ij) / (exp(s_h) + Σ_j exp(x_ij))", "sink_logits",
         cost=f"{_NULL_KEY}, {NULL_KEY_PADDING} more dimensions in every head"),
    flag("kv_bias", "kernel", "softmax over the keys and a learned k'_h, whose value is v'_h", "kv_bias",
         cost=_NULL_KEY),
    flag("sigmoid_attention", "kernel", "A_ij = σ(x_ij - ln n)", "sigmoid", cost=_EAGER, eager=True),
    flag("softpick", "kernel", "A_ij = relu(exp(x_ij) - 1) / Σ_j |exp(x_ij) - 1|", "softpick", cost=_EAGER, eager=True),
    Word(
        r"clipped_softmax(?P<alpha>[1-9]\d*)?",
        "clipped_softmax[{alpha}]",
        ("kernel", "clipped_alpha"),
        lambda match: {"kernel": "clipped_softmax", "clipped_alpha": float(match["alpha"] or Design.clipped_alpha)},
        lambda design: _clipped_softmax(design),
        lambda design: f"A = clip((1 - γ) softmax(x) + γ, 0, 1), γ = -{design.clipped_alpha:g} / n",
        _EAGER,
        eager=True,
    ),
    flag("forgetting", "kernel", "A = softmax(x_ij + c_i - c_j), c_i = Σ_(l ≤ i) log σ(w_h · X_l + b_h)", "forgetting",
         cost=_EAGER, eager=True),
    flag("differential", "kernel", "Y = (1 - λ₀) RMSNorm((A₁ - λ A₂) V) for pairs of heads", "differential",
         cost="fused; attention runs twice"),
    Word(
        r"registers(?P<m>[1-9]\d*)",
        "registers{m}",
        ("registers",),
        lambda match: {"registers": int(match["m"])},
        lambda design: f"registers{design.registers}" if design.registers else None,
        lambda design: f"X = [r_1 .. r_{design.registers}, X], outputs at the registers dropped",
        "every layer runs on the registers, too: m more tokens a window",
    ),
    flag("value_residual", "value_residual", "V_n = (V_n + V_1) / 2"),
    flag("exclusive", "exclusive", "Y_i = Y_i - (Y_i · v̂_i) v̂_i, v̂ = v / ‖v‖"),
)  # fmt: skip


def _clipped_softmax(design: Design) -> str | None:
    if design.kernel != "clipped_softmax":
        return None
    return "clipped_softmax" + ("" if design.clipped_alpha == Design.clipped_alpha else f"{design.clipped_alpha:.0f}")


def _switch_equation(heads: SwitchHeads | None) -> str:
    assert heads is not None
    experts = (
        f"the {heads.n_experts}" if heads.top_k == heads.n_experts else f"the top {heads.top_k} of {heads.n_experts}"
    )
    tensors = " and ".join(f"{letter.upper()}_h = Σ_e σ(s_e) X W_{letter},h,e" for letter in heads.tensors[::-1])
    return f"{tensors}, over {experts} experts by s = X W_s,h"


def parse_design(word: str) -> Design | None:
    """Return the design that one word spells; None for a word that is not one of `WORDS`."""
    for known in WORDS:
        if match := re.fullmatch(known.pattern, word):
            return Design(**known.read(match))
    return None
