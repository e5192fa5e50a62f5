"""Gates: what a `GateSpec` can say, and the grammar that spells it (`GATE_GRAMMAR`). Imports no torch.

Suffixes stand in this order. Sigmoid, head-specific, multiplicative and computed from the attention input are the
defaults and go unsaid; numbers write their decimal point as p (`floor0p25`). Positions are the paper's (arXiv
2505.06708, section 2.2 and Figure 1): G1 = SDPA output, G2 = value, G3 = key, G4 = query, G5 = after the output
projection. `model/gates.py` is the only place that interprets a spec.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from decimal import Decimal

from gatebench.errors import UserError

POSITIONS = {"g1": "SDPA output", "g2": "value", "g3": "key", "g4": "query", "g5": "after the output projection"}
GRANULARITIES = ("headwise", "elementwise")
MODES = ("multiplicative", "additive", "transform")
ACTIVATIONS = {
    "sigmoid": "σ({})",
    "silu": "SiLU({})",
    "identity": "({})",
    "tanh": "tanh({})",
    "relu": "ReLU({})",
    "hard": "1[σ({}) > 0.5]",
}
TRANSFORMS = {"rmsnorm": "RMSNorm({})", "silu_only": "SiLU({})"}
QUERY_SITES = ("g1", "g4")
"""Where a site has a head for each query head; at G2 and G3 it has one for each KV head."""
SYMBOLS = {"g1": "Y", "g2": "V", "g3": "K", "g4": "Q", "g5": "O"}
TOKEN_SOURCES = {"hidden": "X", "previous": "X₋₁"}
"""Sources with d_model channels, which every head reads through weights of its own: the token's attention input, or the
previous token's (zeros at the first)."""
HEAD_SOURCES = {
    "value": ("g1", "g2", "g3", "g4"),
    "key": ("g1", "g2", "g3", "g4"),
    "query": QUERY_SITES,
    "output": ("g1",),
    "slice": ("g1", "g2", "g3", "g4"),
}
"""Sources of which each head reads its own part -> the positions where a head has one. At G1 and G4 the key or value of
a KV head serves its group of query heads; a KV head has several queries, so none to read."""
_HEAD_SYMBOLS = {"value": "V_h", "key": "K_h", "query": "Q_h", "output": "Y_h", "slice": "X_h"}
_ACTIVATION_WORDS = [word for word in ACTIVATIONS if word != "sigmoid"]
_SOURCE_WORDS = [*HEAD_SOURCES, "previous"]
GATE_GRAMMAR = (
    f"g{{1..5}}_{{{'|'.join(GRANULARITIES)}}}[_shared][_additive][_{{{'|'.join(_ACTIVATION_WORDS)}|ns_sigmoid|floor{{f}}}}]"
    f"[_temp{{t}}][_{{input_independent|from_{{{'|'.join(_SOURCE_WORDS)}}}}}][_first{{n}}][_rank{{r}}][_detached]"
    f"[_bias{{p}}] or g{{1..5}}_{{{'|'.join(TRANSFORMS)}}}"
)

_NUMBER = r"\d+(?:p\d+)?"
_POSITION = f"(?P<position>{'|'.join(POSITIONS)})"
_GATE = re.compile(
    rf"{_POSITION}_(?P<granularity>{'|'.join(GRANULARITIES)})(?P<shared>_shared)?(?P<additive>_additive)?"
    rf"(?:_(?P<activation>{'|'.join(_ACTIVATION_WORDS)})|_(?P<half>ns_sigmoid)|_floor(?P<floor>{_NUMBER}))?"
    rf"(?:_temp(?P<temperature>{_NUMBER}))?"
    rf"(?:_(?P<constant>input_independent)|_from_(?P<source>{'|'.join(_SOURCE_WORDS)}))?"
    r"(?:_first(?P<first>\d+))?(?:_rank(?P<rank>\d+))?(?P<detached>_detached)?"
    rf"(?:_bias(?P<bias>{_NUMBER}))?"
)
_TRANSFORM = re.compile(rf"{_POSITION}_(?P<transform>{'|'.join(TRANSFORMS)})")


def _read(number: str) -> float:
    return float(number.replace("p", "."))


