"""Variants: what an ablation changes. The one file to touch when you add a gate. Imports no torch.

A *variant* is a name, zero or more gates, changes of the design and of the architecture, and where the paper reports it.
Names follow one grammar, so most variants need no entry here at all: a gate (`gatespec.py`), a word of the design
(`design.py`), or parts joined by `+` (`sandwich_norm+g1_headwise`).

To add a gate: use its name. To give it a label, a place in a table or a reason, add one `Variant` to `CURATED`.
Only a new activation (`ACTIVATIONS` of `gatespec.py`, its function in `model/gates.py`) touches a second file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Any

from gatebench.design import WORDS, Design, parse_design
from gatebench.errors import UserError, nearest
from gatebench.gatespec import GATE_GRAMMAR, POSITIONS, GateSpec, factorial, parse_gate

GRAMMAR = f"{GATE_GRAMMAR}, or {', '.join(word.form for word in WORDS)}; joined by +"


@dataclass(frozen=True)
class Variant:
    """One attention design: gates, overrides of the architecture, and where the paper reports it."""

    name: str
    gates: tuple[GateSpec, ...] = ()
    ratios: Mapping[str, Fraction] = field(default_factory=dict)
    """Overrides of the recipe's shape as ratios (`n_kv_heads`, `n_heads`), so that they mean the same at every scale."""
    design: Design = field(default_factory=Design)
    """What else differs in a layer."""
    label: str = ""
    group: str = "factorial"
    tables: Mapping[int, int] = field(default_factory=dict)
    """The paper's table -> row number there (which is also its order in ours)."""
    aliases: tuple[str, ...] = ()
    reason: str = ""
    """Why anyone would run it, in one line."""

    def __hash__(self) -> int:
        return hash(self.name)

    def held_closed(self, *, zero_matrices: bool) -> tuple[GateSpec, ...]:
        """Return gates that start at 0 and multiply one another, so that training moves none of them; () without such.

        θ starts at 0; matrices do under model.gate_init_std=0 (`zero_matrices`). A gate that adds passes gradient on, and
        the k' and v' of `kv_bias` pass G3 and G2 by.
        """
        series = (("g1", "g2", "g5"), ("g3", "g4"))
        for positions in series if self.design.kernel != "kv_bias" else (("g1", "g5"), ("g2",), ("g3",), ("g4",)):
            gates = [gate for gate in self.gates if gate.position in positions]
            zero = [g for g in gates if g.closed_at_zero and (g.source == "constant" or zero_matrices)]
            if len(zero) > 1 and not any(gate.mode == "additive" for gate in gates):
                return tuple(zero)
        return ()

    def scale(self, model: dict[str, Any]) -> None:
        """Multiply the shape `model` (plain values) by the ratios, in place.

        Raises UserError where one gives no whole number, or is of experts that a dense model does not have.
        """
        for key, ratio in self.ratios.items():
            *section, name = key.split(".")
            holder = model[section[0]] if section else model
            if holder is None:
                raise UserError(f"variant '{self.name}': model.{section[0]} is null; legal: a recipe with experts")
            value = holder[name] * ratio
            if value.denominator != 1:
                raise UserError(
                    f"variant '{self.name}': model.{key}={holder[name]} x {float(ratio):g} is no whole number; "
                    f"legal: a recipe with model.{key} a multiple of {ratio.denominator}"
                )
            holder[name] = int(value)

    def at(self, position: str) -> tuple[GateSpec, ...]:
        """Return the gates that sit at `position`, in the order in which they act."""
        return tuple(gate for gate in self.gates if gate.position == position)


def _curated(
    name: str, label: str, reason: str, *, group: str, tables: Mapping[int, int] | None = None, alias: str = ""
) -> Variant:
    """Return a listed variant whose name, a gate's or a word of the design, says what it is."""
    spelled = _spelled(name)
    assert spelled is not None, name
    aliases = (alias,) if alias else ()
    return replace(spelled, label=label, group=group, tables=tables or {}, aliases=aliases, reason=reason)


def _spelled(name: str) -> Variant | None:
    """Return the variant that a gate's name or a word of the design spells, described from its parts; None for others."""
    if gate := parse_gate(name):
        return _described(gate)
    if design := parse_design(name):
        word = design.words[0]
        return Variant(word, design=design, label=word, group="design", reason="named by the grammar")
    return None


