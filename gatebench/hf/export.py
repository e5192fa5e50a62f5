"""From a model to a directory that others load."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import save_torch_state_dict
from transformers import PreTrainedTokenizerBase

from gatebench.errors import UserError
from gatebench.hf import foreign
from gatebench.hf.layouts import QWEN3, RELEASED, Layout, to_layout
from gatebench.hf.modeling import GatebenchForCausalLM

FOREIGN = {layout.name: layout for layout in (QWEN3, RELEASED)}
LAYOUTS = ("auto", "gatebench", *FOREIGN)
REMOTE = "modeling_gatebench.py"
AUTO_MAP = {
    "AutoConfig": "modeling_gatebench.GatebenchConfig",
    "AutoModelForCausalLM": "modeling_gatebench.GatebenchForCausalLM",
}
"""Which classes `trust_remote_code=True` takes from `REMOTE`, a copy of beside_weights.py."""


def choose_layout(model: GatebenchForCausalLM, layout: str) -> str:
    """Return the layout to write; `auto` is the first of qwen3, released and gatebench that holds the model.

    Raises UserError for a name that is none, and for a layout that cannot hold the model.
    """
    if layout not in LAYOUTS:
        raise UserError(f"--layout {layout}: unknown; legal: {', '.join(LAYOUTS)}")
    shape, variant = model.transformer.config, model.transformer.variant
    held = [name for name, other in FOREIGN.items() if foreign.why_not(other, shape, variant) is None]
    held.append("gatebench")
    if layout == "auto":
        return held[0]
    if layout not in held:
        why = foreign.why_not(FOREIGN[layout], shape, variant)
        raise UserError(f"--layout {layout}: cannot hold {variant.name} ({why}); legal: {', '.join(held)}")
    return layout


def export(
    model: GatebenchForCausalLM,
    tokenizer: PreTrainedTokenizerBase | None,
    to: str | Path,
    *,
    layout: str = "auto",
    card: str = "",
) -> str:
    """Write weights, config, tokenizer and model card into the directory `to`; return the name of the layout.

    `qwen3` is a stock Qwen3 or Qwen3-MoE, which transformers loads without gatebench; `released` is what the released
    code reads; `gatebench` holds any variant. The latter two carry what `trust_remote_code=True` runs. Weights keep
    their dtype. The directory appears whole or not at all.

    Raises:
        UserError: a layout that cannot hold the model; a `to` that is a file, holds files, or cannot be written.
    """
    name = choose_layout(model, layout)
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"--to {to}: is there and not an empty directory; legal: a new one")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{to.name}-", dir=to.parent) as scratch:
            whole = Path(scratch) / to.name
            whole.mkdir()
            _write(model, whole, name)
            for weights in whole.glob("*.safetensors"):  # which are written for the owner alone
                shutil.copymode(whole / "config.json", weights)
            if tokenizer is not None:
                _write_tokenizer(tokenizer, whole)
            if card:
                (whole / "README.md").write_text(card, encoding="utf-8", newline="\n")
            os.replace(whole, to)
    except OSError as error:
        raise UserError(f"--to {to}: cannot be written ({error.strerror or error}); legal: another directory") from None
    return name


def _write(model: GatebenchForCausalLM, folder: Path, layout: str) -> None:
    if layout == "gatebench":
        model.save_pretrained(folder)
    else:
        _write_foreign(model, folder, FOREIGN[layout])
    if layout != QWEN3.name:
        shutil.copyfile(Path(__file__).with_name("beside_weights.py"), folder / REMOTE)
        _change_json(folder / "config.json", auto_map=AUTO_MAP)


def _write_foreign(model: GatebenchForCausalLM, folder: Path, layout: Layout) -> None:
    shape, variant = model.transformer.config, model.transformer.variant
    content = foreign.write(shape, variant, layout, str(model.dtype).removeprefix("torch."))
    tokens = {key: getattr(model.config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "config.json").write_text(json.dumps(content | tokens, indent=2) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(folder)
    weights = to_layout(model.transformer.state_dict(), shape, layout)
    save_torch_state_dict(weights, folder, metadata={"format": "pt"})


def _write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer by the name of its class that transformers 4, which the released code runs under, has too."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("tokenizer_class") == "TokenizersBackend":
        _change_json(path, tokenizer_class="PreTrainedTokenizerFast")
    if isinstance(extra := content.get("extra_special_tokens"), list):  # to transformers 4 a mapping
        _change_json(path, additional_special_tokens=extra, extra_special_tokens={})


def _change_json(path: Path, **words: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) | words
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
