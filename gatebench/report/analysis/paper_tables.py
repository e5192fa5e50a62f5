"""The paper's tables, filled with our runs. A table is one :class:`Form` here: its columns, and what tells rows apart.

A study fills a table with its own variants; rows of the paper that it has no run for stand there with ours empty, and
so do quantities that no run has measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from gatebench import metrics
from gatebench.errors import UserError
from gatebench.paper import PaperRow, paper_rows
from gatebench.recipes import load_recipe, recipe_names, settings_of_text
from gatebench.report.analysis.comparison import ComparisonTable, compare, is_synthetic, run_facts
from gatebench.report.analysis.estimate import Estimate, estimate
from gatebench.report.analysis.flags import Flag, comparison_flags, distinct, flag_text
from gatebench.report.analysis.paper_table import Column, PaperTable, VariantRow, order_check, rank_correlation
from gatebench.report.analysis.stats import Verdict
from gatebench.report.text import number, seed_text
from gatebench.variants import get

SINK_ORDER = (
    ("baseline",),
    ("g1_elementwise_input_independent", "g1_elementwise_ns_sigmoid"),
    ("g1_elementwise", "g1_headwise"),
)
"""From the largest first-token share down: no gate; gates that cannot be sparse where the query wants it; those that
can. The paper's Table 4 has this order."""

LENGTHS = ("4k", "8k", "16k", "32k", "64k", "128k")
EXTENSIONS = ("none", "yarn")

ARCHITECTURES = {"1.7B-28L": "dense_1b7_28l", "1.7B-48L": "dense_1b7_48l", "15A2B-MoE": "moe_15a2b"}
"""The paper's models and our recipes of the same shapes."""

BENCHMARKS = {
    "hellaswag": "HellaSwag",
    "mmlu": "MMLU",
    "gsm8k": "GSM8k",
    "humaneval": "HumanEval",
    "ceval": "C-eval",
    "cmmlu": "CMMLU",
}


@dataclass(frozen=True)
class Form:
    """What one table of the paper looks like."""

    title: str
    columns: Callable[[pd.DataFrame], list[Column]]
    setting: Callable[[PaperRow], str] = lambda row: ""
    """The setting of a row of the paper, where its variant alone does not tell it from the others."""
    prepared: Callable[[pd.DataFrame], pd.DataFrame] = lambda runs: runs
    """Runs with the columns that the table needs beside those of ``results.load``."""


def make(
    table: int,
    frame: pd.DataFrame,
    baseline: str,
    variants: Sequence[str],
    labels: Mapping[str, str] | None = None,
    compared: ComparisonTable | None = None,
) -> PaperTable:
    """Fill the paper's table with the runs of ``baseline`` and ``variants`` in ``frame`` (``results.load``).

    A column ``setting`` in ``frame`` makes a row a setting and variant; without it all runs are under one. Rows come in
    the paper's order, then those that its table lacks in the order of ``variants``. ``labels`` gives the words to print
    for a variant's name; ``compared`` is the comparison of the same runs, where it is made already.

    Raises :class:`UserError` for a table that is not in the paper, a variant without a finished
    run, and two runs of one variant and setting at one seed.
    """
    check_available([table])
    if table == 7:
        return architectures(sorted(set(frame["recipe"])))
    names = [baseline, *(name for name in variants if name != baseline)]
    runs = frame[frame["variant"].isin(names)]
    if "setting" not in runs:
        runs = runs.assign(setting="")
    measured = set(runs["variant"])
    if missing := [name for name in names if name not in measured]:
        raise UserError(f"table {table}: no finished run of {', '.join(missing)}; legal: variants that have some")
    twice = runs[runs.duplicated(["variant", "seed", "setting"])]
    if len(twice):
        first = twice.iloc[0]
        raise UserError(f"table {table}: several runs of {first['variant']} at seed {first['seed']}; legal: one")
    form = FORMS[table]
    facts = facts_of(runs, baseline)
    notes = tuple(run_notes(runs, baseline, names, compared)) if runs["setting"].nunique() == 1 else ()
    runs = form.prepared(runs)
    columns = form.columns(runs)
    rows = _rows(table, form, runs, names, labels or {}, columns, compared)
    found = PaperTable(table, form.title, facts, baseline, tuple(columns), tuple(rows), notes=notes)
    return _with_ranks(found, runs) if table == 4 else found


