"""Variants: what an ablation changes. The one file to touch when you add a gate. Imports no torch.

A *variant* is a name, zero or more gates, changes of the design and of the architecture, and where the paper reports it.
Names follow one grammar, so most variants need no entry here at all: a gate (`gatespec.py`), a word of the design
(`design.py`), or parts joined by `+` (`sandwich_norm+g1_headwise`).

To add a gate: use its name. To give it a label, a place in a table or a reason, add one `Variant` to `CURATED`.
Only a new activation (`ACTIVATIONS` of `gatespec.py`, its function in `model/gates.py`) touches a second file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

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

    def at(self, position: str) -> tuple[GateSpec, ...]:
        """Return the gates that sit at `position`, in the order in which they act."""
        return tuple(gate for gate in self.gates if gate.position == position)


def _curated(
    name: str, label: str, reason: str, *, group: str, tables: Mapping[int, int] | None = None, alias: str = ""
) -> Variant:
    gate = parse_gate(name)
    assert gate is not None, name
    return Variant(
        name=name,
        gates=(gate,),
        label=label,
        group=group,
        tables=tables or {},
        aliases=(alias,) if alias else (),
        reason=reason,
    )


CURATED: tuple[Variant, ...] = (
    Variant("baseline", label="Baseline", group="reference", tables={1: 1, 3: 1, 4: 1}, reason="no gate: what everything is compared with"),
    Variant(
        "kv_heads_x2",
        ratios={"n_kv_heads": Fraction(2)},
        label="k x 2",
        group="reference",
        tables={1: 2},
        reason="spends parameters on twice the KV heads instead of a gate (paper: k=8)",
    ),
    Variant(
        "q_heads_x1p5",
        ratios={"n_heads": Fraction(3, 2)},
        label="q x 1.5",
        group="reference",
        tables={1: 3},
        reason="spends parameters on half as many query heads again instead of a gate (paper: q=48)",
    ),
    _curated("g1_elementwise", "SDPA Elementwise G1", "the paper's main gate", group="position", tables={1: 5, 3: 2, 4: 2}),
    _curated("g2_elementwise", "v Elementwise G2", "the gate on values: cheap, depends on the key's token", group="position", tables={1: 6, 3: 3, 4: 5}),
    _curated("g3_elementwise", "k Elementwise G3", "the gate on keys: changes scores, not what is read", group="position", tables={1: 7}),
    _curated("g4_elementwise", "q Elementwise G4", "the gate on queries: changes scores, not what is read", group="position", tables={1: 8}),
    _curated("g5_elementwise", "Dense Output G5", "after W_O: gates, but adds no non-linearity between W_V and W_O", group="position", tables={1: 9}),
    _curated("g1_headwise", "SDPA Headwise G1", "one score per head: most of the gain for almost no parameters", group="granularity", tables={1: 10, 4: 3}),
    _curated("g2_headwise", "v Headwise G2", "one score per KV head and key token", group="granularity", tables={1: 11}),
    _curated("g1_elementwise_shared", "SDPA Head-Shared G1", "do heads need scores of their own?", group="sharing", tables={1: 12, 4: 4}),
    _curated("g2_elementwise_shared", "v Head-Shared G2", "sharing at the value", group="sharing", tables={1: 13}),
    _curated(
        "g1_elementwise_additive_silu",
        "SDPA Additive G1",
        "adds instead of multiplying: non-linear, but cannot close",
        group="mode",
        tables={1: 14, 3: 4},
        alias="g1_additive_silu",
    ),
    _curated("g1_elementwise_silu", "SDPA Elementwise G1 (SiLU)", "unbounded activation in place of the sigmoid", group="activation", tables={1: 15}),
    _curated("g1_rmsnorm", "SDPA GroupNorm", "non-linearity without a gate: per-head RMSNorm of the SDPA output", group="nonlinearity", tables={3: 5}),
    _curated("g1_silu_only", "SDPA SiLU", "non-linearity without a gate or parameters", group="nonlinearity", tables={3: 6}),
    _curated(
        "g1_elementwise_additive_identity",
        "SDPA Additive (identity)",
        "adds a linear map of the input: parameters without a non-linearity",
        group="nonlinearity",
        tables={3: 7},
        alias="g1_additive_identity",
    ),
    _curated(
        "g1_elementwise_input_independent",
        "SDPA Input Independent Gate",
        "one static number per channel: non-linearity nowhere, sparsity without the query",
        group="sparsity",
        tables={4: 6},
        alias="g1_input_independent",
    ),
    _curated("g1_elementwise_ns_sigmoid", "SDPA Elementwise Gate (NS-sigmoid)", "scores held above one half: a gate that cannot be sparse", group="sparsity", tables={4: 7}),
    _curated("g1_headwise_ns_sigmoid", "SDPA Headwise Gate (NS-sigmoid)", "the non-sparse control at one score per head", group="sparsity"),
    _curated("g1_headwise_input_independent", "SDPA Headwise Input Independent Gate", "one static number per head: what 'gated attention' becomes when the input is dropped", group="sparsity"),
    _curated("g2_rmsnorm", "v RMSNorm", "per-head RMSNorm of the value: the norm at the other side of the average", group="nonlinearity"),
    _curated("g2_elementwise_ns_sigmoid", "v Elementwise Gate (NS-sigmoid)", "the non-sparse control at the value", group="sparsity"),
)  # fmt: skip


def _describe(gate: GateSpec) -> Variant:
    """Return an uncurated variant of one gate, with a label and a reason made from its parts."""
    if gate.mode == "transform":
        words = [gate.activation]
    else:
        words = [gate.granularity, "head-shared" if gate.shared else "", gate.mode if gate.mode == "additive" else ""]
        words += [
            gate.activation if gate.activation != "sigmoid" else "",
            "input-independent" if gate.source == "constant" else "",
        ]
    label = f"{POSITIONS[gate.position]} {' '.join(filter(None, words))} {gate.position.upper()}"
    reason = (
        "a cell of the factorial position x granularity x sharing x mode x activation"
        if gate in set(factorial())
        else "named by the grammar"
    )
    return Variant(gate.name, (gate,), label=label[0].upper() + label[1:], reason=reason)


@cache
def registry() -> dict[str, Variant]:
    """Return every listed variant by name: the curated ones first, then the rest of the factorial."""
    listed: dict[str, Variant] = {}
    for variant in (*CURATED, *map(_describe, factorial())):
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
    if gate := parse_gate(name):
        return listed.get(gate.name) or _describe(gate)
    if design := parse_design(name):
        word = design.words[0]
        return listed.get(word) or Variant(
            word, design=design, label=word, group="design", reason="named by the grammar"
        )
    raise UserError(f"variant '{name}': unknown; {nearest(name, all_names())} (grammar: {GRAMMAR})")


def select(pattern: str) -> list[Variant]:
    """Return the registered variants that `pattern` names: `table:1`, `group:position`, a glob (`g1_*`), or one name."""
    import fnmatch

    kind, _, value = pattern.partition(":")
    if kind == "table":
        rows = [v for v in registry().values() if value.isdigit() and int(value) in v.tables]
        if not rows:
            tables = sorted({t for v in registry().values() for t in v.tables})
            raise UserError(f"table '{value}': no variant stands in it; legal: {', '.join(map(str, tables))}")
        return sorted(rows, key=lambda v: v.tables[int(value)])
    if kind == "group" and value:
        found = [v for v in registry().values() if v.group == value]
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
