"""Extending a finished run: a run of its own that begins with its weights, on longer windows (docs/long_context.md).

Imports torch only where weights are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, field_validator

from gatebench import recipes
from gatebench.config import InitConfig, RunConfig
from gatebench.errors import UserError
from gatebench.files import sha256_of
from gatebench.model.accounting import final_shape
from gatebench.paths import runs_dir
from gatebench.training.rundir import RunDirectory
from gatebench.validation import Section, one_line

if TYPE_CHECKING:
    from gatebench.model.transformer import Transformer

MAY_CHANGE = {"rope_theta", "rope_scaling", "context_length", "init_std", "gate_init_std", "depth_scaled_init"}
"""Of `model`: what no weight's shape depends on."""


class Extension(Section):
    """What `gatebench extend` changes of the run that it goes on from."""

    tokens: int = Field(ge=1)
    """Tokens to train on, rounded up to whole steps."""
    seq_len: str | int = "1x"
    """The new window, in tokens (1024) or as a multiple of the old one (4x)."""
    rope_theta: float | None = Field(None, gt=1)
    """The new base of RoPE; null keeps the old one."""
    lr: float | None = Field(None, gt=0)
    """Peak learning rate of the new schedule; null keeps the old one."""
    set: list[str] = Field(default_factory=list)
    """Further settings, `section.key=value`; they come last."""

    @field_validator("seq_len")
    @classmethod
    def _a_length(cls, seq_len: str | int) -> str | int:
        length_of(seq_len, 1)
        return seq_len

    def settings(self, parent: RunConfig) -> list[str]:
        """Return everything that is changed of `parent`, as `section.key=value`, what follows from the length included.

        A step keeps its number of tokens as far as whole sequences allow, and warm-up takes a tenth of the steps at
        most.
        """
        train = parent.train
        world = train.devices * train.num_nodes
        seq_len = length_of(self.seq_len, parent.data.seq_len)

        def as_many_tokens(sequences: int) -> int:
            return max(1, sequences * parent.data.seq_len // seq_len)

        micro = None if train.micro_batch_size is None else as_many_tokens(train.micro_batch_size)
        whole = (micro or 1) * world
        changes = {
            "data.seq_len": seq_len,
            "train.batch_size": max(whole, as_many_tokens(train.batch_size) // whole * whole),
            "train.micro_batch_size": micro,
            "model.rope_theta": self.rope_theta,
            "optim.lr": self.lr,
        }
        words = [f"{key}={value}" for key, value in changes.items() if value is not None] + self.set
        asked = {word.partition("=")[0].strip() for word in self.set}
        if "train.steps" not in asked:
            batch_size = recipes.changed_run(parent, [*words, "optim.warmup_steps=0"]).train.batch_size
            steps = math.ceil(self.tokens / (batch_size * seq_len))
            words.append(f"train.steps={steps}")
            if "optim.warmup_steps" not in asked:
                words.append(f"optim.warmup_steps={min(parent.optim.warmup_steps, steps // 10)}")
        return words


def length_of(word: str | int, window: int) -> int:
    """Return a length in tokens: a number of them, or a multiple of `window` (4x). Raises ValueError for others."""
    text = str(word).strip()
    try:
        length = int(float(text[:-1]) * window) if text.endswith("x") else int(text)
    except (ValueError, OverflowError):  # infx
        length = 0
    if length < 1:
        raise ValueError(f"seq_len={word}: legal: tokens (1024), or a multiple of the old window (4x)")
    return length


def extended(parent: RunConfig, extension: Extension, path: Path | None = None) -> RunConfig:
    """Return the configuration of the run that goes on from `parent`, which is tied to its corpus.

    `path` is the parent's directory where that is not its place below results/runs.

    Raises UserError for settings that are not legal, or that change a weight's shape.
    """
    config = recipes.changed_run(parent, extension.settings(parent))
    before, after = final_shape(parent).model_dump(), final_shape(config).model_dump()
    for key in before.keys() - MAY_CHANGE:
        if before[key] != after[key]:
            raise UserError(
                f"model.{key}={after[key]}: the run to go on from has {before[key]}; "
                f"legal to change: {', '.join(f'model.{name}' for name in sorted(MAY_CHANGE))}"
            )
    init = InitConfig(run=parent.run_name, path=None if path is None else str(path))
    return config.model_copy(update={"init": init, "corpus_fingerprint": None})


def extended_run(run_dir: Path, words: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of the run that goes on from the finished run in `run_dir`, `words` being `Extension`'s.

    Raises UserError for words that are not legal, a folder that is no finished run, and as `extended` does.
    """
    try:
        extension = Extension.model_validate(words)
    except ValidationError as error:
        raise UserError(f"extend: {one_line(error, Extension)}") from None
    parent = read_parent(run_dir)
    is_in_place = (runs_dir() / parent.run_name).resolve() == run_dir.resolve()
    return extended(parent, extension, None if is_in_place else run_dir.resolve())


def read_parent(path: Path) -> RunConfig:
    """Return the configuration of the finished run in `path`. Raises UserError where there is none."""
    directory = RunDirectory(path)
    config = directory.read_config()
    directory.check_trained()
    return config


def parent_directory(init: InitConfig) -> RunDirectory:
    """Return where the run lies that another begins with."""
    return RunDirectory(runs_dir() / init.run if init.path is None else Path(init.path))


def tied_to_parent(config: RunConfig) -> RunConfig:
    """Return `config` with the hash of the weights that it begins with. Raises UserError where these have changed."""
    if config.init is None:
        return config
    directory = parent_directory(config.init)
    directory.check_trained()
    sha256 = sha256_of(directory.weights)
    if config.init.weights_sha256 not in (None, sha256):
        raise UserError(
            f"{directory.path}: was trained again since this run began with its weights (sha256 {sha256[:12]}, "
            f"the run has {str(config.init.weights_sha256)[:12]}); legal: a new run"
        )
    return config.model_copy(update={"init": config.init.model_copy(update={"weights_sha256": sha256})})


def initial_model(config: RunConfig) -> Transformer:
    """Return the model that a run begins with: fresh initial values, or the weights of the run that it extends."""
    from safetensors.torch import load_model

    from gatebench.model.build import build_run_model

    model = build_run_model(config)
    if config.init is not None:
        load_model(model, parent_directory(config.init).weights)
    return model
