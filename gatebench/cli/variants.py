"""`gatebench list` and `gatebench show`: what can be run, and what one variant is and costs."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatebench.cli.output import stdout_console
from gatebench.cli.train import Overrides, Recipe
from gatebench.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gatebench.config import ModelConfig, RunConfig
    from gatebench.gatespec import GateSpec
    from gatebench.model.accounting import Accounting
    from gatebench.variants import Variant

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]


def list_variants(
    table: Annotated[int | None, typer.Option(help="Only the rows of this table of the paper, in its order.")] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Only what this names: a glob (`g1_*`), `group:sparsity`, `table:4`, or a name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the registered variants; any other name of the grammar runs as well."""
    from gatebench import variants

    found = list(variants.registry().values()) if pattern is None else variants.select(pattern)
    if table is not None:
        rows = variants.select(f"table:{table}")
        found = rows if pattern is None else [row for row in rows if row in found]
        if not found:
            raise UserError(f"--pattern {pattern}: names nothing in table {table}; drop --pattern to see all of it")
    if as_json:
        typer.echo(json.dumps([_facts(variant) for variant in found], indent=2, ensure_ascii=False))
    else:
        _print_list(found, table)


def show_variant(
    name: Annotated[str, typer.Argument(help="A variant: `gatebench list`, or any name of the grammar.")],
    recipe: Recipe = "quick",
    overrides: Overrides = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show one variant: its equation, where it sits, what it adds under a recipe, and the paper's numbers for it."""
    from gatebench import variants
    from gatebench.model.accounting import account
    from gatebench.recipes import make_run

    variant = variants.get(name)
    config = make_run(recipe, name, 0, overrides)
    facts = _facts(variant) | _costs(variant, config, account(config)) | {"paper": _paper(variant)}
    if as_json:
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        _print_show(facts)


def _facts(variant: Variant) -> dict[str, Any]:
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
    from gatebench.gatespec import POSITIONS

    order = " (after QK-norm, before RoPE)" if gate.position in ("g3", "g4") else ""
    return {
        "name": gate.name,
        "position": gate.position.upper(),
        "site": POSITIONS[gate.position] + order,
        "equation": gate.equation,
        "score_shape": gate.score_shape,
    }


def _costs(variant: Variant, config: RunConfig, costs: Accounting) -> dict[str, Any]:
    """Return what the variant costs under the recipe, beside the baseline."""
    from gatebench.model.accounting import layer_breakdown, layer_params
    from gatebench.variants import get

    model, baseline = costs.model, config.model
    per_layer = layer_params(model, variant) - layer_params(baseline, get("baseline"))
    matched = config.param_match == "ffn"
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
        "notes": _notes(variant, config, costs, matched),
    }


_SHAPE = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "ffn_dim", "vocab_size")


def _expert_shape(model: ModelConfig) -> dict[str, int]:
    """Return the experts of a mixture; nothing for a dense model."""
    return {} if model.moe is None else {key: getattr(model.moe, key) for key in ("n_experts", "top_k", "expert_dim")}


def _notes(variant: Variant, config: RunConfig, costs: Accounting, matched: bool) -> list[str]:
    """Return what a reader of the counts should know before running the variant under this recipe."""
    model, notes = costs.model, []
    for gate in variant.gates:
        heads = "n_heads" if gate.position in ("g1", "g4") else "n_kv_heads"
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
    if matched and costs.added:
        unit = 3 * model.d_model * model.n_layers * (model.moe.n_experts if model.moe else 1)
        notes.append(f"param_match=ffn leaves a residual of {costs.added:+,} parameters (an FFN unit is {unit:,})")
    if any(table in variant.tables for table in (1, 3, 4)):
        notes.append("Tables 1, 3 and 4 report a 15A2B mixture of experts (24 layers, d_model 2048, q=32, k=4, dk=128)")
    return notes


def _paper(variant: Variant) -> list[dict[str, Any]]:
    """Return the paper's rows for the variant."""
    from gatebench.paper import paper_numbers

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


