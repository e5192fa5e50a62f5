"""The model card (README.md) of an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gatebench import metrics, recipes, variants
from gatebench.config import RunConfig
from gatebench.training.rundir import RunDirectory

STOCK = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)"""
OURS = """import gatebench.hf

model, tokenizer = gatebench.hf.load(folder)"""
REMOTE = """
Read by gatebench: `pip install 'gatebench[hf]'`, then

```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
```
"""
"""What the card of a model that transformers cannot load alone says first."""
HOW = {
    "qwen3": ("A stock Qwen3 (or Qwen3-MoE): transformers loads it without gatebench.", STOCK),
    "released": ("The layout of the paper's released code: queries and gates fused in `q_proj`, per KV head.", OURS),
    "gatebench": ("A gatebench directory; `import gatebench.hf` also registers the Auto classes.", OURS),
}
METRICS = ("avg_ppl", "avg_bpb", "first_token_share", "first_token_floor", "m_act", "gate_mean")
_FRONT = "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- gatebench\n- gated-attention\n---\n"


def imported_card(source: str, variant: str, layout: str) -> str:
    """Return the card of a model that was not trained here."""
    return (
        f"{_front(layout)}\n# {variant}\n\nImported from `{source}` and exported again by gatebench.\n\n{_use(layout)}"
    )


def run_card(run_dir: Path, layout: str) -> str:
    """Return the card of a finished run: variant, recipe, data, metrics, commit, how to load it."""
    directory = RunDirectory(run_dir)
    config, summary = directory.read_config(), directory.read_summary()
    variant = variants.get(config.variant)
    equations = [*variant.design.equations, *(gate.equation for gate in variant.gates)]
    parts = [
        f"{_front(layout)}\n# {variant.name}, {config.recipe}, seed {config.seed}\n",
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


def _front(layout: str) -> str:
    return _FRONT if layout == "qwen3" else _FRONT + REMOTE


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
    keys = [*METRICS, *(key for key in summary if key.startswith("ppl/"))]
    shown = [metrics.get(key) for key in keys if summary.get(key) is not None]
    rows = [f"| {metric.title} | {metric.text(summary[metric.key])} | {metric.meaning} |" for metric in shown]
    return "\n".join(["| metric | value | meaning |", "|---|---:|---|", *rows, ""])