def _described(gate: GateSpec) -> Variant:
    """Return the variant of one gate, with a label and a reason made from its parts."""
    words = [gate.activation] if gate.mode == "transform" else [gate.granularity, *gate.suffixes]
    spelled = {"shared": "head-shared", "input_independent": "input-independent"}
    label = f"{POSITIONS[gate.position]} {' '.join(spelled.get(word, word) for word in words)} {gate.position.upper()}"
    reason = (
        "a cell of the factorial position x granularity x sharing x mode x activation"
        if gate in set(factorial())
        else "named by the grammar"
    )
    return Variant(gate.name, (gate,), label=label[0].upper() + label[1:], reason=reason)


CURATED: tuple[Variant, ...] = (
    Variant("baseline", label="Baseline", group="reference", tables={1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1}, reason="no gate: what everything is compared with"),
    Variant("kv_heads_x2", ratios={"n_kv_heads": Fraction(2)}, label="k x 2", group="reference", tables={1: 2}, reason="spends parameters on twice the KV heads instead of a gate (paper: k=8)"),
    Variant("q_heads_x1p5", ratios={"n_heads": Fraction(3, 2)}, label="q x 1.5", group="reference", tables={1: 3}, reason="spends parameters on half as many query heads again instead of a gate (paper: q=48)"),
    Variant("experts_plus4", ratios={"moe.n_experts": Fraction(33, 32)}, label="Add 4 Experts", group="reference", tables={1: 4}, reason="spends parameters on a thirty-second more experts instead of a gate (paper: 132 for 128)"),
    _curated("g1_elementwise", "SDPA Elementwise G1", "the paper's main gate", group="position", tables={1: 5, 2: 2, 3: 2, 4: 2, 5: 2}),
    _curated("g2_elementwise", "v Elementwise G2", "the gate on values: cheap, depends on the key's token", group="position", tables={1: 6, 3: 3, 4: 5}),
    _curated("g3_elementwise", "k Elementwise G3", "the gate on keys: changes scores, not what is read", group="position", tables={1: 7}),
    _curated("g4_elementwise", "q Elementwise G4", "the gate on queries: changes scores, not what is read", group="position", tables={1: 8}),
    _curated("g5_elementwise", "Dense Output G5", "after W_O: gates, but adds no non-linearity between W_V and W_O", group="position", tables={1: 9}),
    _curated("g1_headwise", "SDPA Headwise G1", "one score per head: most of the gain for almost no parameters", group="granularity", tables={1: 10, 2: 9, 4: 3}),
    _curated("g2_headwise", "v Headwise G2", "one score per KV head and key token", group="granularity", tables={1: 11}),
    _curated("g1_elementwise_shared", "SDPA Head-Shared G1", "do heads need scores of their own?", group="sharing", tables={1: 12, 4: 4}),
    _curated("g2_elementwise_shared", "v Head-Shared G2", "sharing at the value", group="sharing", tables={1: 13}),
    _curated("g1_elementwise_additive_silu", "SDPA Additive G1", "adds instead of multiplying: non-linear, but cannot close", group="mode", tables={1: 14, 3: 4}, alias="g1_additive_silu"),
    _curated("g1_elementwise_silu", "SDPA Elementwise G1 (SiLU)", "unbounded activation in place of the sigmoid", group="activation", tables={1: 15}),
    _curated("g1_rmsnorm", "SDPA GroupNorm", "non-linearity without a gate: per-head RMSNorm of the SDPA output", group="nonlinearity", tables={3: 5}),
    _curated("g1_silu_only", "SDPA SiLU", "non-linearity without a gate or parameters", group="nonlinearity", tables={3: 6}),
    _curated("g1_elementwise_additive_identity", "SDPA Additive (identity)", "adds a linear map of the input: parameters without a non-linearity", group="nonlinearity", tables={3: 7}, alias="g1_additive_identity"),
    _curated("g1_elementwise_input_independent", "SDPA Input Independent Gate", "one static number per channel: non-linearity nowhere, sparsity without the query", group="sparsity", tables={4: 6}, alias="g1_input_independent"),
    _curated("g1_elementwise_ns_sigmoid", "SDPA Elementwise Gate (NS-sigmoid)", "scores held above one half: a gate that cannot be sparse", group="sparsity", tables={4: 7}),
    _curated("g1_headwise_ns_sigmoid", "SDPA Headwise Gate (NS-sigmoid)", "the non-sparse control at one score per head", group="sparsity"),
    _curated("g1_headwise_input_independent", "SDPA Headwise Input Independent Gate", "one static number per head: what 'gated attention' becomes when the input is dropped", group="sparsity"),
    _curated("g2_rmsnorm", "v RMSNorm", "per-head RMSNorm of the value: the norm at the other side of the average", group="nonlinearity"),
    _curated("g2_elementwise_ns_sigmoid", "v Elementwise Gate (NS-sigmoid)", "the non-sparse control at the value", group="sparsity"),
    _curated("g1_elementwise_floor0p1", "SDPA Elementwise Gate (floor 0.1)", "lets through a tenth at least: what full closing adds", group="control"),
    _curated("g1_elementwise_floor0p25", "SDPA Elementwise Gate (floor 0.25)", "half the floor of NS-sigmoid: the dose of sparsity", group="control"),
    _curated("g1_elementwise_floor0p75", "SDPA Elementwise Gate (floor 0.75)", "hardly a gate: the dose of sparsity", group="control"),
    _curated("g1_elementwise_floor0p9", "SDPA Elementwise Gate (floor 0.9)", "scores of 0.9 to 1: almost the baseline, with a gate's parameters", group="control"),
    _curated("g1_headwise_floor0p25", "SDPA Headwise Gate (floor 0.25)", "the dose of sparsity at one score per head", group="control"),
    _curated("g1_headwise_floor0p75", "SDPA Headwise Gate (floor 0.75)", "the dose of sparsity at one score per head", group="control"),
    _curated("g1_elementwise_temp0p5", "SDPA Elementwise Gate (τ = 0.5)", "a steeper sigmoid: does sparsity come sooner?", group="control"),
    _curated("g1_elementwise_temp2", "SDPA Elementwise Gate (τ = 2)", "a flatter sigmoid: does it find sparsity all the same?", group="control"),
    _curated("g1_elementwise_hard", "SDPA Elementwise Hard Gate", "open or closed, nothing between: sparsity without shades", group="control"),
    _curated("g1_headwise_hard", "SDPA Headwise Hard Gate", "switches whole heads on and off by token", group="control"),
    _curated("g1_elementwise_detached", "SDPA Elementwise Gate, input detached", "gates without a gradient path into the residual stream", group="control"),
    _curated("g1_headwise_detached", "SDPA Headwise Gate, input detached", "gates without a gradient path into the residual stream, one score per head", group="control"),
    _curated("g1_elementwise_first16", "SDPA Elementwise Gate, first 16 channels", "how much of the hidden state does a gate need?", group="control"),
    _curated("g1_headwise_first16", "SDPA Headwise Gate, first 16 channels", "how much of the hidden state does a headwise gate need?", group="control"),
    _curated("g1_elementwise_rank8", "SDPA Elementwise Gate, rank 8", "a score per channel for nearly the price of one per head", group="control"),
    _curated("g1_elementwise_bias0p9", "SDPA Elementwise Gate, open at the start", "starts near the baseline instead of at half its output", group="control"),
    _curated("g1_headwise_bias0p9", "SDPA Headwise Gate, open at the start", "starts near the baseline instead of at half its output, one score per head", group="control"),
    _curated("g1_headwise_from_value", "SDPA Headwise Gate from the value", "the score sees what its own token offers, not the whole hidden state", group="source"),
    _curated("g1_elementwise_from_value", "SDPA Elementwise Gate from the value", "the score sees what its own token offers, not the whole hidden state, for each channel", group="source"),
    _curated("g1_headwise_from_key", "SDPA Headwise Gate from the key", "the score sees how its own token is looked for", group="source"),
    _curated("g1_elementwise_from_key", "SDPA Elementwise Gate from the key", "the score sees how its own token is looked for, for each channel", group="source"),
    _curated("g1_headwise_from_query", "SDPA Headwise Gate from the query", "the score sees what its token looks for: query-dependence at its barest", group="source"),
    _curated("g1_elementwise_from_query", "SDPA Elementwise Gate from the query", "the score sees what its token looks for, for each channel", group="source"),
    _curated("g1_headwise_from_output", "SDPA Headwise Gate from the SDPA output", "the score sees what attention found: the output gates itself", group="source"),
    _curated("g1_elementwise_from_output", "SDPA Elementwise Gate from the SDPA output", "the score sees what attention found, for each channel", group="source"),
    _curated("g1_headwise_from_previous", "SDPA Headwise Gate from the previous token", "the score sees the token before: input-dependent, but of another token", group="source"),
    _curated("g1_elementwise_from_previous", "SDPA Elementwise Gate from the previous token", "the score sees the token before, for each channel", group="source"),
    _curated("g2_headwise_from_value", "v Headwise Gate from the value", "the value gates itself: no query, no hidden state", group="source"),
    _curated("g2_elementwise_from_value", "v Elementwise Gate from the value", "the value gates itself, for each channel", group="source"),
    _curated("g2_headwise_from_key", "v Headwise Gate from the key", "what is read depends on how it is looked for", group="source"),
    _curated("g2_headwise_from_previous", "v Headwise Gate from the previous token", "the value is gated by the token before it", group="source"),
    _curated("g4_headwise_from_query", "q Headwise Gate from the query", "the query sets its own temperature", group="source"),
    _curated("g1_headwise_from_slice", "SDPA Headwise Gate from a slice", "each head reads its own slice of the hidden state alone", group="source"),
    _curated("g1_headwise_from_slice_bias0p25", "Quantizable Transformers gate", "the gate that was made to stop sinks before this paper: a slice of the input, a bias, a quarter open at the start", group="rival", alias="quantizable_gate"),
    _curated("switch_kv_8top8", "Switch kv 8top8", "eight key and value experts a head, all summed: capacity without selection", group="switch", tables={6: 2}),
    _curated("switch_kv_4top4", "Switch kv 4top4", "four key and value experts a head, all summed", group="switch", tables={6: 3}),
    _curated("switch_v_4top4", "Switch v 4top4", "four value experts a head, all summed", group="switch", tables={6: 4}),
    _curated("switch_v_8top2", "Switch v 8top2", "eight value experts a head, two picked by each token", group="switch", tables={6: 5}),
    _curated("switch_v_1top1", "Switch v 1top1", "one value expert: the headwise G2 gate under another name, and the best of the paper's switch heads", group="switch", tables={6: 6}),
    _curated("sandwich_norm", "Sandwich norm", "holds activations down at every sublayer's output: the paper's Table 2 trains it at the LRs where the baseline diverges", group="stabiliser", tables={2: 7}),
    _curated("clip300", "Output clipping at 300", "the cheap stabiliser that does not help in the paper's appendix A.6: is it the outliers that diverge?", group="stabiliser"),
    _curated("clip100", "Output clipping at 100", "the tighter clip of the paper's appendix A.6", group="stabiliser"),
    _curated("softmax1", "Softmax-off-by-one", "an idle head may attend to nothing, at no parameter", group="rival"),
    _curated("sink_logits", "Sink logits (gpt-oss)", "an idle head may attend to a learned nothing, one number per head", group="rival"),
    _curated("kv_bias", "KV bias", "a sink of its own, with a learned key and value, in place of the first token", group="rival"),
    _curated("registers4", "4 registers", "tokens that say nothing take the sink: the first of them, or all?", group="rival"),
    _curated("registers16", "16 registers", "more room for sinks than heads need", group="rival"),
    _curated("sigmoid_attention", "Sigmoid attention", "weights without a sum to one need no sink, and may add up to anything", group="rival"),
    _curated("softpick", "Softpick", "rectified softmax: exact zeros, rows that need not sum to one", group="rival"),
    _curated("clipped_softmax", "Clipped softmax", "exact zeros without extreme scores, the other remedy of the Quantizable Transformers", group="rival"),
    _curated("forgetting", "Forgetting Transformer", "a gate on scores: each token decides how much of the past to forget", group="rival"),
    _curated("differential", "Differential attention", "subtracts a second map: what both pay to a sink cancels", group="rival"),
    _curated("value_residual", "Value residual (ResFormer)", "the first layer's values in every layer: less need to drain values into a sink", group="rival"),
    _curated("exclusive", "Exclusive self attention", "a head cannot repeat its own token's value: what a gate closes on may be that", group="rival"),
)  # fmt: skip