def _print_list(found: list[Variant], table: int | None) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"Table {table} of the paper" if table is not None else None
    grid = Table(title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    for header in ("variant", "what it does", "why", "score", "group", "tables"):
        grid.add_column(header, overflow="fold", no_wrap=header in ("variant", "group"))
    for variant in found:
        does = "; ".join(_effects(variant)) or "softmax attention"
        scores = "; ".join(gate.score_shape for gate in variant.gates)
        tables = " ".join(f"{number}.{row}" for number, row in variant.tables.items())
        grid.add_row(variant.name, does, variant.reason, scores, variant.group, tables)
    stdout_console().print(grid, markup=False)
    Console(stderr=True).print(
        f"{len(found)} variants. `gatebench show NAME` tells more; tables are table.row of the paper.", highlight=False
    )


def _effects(variant: Variant) -> list[str]:
    """Return what the variant changes, a line for each part of its name."""
    ratios = [f"{key} x {float(ratio):g}" for key, ratio in variant.ratios.items()]
    return [*ratios, *variant.design.equations, *(gate.equation for gate in variant.gates)]


def _print_show(facts: dict[str, Any]) -> None:
    from rich.markup import escape

    console = stdout_console()
    console.print(f"[bold]{facts['name']}[/]  {escape(facts['label'])}")
    console.print(escape(facts["reason"]))
    if facts["aliases"]:
        console.print(f"also called {', '.join(facts['aliases'])}")
    console.print()
    for gate in facts["gates"]:
        console.print(f"{gate['position']}, {gate['site']}", markup=False)
        console.print(f"    {gate['equation']}", markup=False)
        console.print(f"    score: {gate['score_shape']}", markup=False)
    for word, equation in facts["design"].items():
        console.print(word, markup=False)
        console.print(f"    {equation}", markup=False)
    for key, ratio in facts["overrides"].items():
        console.print(f"{key} {ratio}", markup=False)
    if facts["gates"] or facts["design"] or facts["overrides"]:
        console.print()
    _print_costs(console, facts)
    for number in dict.fromkeys(row["table"] for row in facts["paper"]):
        console.print()
        console.print(_paper_grid(number, [row for row in facts["paper"] if row["table"] == number]))
    if facts["notes"]:
        console.print()
    for note in facts["notes"]:
        console.print(f"note: {note}", markup=False)


def _paper_grid(number: int, rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    title = f"the paper's Table {number}"
    grid = Table(title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "table"]
    for column in columns:
        grid.add_column(column, overflow="fold", justify="left" if column == "method" else "right")
    for row in rows:
        grid.add_row(*(str(row.get(column, "")) for column in columns))
    return grid


def _print_costs(console: Console, facts: dict[str, Any]) -> None:
    from rich.table import Table

    counts, shape = facts["parameters"], ", ".join(f"{key} {value}" for key, value in facts["model"].items())
    overrides = f" with {', '.join(facts['set'])}" if facts["set"] else ""
    console.print(f"under recipe {facts['recipe']}{overrides}: {shape}", markup=False)
    flops, flops_baseline = facts["train_flops_per_token"], facts["train_flops_per_token_baseline"]
    active = f" ({counts['active']:,} active)" if counts["active"] != counts["total"] else ""
    console.print(
        f"parameters {counts['total']:,}{active}: {counts['added']:+,} ({counts['added_share']:+.2%}) beside the "
        f"baseline's {counts['baseline']:,}, {counts['added_per_layer']:+,} a layer",
        markup=False,
    )
    console.print(
        f"training FLOPs per token {flops:,} ({flops / flops_baseline - 1:+.2%}) at {facts['seq_len']} tokens",
        markup=False,
    )
    if (match := facts["param_match"]) != "none":
        console.print(f"param_match={match}: ffn_dim {facts['ffn_dim_baseline']} -> {facts['ffn_dim']}", markup=False)
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("parameters per layer")
    for header in ("variant", "baseline", "difference"):
        grid.add_column(header, justify="right")
    ours, theirs = counts["per_layer"], counts["per_layer_baseline"]
    for part, number in ours.items():
        other = theirs.get(part, 0)
        grid.add_row(part, f"{number:,}", f"{other:,}", f"{number - other:+,}" if number != other else "")
    total, other = sum(ours.values()), sum(theirs.values())
    grid.add_row("layer", f"{total:,}", f"{other:,}", f"{total - other:+,}" if total != other else "", style="bold")
    console.print()
    console.print(grid)