def _with_ranks(found: PaperTable, runs: pd.DataFrame) -> PaperTable:
    """Table 4 with its rank correlations and order, in which two rows of one model count once."""
    score, m_act, share = (found.column(key) for key in ("gate_mean", "m_act", "first_token_share"))
    present = [row for row in found.rows if row.ours[share.key].n]
    once = distinct(runs, [row.variant for row in present])
    twins = [row.variant for row in present if row.variant not in once]
    text = "has the loss curves of a row above, and counts once with it in rank correlations"
    ranked = [row for row in found.rows if row.variant in once]
    return replace(
        found,
        correlations=tuple(rank_correlation(ranked, score, other) for other in (share, m_act)),
        order=order_check(present, share, SINK_ORDER),
        notes=(*found.notes, *(f"{name} {text}" for name in twins)),
    )


def check_available(tables: Sequence[int]) -> None:
    """Raise :class:`UserError` for a table that the paper does not have."""
    legal = sorted({*FORMS, 7})
    if unknown := [table for table in tables if table not in legal]:
        raise UserError(f"table {unknown[0]}: not in the paper; legal: {', '.join(map(str, legal))}")


def with_settings(table: int) -> bool:
    """Whether one table shows all settings of a study, as the paper's Table 2 does."""
    return table == 2


def architectures(recipes: Sequence[str] = ()) -> PaperTable:
    """Table 7: the shapes of the paper's models beside those of our recipes, then those of ``recipes``."""
    columns = [
        Column(key, title, "yes or no" if key in YES_OR_NO else "size", key, interval=False)
        for key, title in SHAPES.items()
    ]
    shipped = recipe_names()
    printed = {row.method: row.printed for row in paper_rows(7)}
    models = {recipe: model for model, recipe in ARCHITECTURES.items()}
    rows: list[VariantRow] = []
    for recipe in [*models, *(name for name in recipes if name not in models and name in shipped)]:
        model = models.get(recipe, "")
        ours = _architecture(recipe) if recipe in shipped else {}
        rows.append(
            VariantRow(
                variant=recipe,
                label=f"{model} ({recipe})" if model and ours else model or recipe,
                paper_row=len(rows) + 1 if model else None,
                ours={key: Estimate({0: ours[key]} if key in ours else {}) for key in SHAPES},
                theirs={key: value for key, value in printed.get(model, {}).items() if key in SHAPES},
            )
        )
    return PaperTable(7, "Model architectures", {}, "", tuple(columns), tuple(rows))


SHAPES = {
    "layers": "layers",
    "q_heads": "query heads",
    "kv_heads": "KV heads",
    "head_dim": "head dim",
    "hidden_size": "hidden size",
    "ffn_size": "FFN size",
    "experts": "experts",
    "top_k": "top k",
    "tie_embedding": "tied embedding",
    "qk_norm": "QK-norm",
}
"""Columns of Table 7, ours and the paper's, and their titles."""
YES_OR_NO = ("tie_embedding", "qk_norm")


def _architecture(recipe: str) -> dict[str, float]:
    model = load_recipe(recipe).model
    shape = {
        "layers": model.n_layers,
        "q_heads": model.n_heads,
        "kv_heads": model.n_kv_heads,
        "head_dim": model.head_dim,
        "hidden_size": model.d_model,
        "ffn_size": model.ffn_dim if model.moe is None else model.moe.expert_dim,
        "tie_embedding": model.tie_embeddings,
        "qk_norm": model.qk_norm,
    }
    if model.moe is not None:
        shape |= {"experts": model.moe.n_experts, "top_k": model.moe.top_k}
    return {key: float(value) for key, value in shape.items()}