def _spell(number: float) -> str:
    digits = format(Decimal(repr(float(number))), "f")
    return digits.rstrip("0").rstrip(".").replace(".", "p")


@dataclass(frozen=True)
class GateSpec:
    """Everything about one gate; `model/gates.py` is the only place that interprets it.

    With S the site's tensor (per head h: Y_h, V_h, K_h, Q_h, or O after the output projection) and X the attention
    input: multiplicative S' = S ⊙ a(XW), additive S' = S + a(XW), transform S' = a(S). The gate at G3 and G4 acts after
    QK-norm (before it, the norm would undo a headwise gate) and before RoPE (so that scores stay relative).
    """

    position: str
    granularity: str = "elementwise"
    shared: bool = False
    """One score for all heads: the mean over heads of every head's own scores, so the parameter count stays that of
    the head-specific gate, as in the paper's Table 1."""
    mode: str = "multiplicative"
    activation: str = "sigmoid"
    """a. `hard` is 1 where σ > 0.5 and else 0, with the sigmoid's gradient (straight-through: Bengio et al. 2013)."""
    source: str = "hidden"
    """What the score is computed from: one of `TOKEN_SOURCES` or `HEAD_SOURCES`, `constant` (a learned θ, zero at the
    start: the paper's input-independent gate), or `self` (the gated tensor: `rmsnorm`, `silu_only`).

    Queries and keys are read after QK-norm, before gates and RoPE; values before gates; the output is that of SDPA
    before any G1 gate; `slice` is head h's d_model / n_heads channels of X (Bondarenko et al. 2023, arXiv 2306.12929).
    """
    shared_average: str = "scores"
    """Where sharing averages: `scores` (after the activation) or `logits` (before). The paper does not say;
    after it, the added parameters are not redundant, so that is the default."""
    floor: float = 0.0
    """f of the score f + (1 - f) σ(x): the least that a sigmoid gate lets through. 0.5 is the paper's NS-sigmoid."""
    temperature: float = 1.0
    """τ of σ(x / τ): towards 0 the gate is hard, towards infinity it is one half."""
    first: int | None = None
    """The score reads the first n of the d_model channels alone; None reads all."""
    rank: int | None = None
    """The score matrix is a product of two, through r channels; None is one full matrix."""
    detached: bool = False
    """The score's input is detached: the score's own weights learn, but no gradient reaches what computed the input."""
    bias: float | None = None
    """The logits have a bias, which starts where σ is this; None: only if the projections have biases, zero at the
    start."""

    def __post_init__(self) -> None:
        legal: dict[str, tuple[str, ...]] = {
            "position": tuple(POSITIONS),
            "granularity": GRANULARITIES,
            "mode": MODES,
            "activation": tuple(TRANSFORMS) if self.mode == "transform" else tuple(ACTIVATIONS),
            "source": ("self",) if self.mode == "transform" else ("hidden", "constant", "previous", *HEAD_SOURCES),
            "shared_average": ("scores", "logits"),
        }
        for key, words in legal.items():
            if getattr(self, key) not in words:
                raise UserError(f"GateSpec.{key}={getattr(self, key)!r}: legal: {', '.join(words)}")
        ranges = {
            "floor": (0 <= self.floor < 1, "0 or more and less than 1"),
            "temperature": (0 < self.temperature < math.inf, "a positive number"),
            "first": (self.first is None or self.first >= 1, "1 or more"),
            "rank": (self.rank is None or self.rank >= 1, "1 or more"),
            "bias": (self.bias is None or 0 < self.bias < 1, "between 0 and 1: where σ starts"),
        }
        for key, (holds, numbers) in ranges.items():
            if not holds:
                raise UserError(f"{self.name}: {key}={getattr(self, key):g}; legal: {numbers}")
        self._check_combination()

    def _check_combination(self) -> None:
        """Raise UserError where the parts are legal one by one and together mean nothing."""
        if self.mode == "transform":
            free = ("position", "mode", "activation", "source")
            if any(getattr(self, f.name) != f.default for f in fields(self) if f.name not in free):
                raise UserError(
                    f"GateSpec.mode='transform': {self.activation} acts on elements, per head; no other form exists"
                )
            return
        if self.position == "g5" and (self.granularity == "headwise" or self.shared):
            raise UserError(
                f"{self.name}: the output projection has mixed the heads, so G5 has no headwise and no shared form; "
                "legal: g5_elementwise[_additive] with any activation, g5_rmsnorm, g5_silu_only"
            )
        if self.position not in HEAD_SOURCES.get(self.source, tuple(POSITIONS)):
            raise UserError(
                f"{self.name}: a head at {self.position.upper()} has no {self.source} of its own to read; legal: "
                f"from_{self.source} at {', '.join(HEAD_SOURCES[self.source])}"
            )
        if self.activation != "sigmoid" and (self.floor or self.temperature != 1 or self.bias is not None):
            raise UserError(
                f"{self.name}: floor, temp and bias are numbers of the sigmoid; legal: without _{self.activation}"
            )
        if self.source not in TOKEN_SOURCES and (self.first is not None or self.rank is not None):
            raise UserError(
                f"{self.name}: first and rank shape the matrix that reads d_model channels; legal: with the attention "
                "input or from_previous"
            )
        if self.source == "constant" and (self.detached or self.bias is not None):
            raise UserError(
                f"{self.name}: θ reads no input to detach and is itself a bias; legal: input_independent alone"
            )
        if self.source == "constant" and self.activation == "relu":
            raise UserError(
                f"{self.name}: θ starts at 0, where ReLU has no gradient, so the gate would never move; "
                "legal with input_independent: sigmoid, silu, ns_sigmoid, identity, tanh, hard"
            )

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The words of the grammar after position and granularity; none for the paper's main gate."""
        activation = [self.activation] if self.activation != "sigmoid" else []
        if self.floor:
            activation = ["ns_sigmoid" if self.floor == 0.5 else f"floor{_spell(self.floor)}"]
        source = {"hidden": [], "constant": ["input_independent"]}.get(self.source, [f"from_{self.source}"])
        return (
            *(["shared"] if self.shared else []),
            *(["additive"] if self.mode == "additive" else []),
            *activation,
            *([f"temp{_spell(self.temperature)}"] if self.temperature != 1 else []),
            *source,
            *([f"first{self.first}"] if self.first is not None else []),
            *([f"rank{self.rank}"] if self.rank is not None else []),
            *(["detached"] if self.detached else []),
            *([f"bias{_spell(self.bias)}"] if self.bias is not None else []),
        )

    @property
    def name(self) -> str:
        """The gate's name in the grammar; `parse_gate(spec.name) == spec` for all that the grammar spells."""
        if self.mode == "transform":
            return f"{self.position}_{self.activation}"
        return "_".join((self.position, self.granularity, *self.suffixes))

    @property
    def equation(self) -> str:
        """One line: what the gate does at its site."""
        tensor = SYMBOLS[self.position]
        site = tensor if self.position == "g5" else f"{tensor}_h"
        if self.mode == "transform":
            return f"{site}' = " + TRANSFORMS[self.activation].format(site)
        logit = self._logit
        if self.shared and self.shared_average == "logits":
            logit = f"mean_h {logit}"
        if self.temperature != 1:
            logit = f"({logit}) / {self.temperature:g}" if " " in logit else f"{logit} / {self.temperature:g}"
        score = ACTIVATIONS[self.activation].format(logit)
        if self.floor:
            score = f"({self.floor:g} + {1 - self.floor:g}·{score})"
        if self.shared and self.shared_average == "scores":
            score = f"mean_h {score}"
        return f"{site}' = {site} {'+' if self.mode == 'additive' else '⊙'} {score}"

    @property
    def _logit(self) -> str:
        """What the activation is taken of, as in X W_θ,h."""
        head = "" if self.position == "g5" else "h"
        if self.source == "constant":
            return "θ_h" if head else "θ"
        read = TOKEN_SOURCES.get(self.source) or _HEAD_SYMBOLS[self.source]
        if self.first is not None:
            read += f"[:{self.first}]"
        if self.detached:
            read = f"detach({read})"
        matrix = "W_θ" if self.rank is None else f"A_{self.rank} B_θ"
        bias = "" if self.bias is None else (" + b_h" if head else " + b")
        return f"{read} {matrix}{',h' if head else ''}{bias}"

    @property
    def score_shape(self) -> str:
        """Shape of the score in the paper's letters: n tokens, q query heads, k KV heads, dk head size."""
        if self.mode == "transform":
            return "none"
        rows = "" if self.source == "constant" else "n x "
        if self.position == "g5":
            return f"{rows}dmodel"
        heads = "q" if self.position in QUERY_SITES else "k"
        if self.granularity == "headwise":
            return f"{rows}{1 if self.shared else heads}"
        return f"{rows}dk" if self.shared else f"{rows}{heads} x dk"

    @property
    def closed_at_zero(self) -> bool:
        """Whether the gate multiplies by 0 where its logits are 0."""
        return self.mode == "multiplicative" and self.activation != "sigmoid"

    @property
    def initial_bias(self) -> float:
        """Where the logits' bias starts: τ logit(p), so that σ starts at p; 0 for a bias that the gate just shares."""
        return 0.0 if self.bias is None else self.temperature * math.log(self.bias / (1 - self.bias))

    def score_width(self, n_heads: int, head_dim: int) -> int:
        """Return how many raw scores a site of `n_heads` heads of `head_dim` has per token, before any sharing."""
        return n_heads if self.granularity == "headwise" else n_heads * head_dim

    def input_width(self, d_model: int, n_heads: int, head_dim: int) -> int:
        """Return how many channels one raw score reads. Raises UserError where the shape cannot have such a gate."""
        if self.source == "slice":
            if d_model % n_heads:
                raise UserError(
                    f"{self.name}: d_model={d_model} has no equal slices for {n_heads} heads; legal: d_model a "
                    f"multiple of {n_heads}"
                )
            return d_model // n_heads
        if self.source in HEAD_SOURCES:
            return head_dim
        width = d_model if self.first is None else self.first
        if width > d_model:
            raise UserError(f"{self.name}: first{width} of d_model={d_model} channels; legal: first1 to first{d_model}")
        largest = min(width, self.score_width(n_heads, head_dim))
        if self.rank is not None and self.rank > largest:
            raise UserError(
                f"{self.name}: rank{self.rank} of a matrix whose full rank is {largest}; legal: rank1 to rank{largest}"
            )
        return width

    def matrices(self, d_model: int, n_heads: int, head_dim: int) -> tuple[int, ...]:
        """Return the weights of each matrix between the score's input and the logits, from the input on; no biases."""
        if self.source in ("constant", "self"):
            return ()
        read, scores = self.input_width(d_model, n_heads, head_dim), self.score_width(n_heads, head_dim)
        return (read * scores,) if self.rank is None else (read * self.rank, self.rank * scores)


