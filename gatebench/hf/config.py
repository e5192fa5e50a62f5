"""What a gatebench directory's config.json says."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from gatebench.config import ModelConfig

THEIR_WORDS = {
    "d_model": "hidden_size",
    "ffn_dim": "intermediate_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "tie_embeddings": "tie_word_embeddings",
    "context_length": "max_position_embeddings",
}
"""A key of `ModelConfig` -> what every model of transformers calls it."""


def in_their_words(shape: ModelConfig) -> dict[str, Any]:
    """Return the part of `shape` that every model of transformers has, by transformers' names."""
    return {theirs: getattr(shape, ours) for ours, theirs in THEIR_WORDS.items()}


class GatebenchConfig(PreTrainedConfig):
    """A variant and the shape that it is built in, in gatebench's own words, from which transformers' words follow.

    hidden_size, num_hidden_layers and the like are read-only copies for tools that look for them.
    """

    model_type = "gatebench"

    variant: str = "baseline"
    """A name of the grammar (`gatebench list`)."""
    model: dict[str, Any] | None = None
    """`ModelConfig`, with the variant's overrides and parameter matching applied; None is its defaults."""

    def __post_init__(self, **kwargs: Any) -> None:
        """Set what follows from `model`."""
        shape = self.model_config()
        self.model = shape.model_dump(mode="json")
        super().__post_init__(**(kwargs | in_their_words(shape)))

    def model_config(self) -> ModelConfig:
        """Return the shape that `Transformer` is built in."""
        return ModelConfig.model_validate(self.model or {})