def _rows(
    table: int,
    form: Form,
    runs: pd.DataFrame,
    names: Sequence[str],
    labels: Mapping[str, str],
    columns: Sequence[Column],
    compared: ComparisonTable | None,
) -> list[VariantRow]:
    """The paper's rows in its order, ours beside them where we have some, then ours alone."""
    own = {(str(name), str(setting)): found for (setting, name), found in runs.groupby(["setting", "variant"])}
    settings = list(dict.fromkeys(runs["setting"]))
    ours_alone = [(name, setting) for setting in settings for name in names if (name, setting) in own]
    verdicts = {}
    for setting in settings:
        found = compared or _compared(runs[runs["setting"] == setting], names)
        verdicts[setting] = _verdicts(found, columns) if found else {}
    printed = {(_canonical(row), form.setting(row)): row for row in paper_rows(table)}
    rows = []
    for key in dict.fromkeys([*printed, *ours_alone]):
        (name, setting), theirs, measured = key, printed.get(key), own.get(key)
        paper = {} if theirs is None else theirs.printed
        rows.append(
            VariantRow(
                variant=name,
                label=labels.get(name) or (theirs.method if theirs else name),
                paper_row=None if theirs is None else theirs.row,
                ours={c.key: Estimate({}) if measured is None else estimate(measured, c.key) for c in columns},
                theirs={c.paper: paper[c.paper] for c in columns if c.paper in paper},
                setting=setting,
                verdicts=verdicts.get(setting, {}).get(name, {}),
            )
        )
    return rows


def _compared(runs: pd.DataFrame, names: Sequence[str]) -> ComparisonTable | None:
    """The comparison with the baseline; None where it or every other variant has no run."""
    measured = set(runs["variant"])
    present = [name for name in names if name in measured]
    return compare(runs, names[0], present[1:]) if present[:1] == [names[0]] and len(present) > 1 else None


def _verdicts(compared: ComparisonTable, columns: Sequence[Column]) -> dict[str, dict[str, Verdict]]:
    """By variant and column, as the comparison with the baseline gives them."""
    found: dict[str, dict[str, Verdict]] = {}
    for item in compared.variants:
        by_column = {row.metric.key: row.comparison.verdict for row in item.rows}
        found[item.name] = {c.key: verdict for c in columns if (verdict := by_column.get(c.key))}
    return found


def facts_of(runs: pd.DataFrame, baseline: str) -> dict[str, object]:
    """What a header states of runs under one ``setting`` or several, and of the baseline among them."""
    base = runs[runs["variant"] == baseline]
    facts = run_facts(runs, base)
    if runs["setting"].nunique() > 1:
        sizes = sorted({int(size) for size in base["n_params"]})
        words = [settings_of_text(text).words for text in runs["overrides"].unique()]
        common = " ".join(word for word in words[0] if all(word in others for others in words))
        facts |= {"overrides": common, "n_params": sizes[0] if len(sizes) == 1 else sizes}
    return facts


def _canonical(row: PaperRow) -> str:
    return get(row.variant).name if row.variant else ""


def run_notes(
    runs: pd.DataFrame, baseline: str, names: Sequence[str], compared: ComparisonTable | None = None
) -> list[str]:
    """Variants that lack a seed, and what blocks a comparison with the baseline (``compared``, where it is made)."""
    known = {} if compared is None else {item.name: item.flags for item in compared.variants}
    seeds = sorted({int(seed) for seed in runs["seed"]})
    flags: dict[tuple[str, str], Flag] = {}
    notes = []
    for name in names:
        own = runs[runs["variant"] == name]
        if lacking := sorted(set(seeds) - set(map(int, own["seed"]))):
            notes.append(f"{name} has no run at {seed_text(lacking)}")
        if name == baseline:
            continue
        for flag in known.get(name) or comparison_flags(runs[runs["variant"] == baseline], own, name):
            if flag.blocking:
                flags.setdefault((flag.code, flag_text(flag)), flag)
    return [*notes, *(text for _, text in flags)]


def _added(runs: pd.DataFrame) -> pd.DataFrame:
    """Parameters added to the baseline, in millions, as the paper's Tables 1 and 6 have them."""
    return runs.assign(added_param_m=runs["n_params_added"] / 1e6)