@cache
def registry() -> dict[str, Variant]:
    """Return every listed variant by name: the curated ones first, then the rest of the factorial."""
    listed: dict[str, Variant] = {}
    for variant in (*CURATED, *map(_described, factorial())):
        if variant.group == "factorial" and variant.name in listed:
            continue
        for name in (variant.name, *variant.aliases):
            if name in listed or any(name in other.aliases for other in listed.values()):
                raise ValueError(f"variant name '{name}' is registered twice")
        listed[variant.name] = variant
    return listed


def all_names() -> list[str]:
    """Return every registered name and alias."""
    return [name for variant in registry().values() for name in (variant.name, *variant.aliases)]


def get(name: str) -> Variant:
    """Return the variant that `name` means: a registered name, an alias, a name of the grammar, or parts joined by `+`.

    The result's `name` is canonical, so that two spellings of one variant share their runs.
    Raises UserError with the nearest legal names.
    """
    parts = [_get_part(part.strip()) for part in name.split("+")]
    if len(parts) == 1:
        return parts[0]
    gates: list[GateSpec] = []
    ratios: dict[str, Fraction] = {}
    design = Design()
    for part in parts:
        if part.name == "baseline":
            raise UserError(f"variant '{name}': baseline has nothing to combine; name the other parts alone")
        for gate in part.gates:
            if gate in gates:
                raise UserError(f"variant '{name}': {gate.name} stands twice; each gate may stand once")
            gates.append(gate)
        for key, ratio in part.ratios.items():
            if key in ratios:
                raise UserError(f"variant '{name}': {key} is overridden twice; each override may stand once")
            ratios[key] = ratio
        design = design.merged(part.design, name)
    gates.sort(key=lambda gate: gate.position)
    parts.sort(key=lambda part: (part.gates[0].position, "") if part.gates else ("", part.name))
    scaled = sorted(part.name for part in parts if part.ratios)
    return Variant(
        "+".join([*scaled, *design.words, *(gate.name for gate in gates)]),
        tuple(gates),
        ratios,
        design,
        label=" + ".join(part.label for part in parts),
        group="combined",
        reason="a combination",
    )


