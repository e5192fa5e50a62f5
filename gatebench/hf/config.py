"""What a gatebench directory's config.json says."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from gatebench.config import ModelConfig


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
        follows = {
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.d_model,
            "intermediate_size": shape.ffn_dim,
            "num_hidden_layers": shape.n_layers,
            "num_attention_heads": shape.n_heads,
            "num_key_value_heads": shape.n_kv_heads,
            "head_dim": shape.head_dim,
            "tie_word_embeddings": shape.tie_embeddings,
            "max_position_embeddings": shape.context_length,
        }
        super().__post_init__(**(kwargs | follows))

    def model_config(self) -> ModelConfig:
        """Return the shape that `Transformer` is built in."""
        return ModelConfig.model_validate(self.model or {})
