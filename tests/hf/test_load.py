"""What cannot be read, or not be represented, is refused in one line; what can be is read however it is stored."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import gatebench.hf
from gatebench.errors import UserError
from tests.hf.models import wrapped


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stock Qwen3 directory."""
    folder = tmp_path_factory.mktemp("stock") / "qwen3"
    gatebench.hf.export(wrapped("baseline", tie_embeddings=False), None, folder)
    return folder


def changed(stock: Path, to: Path, **words: Any) -> Path:
    """Return a copy of the directory `stock` with other words in config.json."""
    to.mkdir()
    content = json.loads((stock / "config.json").read_text(encoding="utf-8")) | words
    (to / "config.json").write_text(json.dumps(content), encoding="utf-8")
    (to / "model.safetensors").hardlink_to(stock / "model.safetensors")
    return to


def refusal(source: Path | str) -> str:
    with pytest.raises(UserError) as error:
        gatebench.hf.load(source)
    message = str(error.value)
    assert "\n" not in message and message.startswith(str(source))
    return message.removeprefix(str(source))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"model_type": "llama"}, ": model_type='llama' is not one that can be read; legal: gatebench, qwen3"),
        ({"hidden_act": "gelu"}, ": hidden_act='gelu'; legal: silu"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            ": rope_type='linear' is not supported; legal: default, yarn",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 1}},
            ": rope_parameters.mscale=1 is not supported; legal: rope_type, factor",
        ),
        (
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
            ": layer_types: layer 1 is sliding_attention; legal: full_attention in every layer",
        ),
        ({"attention_bias": True}, ": weight blocks.0.attn.k_proj.bias is missing for baseline"),
        ({"headwise_attn_output_gate": True}, ": weight blocks.0.attn.g1.gates.0.proj.weight is missing"),
        ({"head_dim": 16}, ": weight blocks.0.attn.k_norm.weight has shape (8,), by config.json (16,)"),
        ({"num_hidden_layers": 1}, ": weight blocks.1.attn.k_norm.weight is left over"),
        ({"tie_word_embeddings": True}, ": embedding and output layer differ, but tie_word_embeddings=true"),
        ({"num_key_value_heads": 3}, ": model.n_heads=4 is not a multiple of model.n_kv_heads=3"),
        ({"model_type": "qwen3_next"}, ": layer_types: layer 0 is linear_attention; legal: full_attention"),
        (
            {"model_type": "qwen3_next", "layer_types": ["full_attention"] * 2},
            ": its experts have a shared one, which is not supported",
        ),
        (
            {"model_type": "qwen3_next", "layer_types": ["full_attention"] * 2, "num_experts": 0},
            ": partial_rotary_factor=0.25: part of a head is rotated; legal: 1.0",
        ),
        (
            {"model_type": "qwen3_moe", "decoder_sparse_step": 2},
            ": mlp_only_layers or decoder_sparse_step leave layers",
        ),
        (
            {"model_type": "gatebench", "model": {"n_heads": 4, "depth": 3}},
            ": config.json: key 'depth' is unknown; legal: n_layers",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_refused(words: dict[str, Any], message: str, stock: Path, tmp_path: Path) -> None:
    assert refusal(changed(stock, tmp_path / "it", **words)).startswith(message)


def test_sliding_windows_that_no_layer_uses_are_read(stock: Path, tmp_path: Path) -> None:
    unused = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}
    gatebench.hf.load(changed(stock, tmp_path / "it", **unused))


def test_folders_without_a_model(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nothing") == ": no such directory; legal: a directory, or a hub id as owner/name"
    assert refusal(tmp_path).startswith(": holds no config.json to read; legal: a run directory")
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    assert refusal(tmp_path).startswith(": holds no model.safetensors; legal: weights as safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"short")
    assert refusal(tmp_path).startswith("/model.safetensors: cannot be read")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight', encoding="utf-8")
    assert refusal(tmp_path).startswith("/model.safetensors.index.json: holds no weight_map to read")


def test_a_hub_id_offline_fails_at_once_in_one_line() -> None:
    started = time.monotonic()
    assert refusal("owner/name").startswith(": no such directory, and the hub does not have it or cannot be reached")
    assert time.monotonic() - started < 5


def test_shards_are_read_as_one_file_is(stock: Path, tmp_path: Path) -> None:
    weights = load_file(stock / "model.safetensors")
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (tmp_path / "config.json").write_bytes((stock / "config.json").read_bytes())
    sharded, whole = gatebench.hf.load(tmp_path)[0], gatebench.hf.load(stock)[0]
    for name, tensor in whole.state_dict().items():
        assert torch.equal(sharded.state_dict()[name], tensor), name
