"""The released code's outputs, from a directory in its layout; the directory written again is the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import gatebench.hf
from gatebench.evaluation.probes.sinks import attention_maps
from tests.model.test_released_code import GOLDEN, VARIANT

kinds = pytest.mark.parametrize("kind", VARIANT)


@pytest.fixture
def golden(kind: str, tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """A checkpoint directory as the released ones are, and the outputs."""
    with np.load(GOLDEN / f"official_a_{kind}.npz") as file:
        config = json.loads(str(file["config"]))
        arrays = {key: torch.from_numpy(file[key]) for key in file.files if key != "config"}
    folder = tmp_path / "released"
    folder.mkdir()
    named = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **config}
    (folder / "config.json").write_text(json.dumps(named), encoding="utf-8")
    weights = {key.removeprefix("w."): value for key, value in arrays.items() if key.startswith("w.")}
    del weights["lm_head.weight"]  # tied: no file holds it
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, arrays


@kinds
@torch.no_grad()
def test_logits(kind: str, golden: tuple[Path, dict[str, Tensor]]) -> None:
    folder, expected = golden
    model, tokenizer = gatebench.hf.load(folder)
    assert model.config.variant == VARIANT[kind] and tokenizer is None
    torch.testing.assert_close(model(expected["ids"]).logits, expected["logits"], atol=1e-5, rtol=0)


@kinds
def test_attention_maps(kind: str, golden: tuple[Path, dict[str, Tensor]]) -> None:
    folder, expected = golden
    model, _ = gatebench.hf.load(folder)
    for row, ids in enumerate(expected["ids"].numpy()):
        maps = attention_maps(model.transformer, ids[None], (0, 1), device=torch.device("cpu"), length=19)
        for layer in (0, 1):
            np.testing.assert_allclose(maps[layer], expected[f"attn.{layer}"][row], atol=1e-5, rtol=0)


@kinds
def test_exported_again_the_weights_are_the_same_bytes(kind: str, golden: tuple[Path, dict[str, Tensor]]) -> None:
    folder, _ = golden
    model, tokenizer = gatebench.hf.load(folder)
    again = folder.parent / "again"
    gatebench.hf.export(model, tokenizer, again, layout="released")
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    ours, theirs = (json.loads((path / "config.json").read_text(encoding="utf-8")) for path in (again, folder))
    assert {key: ours[key] for key in theirs} == theirs
