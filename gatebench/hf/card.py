"""The model card (README.md) of an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gatebench import recipes, variants
from gatebench.config import RunConfig
from gatebench.training.rundir import RunDirectory

STOCK = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)"""
OURS = """import gatebench.hf

model, tokenizer = gatebench.hf.load(folder)"""
HOW = {
    "qwen3": ("A stock Qwen3 (or Qwen3-MoE): transformers loads it without gatebench.", STOCK),
    "released": ("The layout of the paper's released code: queries and gates fused in `q_proj`, per KV head.", OURS),
    "gatebench": ("A gatebench directory; `import gatebench.hf` also registers the Auto classes.", OURS),
}
METRICS = (
    ("Avg PPL (held-out, mean over domains)", "avg_ppl", ".2f"),
    ("Avg bits per byte", "avg_bpb", ".4f"),
    ("first-token share", "first_token_share", ".4f"),
    ("its floor, under uniform attention", "first_token_floor", ".4f"),
    ("M-Act", "m_act", ".1f"),
    ("mean gate", "gate_mean", ".3f"),
)
"""What the card calls a metric, its key in summary.json, its format."""
_FRONT = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- gatebench\n- gated-attention\n---\n"


def imported_card(source: str, variant: str, layout: str) -> str:
    """Return the card of a model that was not trained here."""
    return f"{_FRONT}\n# {variant}\n\nImported from `{source}` and exported again by gatebench.\n\n{_use(layout)}"


def run_card(run_dir: Path, layout: str) -> str:
    """Return the card of a finished run: variant, recipe, data, metrics, commit, how to load it."""
    directory = RunDirectory(run_dir)
    config, summary = directory.read_config(), directory.read_summary()
    variant = variants.get(config.variant)
    equations = [*variant.design.equations, *(gate.equation for gate in variant.gates)]
    parts = [
        f"{_FRONT}\n# {variant.name}, {config.recipe}, seed {config.seed}\n",
        f"Trained by gatebench {summary['gatebench_version']} (commit `{summary['git_commit']}`"
        f"{', with uncommitted changes' if summary['git_dirty'] else ''}) as run `{directory.name}`: a small research "
        "model, for comparing attention designs.\n",
        _use(layout),
        "## Variant\n",
        "\n".join(f"    {line}" for line in equations or ["the paper's baseline: no gate"]) + "\n",
        f"{summary['n_params']:,} parameters ({summary['n_params_added']:+,} against the baseline).\n",
        "## Data\n",
        _data(config, summary),
        "## Metrics\n",
        _metrics(summary),
        "## Recipe\n",
        f"```yaml\n{recipes.to_yaml(config).strip()}\n```\n",
    ]
    return "\n".join(parts)


def _use(layout: str) -> str:
    sentence, code = HOW[layout]
    return f"{sentence}\n\n```python\n{code}\n```\n"


def _data(config: RunConfig, summary: dict[str, Any]) -> str:
    bos = "each beginning with BOS" if config.data.bos else "without BOS"
    return (
        f"Corpus `{Path(config.data.corpus).name}` (fingerprint `{summary['corpus_fingerprint']}`), "
        f"{summary['tokens']:,} training tokens in windows of {config.data.seq_len}, {bos}.\n"
    )


def _metrics(summary: dict[str, Any]) -> str:
    rows = [(name, format(summary[key], form)) for name, key, form in METRICS if summary.get(key) is not None]
    rows += [(f"PPL, {key[4:]}", format(value, ".2f")) for key, value in summary.items() if key.startswith("ppl/")]
    return "\n".join(["| metric | value |", "|---|---:|", *(f"| {name} | {value} |" for name, value in rows), ""])