def _by_extension(runs: pd.DataFrame) -> pd.DataFrame:
    """Each run twice: its RULER scores at the lengths it was trained for, and after YaRN (columns ``ruler_yarn/``)."""
    found = []
    for extension, prefix in zip(EXTENSIONS, ("ruler", "ruler_yarn"), strict=True):
        scores = {f"ruler/{n}": runs.get(f"{prefix}/{n}", pd.Series(np.nan, runs.index)) for n in _ruler_lengths(runs)}
        found.append(runs.assign(setting=extension, **scores))
    return pd.concat(found, ignore_index=True)


def _ruler_lengths(runs: pd.DataFrame) -> list[str]:
    """The paper's lengths and those of ours, in tokens, the shortest first."""
    ours = {str(name).partition("/")[2] for name in runs.columns if str(name).startswith(("ruler/", "ruler_yarn/"))}
    found = {length: int(length.removesuffix("k")) * (1024 if length.endswith("k") else 1)
             for length in {*LENGTHS, *ours} if not length.endswith("x")}  # fmt: skip
    return sorted(found, key=lambda length: found[length])


def _column(key: str, title: str = "", **how: Any) -> Column:
    metric = metrics.get(key)
    return Column(key, title or metric.title, metric.kind, metric.paper, **how)


_ADDED = Column("added_param_m", "Added\nparams (M)", "millions", "added_param_m", interval=False)
_PPL = _column("avg_ppl", best="lowest")


def _score(key: str, title: str, paper: str) -> Column:
    """A benchmark's score in percent."""
    return Column(key, title, "points", paper, decimals=2, best="highest")


def _benchmarks(*names: str) -> list[Column]:
    return [_score(f"bench/{name}", BENCHMARKS[name], name) for name in names]


def _table4_columns(runs: pd.DataFrame) -> list[Column]:
    """Gate score, M-Act, first-token share, and perplexity; on synthetic data the excess loss stands for the last."""
    floors = sorted({number(value, "floor") for value in runs["first_token_floor"].dropna()})
    floor = f"\n(floor {' or '.join(floors)})" if floors else ""
    columns = [
        _column("gate_mean", "Gate score"),
        _column("m_act", decimals=0),
        _column("first_token_share", f"First-token share{floor}", decimals=3),
        _column("first_token_excess", "times\nfloor", interval=False),
        _column("first_token_floor", interval=False, shown=False),
    ]
    if is_synthetic(runs):
        loss = Column("excess_loss", "Excess loss\n(nats)", "nats", _PPL.paper, "paper\nAvg PPL", best="lowest")
        return [*columns, loss]
    return [*columns, _PPL, *_benchmarks("hellaswag", "mmlu", "gsm8k")]


FORMS: Mapping[int, Form] = {
    1: Form(
        "Gating positions and forms",
        lambda runs: [_ADDED, _PPL, *_benchmarks("hellaswag", "mmlu", "gsm8k", "ceval")],
        prepared=_added,
    ),
    2: Form(
        "Dense models under larger learning rates and batches",
        lambda runs: [_PPL, *_benchmarks("humaneval", "mmlu", "gsm8k", "hellaswag", "ceval", "cmmlu")],
        setting=lambda row: f"{row.printed['layers']}l-{row.printed['tokens']}-{row.printed['max_lr']}".lower(),
    ),
    3: Form(
        "Non-linearity between the value and the output projection",
        lambda runs: [_PPL, *_benchmarks("hellaswag", "mmlu", "gsm8k", "ceval")],
    ),
    4: Form("Sparsity and attention sinks", _table4_columns),
    5: Form(
        "Context length extension (RULER)",
        lambda runs: [_score(f"ruler/{n}", n, n) for n in _ruler_lengths(runs)],
        setting=lambda row: row.printed["extension"],
        prepared=_by_extension,
    ),
    6: Form(
        "Switch heads",
        lambda runs: [_ADDED, _PPL, *_benchmarks("mmlu", "gsm8k", "hellaswag", "ceval")],
        prepared=_added,
    ),
}
"""By the number of the table in the paper. Table 7 has no runs: :func:`architectures`."""
