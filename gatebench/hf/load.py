"""From a run, a directory or a hub id to a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from textwrap import shorten
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
from gatebench.model.accounting import final_shape
from gatebench.training.rundir import RunDirectory, read_json
from gatebench.validation import one_line

Loaded = tuple[GatebenchForCausalLM, PreTrainedTokenizerBase | None]
PREFIX = "transformer."
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:/([\w.-]+(?:/[\w.-]+)*)/?)?")
"""owner/name, or owner/name/sub/folder."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DERIVED = re.compile(r"(.*\.)?rotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)")
"""Buffers of old checkpoints that the configuration gives, and that transformers does not read."""
_NEEDED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def load(source: str | Path) -> Loaded:
    """Return the model of `source`, in eval mode on the CPU, and its tokenizer, if any.

    It has the dtype that it is stored in; where parts are stored in several, the one that holds them all.

    `source` is a run directory, a checkpoint of one of `foreign.LEGAL`, or the hub id of one, which is downloaded (or
    found in the hub's cache).

    Raises:
        UserError: nothing there; a model that we have no equal of; weights that are missing, left over or misshapen.
    """
    path = local_directory(source)
    if RunDirectory(path).config.is_file():
        return from_run(path)
    content = read_json(path / "config.json")
    if not isinstance(content, dict):
        raise UserError(
            f"{source}: holds no config.json to read; legal: a run directory, or a checkpoint of {foreign.LEGAL}"
        )
    weights = {name: tensor for name, tensor in read_weights(path).items() if not _DERIVED.fullmatch(name)}
    if content.get("model_type") == GatebenchConfig.model_type:
        config = _own_config(content, str(source))
        ours = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    else:
        with _told(f"{source}: config.json"):
            read = foreign.read(content, str(source))
            config = foreign_config(content, str(source))
        try:
            ours = from_layout(weights, read.shape, read.layout)
        except (RuntimeError, KeyError) as error:
            raise UserError(f"{source}: its weights do not have the shapes that config.json says ({error})") from None
    model = with_weights(config, ours, str(source))
    if (path / "generation_config.json").is_file():
        with _told(f"{source}: generation_config.json"):
            model.generation_config = GenerationConfig.from_pretrained(path)
    return model, _tokenizer(path)


