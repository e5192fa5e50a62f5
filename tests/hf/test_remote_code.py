"""What an exported model says to a transformers that has no gatebench, or an older release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import gatebench.hf
from gatebench.hf.card import imported_card
from tests.hf.models import wrapped
from tests.model.shapes import token_ids

LOAD = """
import sys, torch
{blocked}
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({folder!r}, trust_remote_code=True)
torch.save(model(torch.load({folder!r} + "/ids.pt")).logits.detach(), {folder!r} + "/logits.pt")
print(type(model).__name__, model.config.variant, model.training)
model.save_pretrained({folder!r} + "/again")
"""
BLOCK = "sys.modules['gatebench'] = None"


def load_in_a_process(folder: Path, blocked: str = "") -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "HF_MODULES_CACHE": str(folder / "modules")}
    script = LOAD.format(folder=str(folder), blocked=blocked)
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "layout"), [("g1_headwise", "released"), ("g2_headwise", "gatebench")])
def test_trust_remote_code_loads_the_model_or_says_what_to_install(variant: str, layout: str, tmp_path: Path) -> None:
    model = wrapped(variant)
    assert gatebench.hf.export(model, None, tmp_path / "out") == layout
    torch.save(token_ids(), tmp_path / "out" / "ids.pt")
    missing = load_in_a_process(tmp_path / "out", BLOCK)
    last = missing.stderr.strip().splitlines()[-1]
    assert missing.returncode == 1 and last.startswith("ImportError: this model is read by gatebench: pip install")
    found = load_in_a_process(tmp_path / "out")
    assert found.stdout.split() == ["GatebenchForCausalLM", variant, "False"], found.stderr
    logits = torch.load(tmp_path / "out" / "logits.pt")
    torch.testing.assert_close(logits, model(token_ids()).logits, atol=1e-5, rtol=0)
    again, _ = gatebench.hf.load(tmp_path / "out" / "again")
    assert again.config.variant == variant


def test_the_card_says_first_what_to_install() -> None:
    for layout in ("released", "gatebench"):
        body = imported_card("x", "g1_headwise", layout).split("---\n")[2].strip()
        assert body.startswith("Read by gatebench: `pip install 'gatebench[hf]'`") and "trust_remote_code=True" in body
    assert "pip install" not in imported_card("x", "baseline", "qwen3")


def test_a_stock_model_needs_no_code(tmp_path: Path) -> None:
    assert gatebench.hf.export(wrapped("baseline"), None, tmp_path / "out") == "qwen3"
    assert "auto_map" not in json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert not list((tmp_path / "out").glob("*.py"))


def test_the_tokenizer_s_class_is_one_that_transformers_4_has(tmp_path: Path) -> None:
    letters = {letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=["<extra>"])
    gatebench.hf.export(wrapped("baseline"), fast, tmp_path / "out")
    content = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert content["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert isinstance(content.get("extra_special_tokens", {}), dict)
    assert content.get("additional_special_tokens", ["<extra>"]) == ["<extra>"]
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert again("a<extra>b").input_ids == fast("a<extra>b").input_ids


def test_yarn_s_factor_is_max_position_embeddings_over_the_original(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    model = wrapped("baseline", rope_scaling=scaling)
    gatebench.hf.export(model, None, tmp_path / "out")
    content = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert content["max_position_embeddings"] == 512 and content["rope_scaling"]["factor"] == 4.0
    again, _ = gatebench.hf.load(tmp_path / "out")
    assert torch.equal(again(token_ids()).logits, model(token_ids()).logits)
