"""The transformers-compatible causal LM around the one `Transformer`."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from gatebench import variants
from gatebench.hf.config import GatebenchConfig
from gatebench.model.attention import KVCache
from gatebench.model.init import initialize
from gatebench.model.transformer import Transformer


class GatebenchCache:
    """Every layer's `KVCache`, as transformers' `generate` handles a cache."""

    is_compileable = False

    def __init__(self, layers: list[KVCache], n_registers: int) -> None:
        self.layers = layers
        self.n_registers = n_registers

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens of text are cached."""
        return max(0, self.layers[layer_idx].length - self.n_registers)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        for layer in self.layers:
            layer.select(beam_idx)


class GatebenchForCausalLM(PreTrainedModel, GenerationMixin):
    """Any variant as a causal LM of transformers: `from_pretrained`, `save_pretrained`, `generate` with a KV cache."""

    config_class = GatebenchConfig
    base_model_prefix = "transformer"
    _tied_weights_keys = {"transformer.lm_head.weight": "transformer.embed.weight"}  # noqa: RUF012
    _no_split_modules = ["Block"]  # noqa: RUF012
    _supports_sdpa = True
    _is_stateful = True  # a cache cannot be shortened, so there is no assisted generation

    def __init__(self, config: GatebenchConfig) -> None:
        super().__init__(config)
        self.transformer = Transformer(config.model_config(), variants.get(config.variant))
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """Say that `forward` makes its own cache: kernels cache more than keys and values."""
        return False

    def initialize_weights(self) -> None:
        """Initialise a model that nothing was loaded into, as gatebench does (seed 0).

        Raises ValueError for one that a checkpoint has only a part of.
        """
        parameters = dict(self.transformer.named_parameters())
        missing = [name for name, p in parameters.items() if not getattr(p, "_is_hf_initialized", False)]
        if len(missing) == len(parameters):
            initialize(self.transformer, self.transformer.config, seed=0)
        elif missing:
            raise ValueError(f"the checkpoint lacks {', '.join(missing)}")

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        return self.transformer.embed

    def get_output_embeddings(self) -> nn.Module:
        """Return the output layer."""
        return self.transformer.lm_head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: GatebenchCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Return logits (B, T or `logits_to_keep`, V) for `input_ids` (B, T), and the loss against `labels` (B, T).

        `attention_mask` (B, S), over cached tokens and these, is 0 for padding before a row's first token; other
        padding belongs after the text, where causal attention needs no mask. `labels` are shifted here.
        """
        if use_cache and cache is None:
            cache = GatebenchCache(self.transformer.new_caches(), self.transformer.n_registers)
        hidden = self.transformer.hidden(
            input_ids, None if cache is None else cache.layers, self._real(input_ids, attention_mask, cache)
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.transformer.lm_head(hidden[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, cache=cache)  # type: ignore[arg-type]
        return output.to_tuple() if return_dict is False else output

    def _real(self, ids: Tensor, attention_mask: Tensor | None, cache: GatebenchCache | None) -> Tensor | None:
        """Return `Transformer.hidden`'s `real`, None where no row begins with padding.

        Raises ValueError for a mask of another shape, a row of padding alone, and padding inside a text.
        """
        if attention_mask is None or bool(attention_mask.all()):
            return None
        legal = (len(ids), ids.shape[1] + (0 if cache is None else cache.get_seq_length()))
        if attention_mask.shape != legal:
            raise ValueError(f"attention_mask of shape {tuple(attention_mask.shape)}: legal: {legal}")
        mask = attention_mask.long()
        begins = F.pad(mask, (1, 0)).diff(dim=1) == 1
        if not bool((begins.sum(1) == 1).all()):
            raise ValueError("attention_mask: legal: in each row some ones, with no zero between two of them")
        return mask.cumsum(1) > 0