def foreign_config(content: dict[str, Any], source: str) -> GatebenchConfig:
    """Return what `content`, another's config.json, says, in our words. Raises UserError as `foreign.read` does."""
    read = foreign.read(content, source)
    tokens: dict[str, Any] = {key: content.get(key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return GatebenchConfig(variant=read.variant, model=read.shape.model_dump(mode="json"), **tokens)


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
    shape = final_shape(run)
    config = GatebenchConfig(variant=run.variant, model=shape.model_dump(mode="json"), **tokens)
    return with_weights(config, _read_file(directory.weights), str(run_dir)), tokenizer


def with_weights(config: GatebenchConfig, ours: dict[str, Tensor], source: str) -> GatebenchForCausalLM:
    """Return the model of `config` with `Transformer`'s state dict `ours`, which it shares memory with.

    Raises UserError, naming `source` and a parameter, where the two do not fit.
    """
    with torch.device("meta"), _told(f"{source}: config.json"):
        model = GatebenchForCausalLM(config)
    ours = _tied(_in_one_dtype(ours, source), model.transformer.config, source)
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


def _in_one_dtype(ours: dict[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return the weights in the dtype that holds all of theirs. Raises UserError, naming one, for integers and NaN."""
    for name, tensor in ours.items():
        if tensor.dtype not in DTYPES:
            raise UserError(
                f"{source}: weight {name} is stored as {tensor.dtype}; legal: {', '.join(map(str, DTYPES))}"
            )
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{source}: weight {name} holds NaN or infinity; legal: finite numbers")
    dtypes = {tensor.dtype for tensor in ours.values()}
    if len(dtypes) < 2:
        return dict(ours)
    dtype = reduce(torch.promote_types, dtypes)
    return {name: tensor.to(dtype) for name, tensor in ours.items()}


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
    for key, kind, legal in (("variant", str, "a name"), ("model", dict, "an object of model's keys")):
        if not isinstance(content.get(key, kind()), kind):
            raise UserError(f"{source}: config.json: {key}={content.get(key)!r}; legal: {legal}")
    try:
        with _told(f"{source}: config.json", but=ValidationError):
            config: GatebenchConfig = GatebenchConfig.from_dict(content)
    except ValidationError as error:
        raise UserError(f"{source}: config.json: {one_line(error, ModelConfig)}") from None
    return config


@contextmanager
def _told(what: str, but: type[Exception] = UserError) -> Iterator[None]:
    """Turn whatever transformers and torch raise at a file of others' making into one line; `but` goes on as it is."""
    try:
        yield
    except (UserError, but):
        raise
    except Exception as error:
        reason = shorten(" ".join(str(error).split()), 200, placeholder=" ...")
        raise UserError(f"{what} cannot be read ({type(error).__name__}: {reason})") from None


def local_directory(source: str | Path) -> Path:
    """Return the directory `source`, or that of a hub id's files: owner/name, or owner/name/subfolder.

    Only the files of that one folder are downloaded. Raises UserError where there is none, naming the sub-folders that
    have a config.json where the one asked for has not.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    match = _HUB_ID.fullmatch(str(source))
    if match is None or ".." in path.parts:
        raise UserError(
            f"{source}: no such directory; legal: a directory, or a hub id as owner/name or owner/name/subfolder"
        )
    repository, folder = match[1], match[2] or ""
    inside = f"{folder}/" if folder else ""
    root = _from_hub(source, repository, ["config.json", "*/config.json"])
    if not (root / folder / "config.json").is_file():
        found = sorted(file.parent.relative_to(root).as_posix() for file in root.rglob("config.json"))
        legal = ", ".join(repository if name == "." else f"{repository}/{name}" for name in found)
        raise UserError(
            f"{source}: the hub's repository has no {inside}config.json; "
            f"legal: {legal or 'a repository, or a sub-folder of one, with a config.json'}"
        )
    _from_hub(source, repository, [inside + pattern for pattern in _NEEDED], ignored=f"{inside}*/*")
    return root / folder


def _from_hub(source: str | Path, repository: str, patterns: list[str], ignored: str | None = None) -> Path:
    """Download the files of a hub repository that match `patterns`, in which * stands for / too; return its folder."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, allow_patterns=patterns, ignore_patterns=ignored, etag_timeout=5))
    except Exception as error:  # the hub's client has one for each way of not being reached
        reason = shorten(" ".join(str(error).split()), 160, placeholder=" ...")
        raise UserError(
            f"{source}: no such directory, and the hub does not have it or cannot be reached ({reason})"
        ) from None


def model_files(path: Path) -> list[Path]:
    """Return the files of a checkpoint directory that say what model and tokenizer it is."""
    return [file for pattern in _NEEDED for file in path.glob(pattern)]


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return every tensor of a checkpoint directory by name, from one safetensors file, else as an index says.

    One file comes first, as in transformers, whatever an index beside it says. Raises UserError where there are none,
    or a file cannot be read.
    """
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.is_file():
        return _read_file(single)
    if not index.is_file():
        raise UserError(f"{path}: holds no model.safetensors; legal: weights as safetensors, in one file or sharded")
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"{index}: holds no weight_map to read; legal: the index as it was downloaded or written")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        weights |= _read_file(path / name)
    return weights


def _read_file(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


def _tokenizer(path: Path) -> PreTrainedTokenizerBase | None:
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json")):
        return None
    with _told(f"{path}: tokenizer_config.json or the tokenizer's files"):
        tokenizer: Any = AutoTokenizer.from_pretrained(path)
    return tokenizer
