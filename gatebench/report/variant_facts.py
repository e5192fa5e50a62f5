"""What a variant is, and what it costs under a recipe, as plain values (`gatebench list --json`, `gatebench show`)."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from gatebench.config import ModelConfig, RunConfig
from gatebench.gatespec import POSITIONS, QUERY_SITES, GateSpec
from gatebench.model.accounting import Accounting, account, layer_breakdown, layer_params
from gatebench.paper import paper_numbers
from gatebench.variants import Variant, get


def variant_facts(variant: Variant) -> dict[str, Any]:
    """Return what a variant is, whatever the recipe."""
    return {
        "name": variant.name,
        "label": variant.label,
        "group": variant.group,
        "reason": variant.reason,
        "aliases": list(variant.aliases),
        "tables": {str(table): row for table, row in variant.tables.items()},
        "gates": [_gate_facts(gate) for gate in variant.gates],
        "design": dict(zip(variant.design.words, variant.design.equations, strict=True)),
        "overrides": {key: f"x {float(ratio):g}" for key, ratio in variant.ratios.items()},
    }


def _gate_facts(gate: GateSpec) -> dict[str, Any]:
    order = " (after QK-norm, before RoPE)" if gate.position in ("g3", "g4") else ""
    return {
        "name": gate.name,
        "position": gate.position.upper(),
        "site": POSITIONS[gate.position] + order,
        "equation": gate.equation,
        "score_shape": gate.score_shape,
    }


def under_recipe(config: RunConfig) -> dict[str, Any]:
    """Return what a run's variant costs under its recipe beside the baseline, and the paper's rows for it."""
    variant, costs = config.spec, account(config)
    model, baseline = costs.model, config.model
    per_layer = layer_params(model, variant) - layer_params(baseline, get("baseline"))
    return {
        "recipe": config.recipe,
        "set": config.overrides,
        "model": {key: getattr(model, key) for key in _SHAPE} | _expert_shape(model),
        "parameters": {
            "total": costs.n_params,
            "active": costs.n_params_active,
            "baseline": costs.n_params_baseline,
            "added": costs.added,
            "added_per_layer": per_layer,
            "added_share": costs.added / costs.n_params_baseline,
            "per_layer": layer_breakdown(model, variant),
            "per_layer_baseline": layer_breakdown(baseline, get("baseline")),
        },
        "param_match": config.param_match,
        "ffn_dim": model.ffn_dim,
        "ffn_dim_baseline": baseline.ffn_dim,
        "train_flops_per_token": costs.flops_per_token,
        "train_flops_per_token_baseline": costs.flops_per_token_baseline,
        "seq_len": config.data.seq_len,
        "notes": _notes(config, costs),
        "paper": _paper(variant),
    }


_SHAPE = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "ffn_dim", "vocab_size")


def _expert_shape(model: ModelConfig) -> dict[str, int]:
    """Return the experts of a mixture; nothing for a dense model."""
    return {} if model.moe is None else {key: getattr(model.moe, key) for key in ("n_experts", "top_k", "expert_dim")}


def _notes(config: RunConfig, costs: Accounting) -> list[str]:
    """Return what a reader of the counts should know before running the variant under this recipe."""
    variant, model, notes = config.spec, costs.model, []
    for gate in variant.gates:
        heads = "n_heads" if gate.position in QUERY_SITES else "n_kv_heads"
        if gate.shared and getattr(model, heads) == 1:
            notes.append(f"{gate.name}: shared equals specific here: {heads}=1")
        if gate.activation == "rmsnorm" and gate.position in ("g3", "g4") and model.qk_norm:
            notes.append(f"{gate.name}: acts after QK-norm, so it starts as the identity; only the gain is new")
        if gate.activation == "relu" and model.gate_init_std == 0:
            notes.append(f"{gate.name}: gate_init_std=0 gives ReLU a zero gradient; the gate will never move")
        if gate.activation == "hard" and model.gate_init_std == 0:
            notes.append(f"{gate.name}: gate_init_std=0 starts with every gate closed")
    if held := variant.held_closed(zero_matrices=model.gate_init_std == 0):
        names = " and ".join(gate.name for gate in held)
        notes.append(f"{names}: start at 0 and multiply one another, so that no gradient ever moves them")
    notes += variant.design.costs
    for key in variant.ratios:
        notes.append(f"{key}: {attrgetter(key)(config.model)} -> {attrgetter(key)(model)}")
    if config.param_match == "ffn" and costs.added:
        unit = 3 * model.d_model * model.n_layers * (model.moe.n_experts if model.moe else 1)
        notes.append(f"param_match=ffn leaves a residual of {costs.added:+,} parameters (an FFN unit is {unit:,})")
    if any(table in variant.tables for table in (1, 3, 4)):
        notes.append("Tables 1, 3 and 4 report a 15A2B mixture of experts (24 layers, d_model 2048, q=32, k=4, dk=128)")
    return notes


def _paper(variant: Variant) -> list[dict[str, Any]]:
    """Return the paper's rows for the variant."""
    found = paper_numbers(variant.name, variant.aliases)
    return [
        {"table": row.table, "row": row.row, "method": row.method, **_printed(row.printed)}
        for rows in found.values()
        for row in rows
    ]


def _printed(cells: dict[str, str]) -> dict[str, str]:
    """Return a row's cells as printed, without those that only name it."""
    naming = ("row", "method", "variant", "group")
    return {key: text for key, text in cells.items() if key not in naming and (key, text) != ("diverged", "false")}
