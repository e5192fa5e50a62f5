"""What cannot be read, or not be represented, is refused in one line; what can be is read however it is stored."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import gatebench.hf
from gatebench.errors import UserError
from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
from gatebench.hf.load import local_directory
from tests.hf.models import wrapped
from tests.model.shapes import token_ids


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
    legal = "a directory, or a hub id as owner/name or owner/name/subfolder"
    assert refusal(tmp_path / "nothing") == f": no such directory; legal: {legal}"
    assert refusal(tmp_path).startswith(": holds no config.json to read; legal: a run directory")
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    assert refusal(tmp_path).startswith(": holds no model.safetensors; legal: weights as safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"short")
    assert refusal(tmp_path).startswith("/model.safetensors: cannot be read")
    (tmp_path / "model.safetensors").unlink()
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


def with_weights_of(stock: Path, to: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """Return a copy of the directory `stock` with its weights changed."""
    folder = changed(stock, to)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("shards", [False, True])
def test_a_whole_file_comes_before_an_index_as_in_transformers(stock: Path, tmp_path: Path, shards: bool) -> None:
    """The index is left from an earlier export, its shards gone or not."""
    folder = changed(stock, tmp_path / "it")
    old = {name: tensor + 1 for name, tensor in load_file(stock / "model.safetensors").items()}
    index = {"metadata": {}, "weight_map": dict.fromkeys(old, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    if shards:
        save_file(old, folder / "model-00001-of-00001.safetensors", metadata={"format": "pt"})
    ids = token_ids()
    with torch.no_grad():
        ours, theirs = gatebench.hf.load(folder)[0](ids), AutoModelForCausalLM.from_pretrained(folder)(ids)
    torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-5, rtol=0)


def test_buffers_that_the_configuration_gives_are_not_read(stock: Path, tmp_path: Path) -> None:
    def add(weights: dict[str, Tensor]) -> None:
        for layer in (0, 1):
            weights[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        weights["model.rotary_emb.cos_cached"] = torch.ones(4, dtype=torch.int64)

    model, _ = gatebench.hf.load(with_weights_of(stock, tmp_path / "it", add))
    expected, _ = gatebench.hf.load(stock)
    assert torch.equal(model(token_ids()).logits, expected(token_ids()).logits)


@torch.no_grad()
@pytest.mark.parametrize("wide", ["norm", "lm_head", "layers.1.", "q_proj"])
def test_parts_in_several_dtypes_run_in_the_one_that_holds_them_all(stock: Path, tmp_path: Path, wide: str) -> None:
    def narrow(weights: dict[str, Tensor]) -> None:
        weights |= {name: tensor if wide in name else tensor.bfloat16() for name, tensor in weights.items()}

    folder = with_weights_of(stock, tmp_path / "it", narrow)
    model, _ = gatebench.hf.load(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.testing.assert_close(model(token_ids()).logits, theirs(token_ids()).logits, atol=1e-5, rtol=0)
    assert model.generate(token_ids(), max_new_tokens=3, do_sample=False).shape[1] == token_ids().shape[1] + 3


def test_half_of_each_kind_needs_fp32(stock: Path, tmp_path: Path) -> None:
    def mix(weights: dict[str, Tensor]) -> None:
        weights |= {name: tensor.half() if "norm" in name else tensor.bfloat16() for name, tensor in weights.items()}

    assert gatebench.hf.load(with_weights_of(stock, tmp_path / "it", mix))[0].dtype == torch.float32


def test_integers_are_no_weights(stock: Path, tmp_path: Path) -> None:
    def quantise(weights: dict[str, Tensor]) -> None:
        weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.int8)

    folder = with_weights_of(stock, tmp_path / "it", quantise)
    assert refusal(folder).startswith(
        ": weight norm.weight is stored as torch.int8; legal: torch.float16, torch.bfloat16"
    )


def hub_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of OWNER/gated in an empty cache of the hub, which alone is asked."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refs = root / "models--OWNER--gated" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("0" * 40, encoding="utf-8")
    return root / "models--OWNER--gated" / "snapshots" / ("0" * 40)


def test_a_sub_folder_of_a_hub_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = hub_cache(tmp_path, monkeypatch)
    for name in ("1B_gate_headwise", "old/1B_baseline"):
        (cached / name).parent.mkdir(parents=True, exist_ok=True)
        gatebench.hf.export(wrapped("g1_headwise" if "gate" in name else "baseline"), None, cached / name)
    for name, variant in (("1B_gate_headwise", "g1_headwise"), ("old/1B_baseline", "baseline")):
        assert gatebench.hf.load(f"OWNER/gated/{name}")[0].config.variant == variant
        identity = {"checkpoint": f"OWNER/gated/{name}", "content": "0" * 40}
        assert Checkpoint(f"OWNER/gated/{name}").identity == identity
    legal = "legal: OWNER/gated/1B_gate_headwise, OWNER/gated/old/1B_baseline"
    assert refusal("OWNER/gated") == f": the hub's repository has no config.json; {legal}"
    assert refusal("OWNER/gated/2B") == f": the hub's repository has no 2B/config.json; {legal}"
    assert refusal("OWNER/gated/../gated").startswith(": no such directory; legal:")


def test_the_files_of_one_folder_alone_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [f"{folder}{name}" for folder in ("", "a/", "a/b/") for name in ("config.json", "model.safetensors")]
    asked: list[set[str]] = []

    def download(repository: str, **words: Any) -> str:
        patterns = {"allow_patterns": words["allow_patterns"], "ignore_patterns": words["ignore_patterns"]}
        asked.append(set(filter_repo_objects(files, **patterns)))
        for name in asked[-1]:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    for word, folder in (("OWNER/m", ""), ("OWNER/m/a", "a/"), ("OWNER/m/a/b", "a/b/")):
        asked.clear()
        assert local_directory(word) == tmp_path / folder
        assert asked[0] == {name for name in files if name.endswith("config.json")}
        assert asked[1] == {f"{folder}config.json", f"{folder}model.safetensors"}


def test_the_hub_s_reason_is_cut_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repository: str, **words: Any) -> str:
        raise OSError("unreachable " * 40)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert refusal("owner/name").endswith("unreachable unreachable ...)")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rope_theta": "abc"}, ": rope_theta='abc': input should be a valid number"),
        ({"hidden_size": "x"}, ": bad config.json (Validation error for field 'hidden_size'"),
        ({"model_type": ["qwen3"]}, ": model_type=['qwen3'] is not one that can be read; legal: gatebench"),
        ({"headwise_attn_output_gate": "no"}, ": headwise_attn_output_gate='no'; legal: true, false"),
        ({"vocab_size": 10**30}, ": "),
        ({"model_type": "gatebench", "variant": 3}, ": config.json: variant=3; legal: a name"),
        (
            {"model_type": "gatebench", "variant": "baseline", "model": "x"},
            ": config.json: model='x'; legal: an object",
        ),
    ],
)
def test_what_another_config_may_hold(words: dict[str, Any], message: str, stock: Path, tmp_path: Path) -> None:
    assert refusal(changed(stock, tmp_path / "it", **words)).startswith(message)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "[1]"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[1]"),
        ("tokenizer.json", "{"),
        ("tokenizer.json", '{"model": 3}'),
        ("generation_config.json", "{"),
    ],
)
def test_broken_files_beside_the_weights(name: str, content: str, stock: Path, tmp_path: Path) -> None:
    folder = changed(stock, tmp_path / "it")
    (folder / name).write_text(content, encoding="utf-8")
    message = refusal(folder)
    assert name.split("_")[0].split(".")[0] in message and " read" in message


@pytest.mark.parametrize("weight_map", [3, {"a": 3}])
def test_a_broken_index(weight_map: Any, stock: Path, tmp_path: Path) -> None:
    folder = changed(stock, tmp_path / "it")
    (folder / "model.safetensors").unlink()
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    assert refusal(folder).startswith("/model.safetensors.index.json: holds no weight_map to read")


def test_weights_are_finite(stock: Path, tmp_path: Path) -> None:
    def spoil(weights: dict[str, Tensor]) -> None:
        weights["model.norm.weight"][0] = float("nan")

    assert refusal(with_weights_of(stock, tmp_path / "it", spoil)) == (
        ": weight norm.weight holds NaN or infinity; legal: finite numbers"
    )