def _get_part(name: str) -> Variant:
    listed = registry()
    if name in listed:
        return listed[name]
    for variant in listed.values():
        if name in variant.aliases:
            return variant
    if spelled := _spelled(name):
        return listed.get(spelled.name, spelled)
    raise UserError(f"variant '{name}': unknown; {nearest(name, all_names())} (grammar: {GRAMMAR})")


def is_pattern(word: str) -> bool:
    """Say whether `select` takes `word` for a table, a group or a glob, and not for one variant's name."""
    return word.partition(":")[0] in ("table", "group") or any(letter in word for letter in "*?[")


def select(pattern: str) -> list[Variant]:
    """Return the registered variants that `pattern` names: `table:1`, `group:position`, a glob (`g1_*`), or one name.

    `group:factorial` is all of its cells, those that stand in a group of their own, too.
    """
    import fnmatch

    kind, _, value = pattern.partition(":")
    if kind == "table":
        rows = [v for v in registry().values() if value.isdigit() and int(value) in v.tables]
        if not rows:
            tables = sorted({t for v in registry().values() for t in v.tables})
            raise UserError(f"table '{value}': no variant stands in it; legal: {', '.join(map(str, tables))}")
        return sorted(rows, key=lambda v: v.tables[int(value)])
    if kind == "group" and value:
        cells = {gate.name for gate in factorial()} if value == "factorial" else set()
        found = [v for v in registry().values() if v.group == value or v.name in cells]
        if not found:
            raise UserError(
                f"group '{value}': unknown; {nearest(value, sorted({v.group for v in registry().values()}))}"
            )
        return found
    if any(letter in pattern for letter in "*?["):
        found = [v for v in registry().values() if fnmatch.fnmatchcase(v.name, pattern)]
        if not found:
            raise UserError(f"pattern '{pattern}': matches no registered variant; `gatebench list` shows them")
        return found
    return [get(pattern)]