def parse_gate(name: str) -> GateSpec | None:
    """Return the gate that `name` spells; None for a name outside the grammar."""
    if match := _TRANSFORM.fullmatch(name):
        return GateSpec(match["position"], mode="transform", activation=match["transform"], source="self")
    if match := _GATE.fullmatch(name):
        return GateSpec(
            position=match["position"],
            granularity=match["granularity"],
            shared=bool(match["shared"]),
            mode="additive" if match["additive"] else "multiplicative",
            activation=match["activation"] or "sigmoid",
            source="constant" if match["constant"] else match["source"] or "hidden",
            floor=0.5 if match["half"] else _read(match["floor"] or "0"),
            temperature=_read(match["temperature"] or "1"),
            first=int(match["first"]) if match["first"] else None,
            rank=int(match["rank"]) if match["rank"] else None,
            detached=bool(match["detached"]),
            bias=_read(match["bias"]) if match["bias"] else None,
        )
    return None


def factorial() -> Iterator[GateSpec]:
    """Yield {G1..G5} x {headwise, elementwise} x {specific, shared} x {multiplicative, additive} x {sigmoid, silu}.

    Of the 80 cells 68 have a meaning: G5 sits after the output projection, which has mixed the heads, so its 12
    headwise or shared cells do not exist.
    """
    cells = itertools.product(POSITIONS, GRANULARITIES, (False, True), MODES[:2], ("sigmoid", "silu"))
    for position, granularity, shared, mode, activation in cells:
        if position == "g5" and (shared or granularity == "headwise"):
            continue
        yield GateSpec(position, granularity, shared, mode, activation)
