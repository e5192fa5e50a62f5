"""From a run, a directory or a hub id to a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from gatebench.config import ModelConfig
from gatebench.data.backcopy import BigramBackcopy
from gatebench.data.reading import open_run_data
from gatebench.errors import UserError
from gatebench.hf import foreign
from gatebench.hf.config import GatebenchConfig
from gatebench.hf.layouts import from_layout
from gatebench.hf.modeling import GatebenchForCausalLM
from gatebench.hf.tokenizer import corpus_tokenizer
from gatebench.model.accounting import account
from gatebench.training.rundir import RunDirectory, read_json
from gatebench.validation import one_line

Loaded = tuple[GatebenchForCausalLM, PreTrainedTokenizerBase | None]
PREFIX = "transformer."
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_NEEDED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def load(source: str | Path) -> Loaded:
    """Return the model of `source`, in eval mode on the CPU in the dtype it is stored in, and its tokenizer, if any.

    `source` is a run directory, a checkpoint of one of `foreign.LEGAL`, or the hub id of one, which is downloaded (or
    found in the hub's cache).

    Raises:
        UserError: nothing there; a model that we have no equal of; weights that are missing, left over or misshapen.
    """
    path = local_directory(source)
    if RunDirectory(path).config.is_file():
        return from_run(path)
    content = read_json(path / "config.json")
    if content is None:
        raise UserError(
            f"{source}: holds no config.json to read; legal: a run directory, or a checkpoint of {foreign.LEGAL}"
        )
    weights = read_weights(path)
    if content.get("model_type") == GatebenchConfig.model_type:
        config = _own_config(content, str(source))
        ours = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    else:
        read = foreign.read(content, str(source))
        tokens: dict[str, Any] = {key: content.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        config = GatebenchConfig(variant=read.variant, model=read.shape.model_dump(mode="json"), **tokens)
        try:
            ours = from_layout(weights, read.shape, read.layout)
        except (RuntimeError, KeyError) as error:
            raise UserError(f"{source}: its weights do not have the shapes that config.json says ({error})") from None
    model = with_weights(config, ours, str(source))
    if (path / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(path)
    return model, _tokenizer(path)


def from_run(run_dir: str | Path) -> Loaded:
    """Return the trained model of a run directory, in eval mode on the CPU in fp32, and the tokenizer of its corpus.

    None in the tokenizer's place for a synthetic corpus. Raises UserError for a folder that is no finished run, and for
    a corpus that is missing or was rebuilt since.
    """
    directory = RunDirectory(Path(run_dir))
    run = directory.read_config()
    directory.check_trained()
    corpus = open_run_data(run)
    tokenizer = None
    tokens: dict[str, Any] = {"bos_token_id": corpus.bos_id if run.data.bos else None}
    if not isinstance(corpus, BigramBackcopy):
        tokens |= {"eos_token_id": corpus.eos_id, "pad_token_id": corpus.eos_id}
        tokenizer = corpus_tokenizer(corpus, bos=run.data.bos, length=run.data.seq_len)
    shape = account(run).model
    config = GatebenchConfig(variant=run.variant, model=shape.model_dump(mode="json"), **tokens)
    return with_weights(config, _read_file(directory.weights), str(run_dir)), tokenizer


def with_weights(config: GatebenchConfig, ours: dict[str, Tensor], source: str) -> GatebenchForCausalLM:
    """Return the model of `config` with `Transformer`'s state dict `ours`, which it shares memory with.

    Raises UserError, naming `source` and a parameter, where the two do not fit.
    """
    with torch.device("meta"):
        model = GatebenchForCausalLM(config)
    ours = _tied(dict(ours), model.transformer.config, source)
    expected = model.transformer.state_dict()
    for name in sorted(ours.keys() ^ expected.keys()):
        problem = "is missing" if name in expected else "is left over"
        raise UserError(f"{source}: weight {name} {problem} for {config.variant} as config.json says it")
    for name, tensor in ours.items():
        if tensor.shape != expected[name].shape:
            shapes = f"{tuple(tensor.shape)}, by config.json {tuple(expected[name].shape)}"
            raise UserError(f"{source}: weight {name} has shape {shapes}")
    model.transformer.load_state_dict(ours, assign=True)
    model.tie_weights()
    model.config.dtype = model.dtype
    return model.eval()


def _tied(ours: dict[str, Tensor], shape: ModelConfig, source: str) -> dict[str, Tensor]:
    """Fill in whichever of two tied weights a file leaves out. Raises UserError where it holds both and they differ."""
    names = ("embed.weight", "lm_head.weight")
    held = [ours[name] for name in names if name in ours]
    if shape.tie_embeddings and held:
        if not torch.equal(held[0], held[-1]):
            raise UserError(f"{source}: embedding and output layer differ, but tie_word_embeddings=true; legal: false")
        ours |= dict.fromkeys(names, held[0])
    return ours


def _own_config(content: dict[str, Any], source: str) -> GatebenchConfig:
    try:
        config: GatebenchConfig = GatebenchConfig.from_dict(content)
    except ValidationError as error:
        raise UserError(f"{source}: config.json: {one_line(error, ModelConfig)}") from None
    return config


def local_directory(source: str | Path) -> Path:
    """Return the directory `source`, or that of a hub id's files. Raises UserError where there is none."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if not _HUB_ID.fullmatch(str(source)):
        raise UserError(f"{source}: no such directory; legal: a directory, or a hub id as owner/name")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=list(_NEEDED), etag_timeout=5))
    except Exception as error:  # the hub's client has one for each way of not being reached
        reason = " ".join(str(error).split())[:160]
        raise UserError(
            f"{source}: no such directory, and the hub does not have it or cannot be reached ({reason})"
        ) from None


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return every tensor of a checkpoint directory by name, from one safetensors file or as an index says.

    Raises UserError where there are none, or a file cannot be read.
    """
    index, single = path / "model.safetensors.index.json", path / "model.safetensors"
    if index.is_file():
        content = read_json(index)
        if content is None or "weight_map" not in content:
            raise UserError(f"{index}: holds no weight_map to read; legal: the index as it was downloaded or written")
        names = sorted(set(content["weight_map"].values()))
        weights: dict[str, Tensor] = {}
        for name in names:
            weights |= _read_file(path / name)
        return weights
    if not single.is_file():
        raise UserError(f"{path}: holds no model.safetensors; legal: weights as safetensors, in one file or sharded")
    return _read_file(single)


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def _tokenizer(path: Path) -> PreTrainedTokenizerBase | None:
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json")):
        return None
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    return tokenizer
