"""The byte-level BPE tokenizer: training it, taking another one, and how many bytes each token stands for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gatebench.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BOS = "<|bos|>"
EOS = "<|eos|>"
SMALLEST_VOCABULARY = 258  # 256 bytes and two specials
_KNOWN_EOS = (EOS, "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
_PROBE = "The  Cat's caf\u00e9,\n\tna\u00efve \ufb01sh \u0130 \uff21 1 234 \u4e2d\u6587 \U0001f408 "
"""Capitals, accents, a ligature, full width, blanks of all sorts: what tokenizers that change text change."""
_KNOWN_BOS = (BOS, "<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>")


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE (GPT-2's splitting rule) with `<|bos|>` 0 and `<|eos|>` 1; the same texts give the same one.

    Raises:
        UserError: a vocabulary that cannot hold the 256 bytes and two specials.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size < SMALLEST_VOCABULARY:
        raise UserError(
            f"vocab-size must be at least {SMALLEST_VOCABULARY} (256 bytes and 2 specials), not {vocab_size}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json from elsewhere; it must be byte-level and keep text as it is, so that bytes per token are exact.

    One that puts text into a normal form (NFC, as Qwen's) passes here: building a corpus refuses it where a document is
    changed by that.

    Raises:
        UserError: missing, not a tokenizer.json, not byte-level, or one that changes letters or blanks.
    """
    from tokenizers import Tokenizer, decoders

    if not path.is_file():
        raise UserError(f"tokenizer {path} not found: give the path of a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise UserError(f"tokenizer {path} is no tokenizer.json: {error}") from error
    if not isinstance(tokenizer.decoder, decoders.ByteLevel):
        raise UserError(f"tokenizer {path} is not byte-level: it must be as those of GPT-2, Llama 3 or Qwen")
    read_back = tokenizer.decode(tokenizer.encode(_PROBE, add_special_tokens=False).ids)
    if read_back != _PROBE:
        raise UserError(
            f"tokenizer {path} changes text: {_PROBE!r} comes back as {read_back!r}; legal: one that does not"
        )
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """(BOS id, EOS id), found by their usual names; a tokenizer without BOS uses EOS for both.

    Raises:
        UserError: no end-of-text token.
    """
    eos = next((i for name in _KNOWN_EOS if (i := tokenizer.token_to_id(name)) is not None), None)
    if eos is None:
        raise UserError(f"the tokenizer has no end-of-text token: one of {', '.join(_KNOWN_EOS)} must be in it")
    bos = next((i for name in _KNOWN_BOS if (i := tokenizer.token_to_id(name)) is not None), eos)
    return int(bos), int(eos)


def bytes_per_token(tokenizer: Tokenizer) -> NDArray[np.int32]:
    """UTF-8 bytes that each id stands for, 0 for special tokens and unused ids; (vocab_size,) int32."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    sizes = np.zeros(max(vocabulary.values()) + 1, np.int32)
    for token, i in vocabulary.items():
        if i in added:
            sizes[i] = 0 if added[i].special else len(added[i].content.encode())
        else:
            sizes[i] = len(token)  # the byte-level alphabet has one character per byte
    return sizes
