"""Gates: what a `GateSpec` can say, and the grammar that spells it. Imports no torch.

    g{1..5}_{headwise|elementwise}[_shared][_additive][_{silu|ns_sigmoid|identity|tanh|relu}][_input_independent]
    g{1..5}_{rmsnorm|silu_only}

Sigmoid, head-specific, multiplicative and input-dependent are the defaults and go unsaid. Positions are the paper's
(arXiv 2505.06708, section 2.2 and Figure 1): G1 = SDPA output, G2 = value, G3 = key, G4 = query, G5 = after the output
projection. `model/gates.py` is the only place that interprets a spec.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gatebench.errors import UserError

POSITIONS = {"g1": "SDPA output", "g2": "value", "g3": "key", "g4": "query", "g5": "after the output projection"}
GRANULARITIES = ("headwise", "elementwise")
MODES = ("multiplicative", "additive", "transform")
ACTIVATIONS = {
    "sigmoid": "σ({})",
    "silu": "SiLU({})",
    "ns_sigmoid": "(½ + ½·σ({}))",
    "identity": "({})",
    "tanh": "tanh({})",
    "relu": "ReLU({})",
}
TRANSFORMS = {"rmsnorm": "RMSNorm({})", "silu_only": "SiLU({})"}
SYMBOLS = {"g1": "Y", "g2": "V", "g3": "K", "g4": "Q", "g5": "O"}
GATE_GRAMMAR = (
    "g{1..5}_{headwise|elementwise}[_shared][_additive][_{silu|ns_sigmoid|identity|tanh|relu}][_input_independent] "
    "or g{1..5}_{rmsnorm|silu_only}"
)

_GATE = re.compile(
    r"(?P<position>g[1-5])_(?P<granularity>headwise|elementwise)(?P<shared>_shared)?(?P<additive>_additive)?"
    r"(?:_(?P<activation>silu|ns_sigmoid|identity|tanh|relu))?(?P<constant>_input_independent)?"
)
_TRANSFORM = re.compile(r"(?P<position>g[1-5])_(?P<transform>rmsnorm|silu_only)")


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
    source: str = "hidden"
    """What the score is computed from: `hidden` (attention input), `constant` (a learned θ, zero at the start: the
    paper's input-independent gate), or `self` (the gated tensor: `rmsnorm`, `silu_only`)."""
    shared_average: str = "scores"
    """Where sharing averages: `scores` (after the activation) or `logits` (before). The paper does not say;
    after it, the added parameters are not redundant, so that is the default."""

    def __post_init__(self) -> None:
        legal: dict[str, tuple[str, ...]] = {
            "position": tuple(POSITIONS),
            "granularity": GRANULARITIES,
            "mode": MODES,
            "activation": tuple(TRANSFORMS) if self.mode == "transform" else tuple(ACTIVATIONS),
            "source": ("self",) if self.mode == "transform" else ("hidden", "constant"),
            "shared_average": ("scores", "logits"),
        }
        for key, words in legal.items():
            if getattr(self, key) not in words:
                raise UserError(f"GateSpec.{key}={getattr(self, key)!r}: legal: {', '.join(words)}")
        if self.mode == "transform" and (self.shared or self.granularity != "elementwise"):
            raise UserError(
                f"GateSpec.mode='transform': {self.activation} acts on elements, per head; no other form exists"
            )
        if self.position == "g5" and (self.granularity == "headwise" or self.shared):
            raise UserError(
                f"{self.name}: the output projection has mixed the heads, so G5 has no headwise and no shared form; "
                "legal: g5_elementwise[_additive][_{silu|ns_sigmoid|identity|tanh|relu}][_input_independent], "
                "g5_rmsnorm, g5_silu_only"
            )

        if self.activation == "relu" and self.source == "constant":
            raise UserError(
                f"{self.name}: θ starts at 0, where ReLU has no gradient, so the gate would never move; "
                "legal with input_independent: sigmoid, silu, ns_sigmoid, identity, tanh"
            )

    @property
    def name(self) -> str:
        """The gate's name in the grammar; `parse_gate(spec.name) == spec` for all that the grammar spells."""
        if self.mode == "transform":
            return f"{self.position}_{self.activation}"
        parts = [self.position, self.granularity]
        parts += ["shared"] if self.shared else []
        parts += ["additive"] if self.mode == "additive" else []
        parts += [self.activation] if self.activation != "sigmoid" else []
        parts += ["input_independent"] if self.source == "constant" else []
        return "_".join(parts)

    @property
    def equation(self) -> str:
        """One line: what the gate does at its site."""
        tensor = SYMBOLS[self.position]
        if self.mode == "transform":
            site = tensor if self.position == "g5" else f"{tensor}_h"
            return f"{site}' = " + TRANSFORMS[self.activation].format(site)
        site = tensor if self.position == "g5" else f"{tensor}_h"
        logit = "θ" if self.source == "constant" else "X W_θ"
        if self.position != "g5":
            logit += "_h" if self.source == "constant" else ",h"
        activation = ACTIVATIONS[self.activation]
        if not self.shared:
            score = activation.format(logit)
        elif self.shared_average == "scores":
            score = "mean_h " + activation.format(logit)
        else:
            score = activation.format(f"mean_h {logit}")
        return f"{site}' = {site} {'+' if self.mode == 'additive' else '⊙'} {score}"

    @property
    def score_shape(self) -> str:
        """Shape of the score in the paper's letters: n tokens, q query heads, k KV heads, dk head size."""
        if self.mode == "transform":
            return "none"
        rows = "" if self.source == "constant" else "n x "
        if self.position == "g5":
            return f"{rows}dmodel"
        heads = "q" if self.position in ("g1", "g4") else "k"
        if self.granularity == "headwise":
            return f"{rows}{1 if self.shared else heads}"
        return f"{rows}dk" if self.shared else f"{rows}{heads} x dk"


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
            source="constant" if match["constant"] else "hidden",
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
