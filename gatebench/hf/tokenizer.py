"""Tokenizers of transformers: a corpus's as one of them, and what one puts before a text."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from gatebench.data.tokens import Corpus


def prefix_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids that the tokenizer puts before every text, BOS as a rule; none where it puts none.

    They are read off what it does: which names its configuration gives to tokens says nothing about that.
    """
    whole, text = tokenizer("a").input_ids, tokenizer("a", add_special_tokens=False).input_ids
    starts = range(len(whole) - len(text) + 1)
    start = next((n for n in starts if whole[n : n + len(text)] == text), None)
    ids: list[int] = tokenizer("").input_ids if start is None else whole[:start]
    return ids


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Say whether every text begins with BOS, or with several such tokens, as the tokenizer encodes it."""
    return bool(prefix_ids(tokenizer))


def corpus_tokenizer(corpus: Corpus, *, bos: bool, length: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer of `corpus` for a model that was trained on windows of `length` tokens.

    With `bos` every text begins with BOS, as the windows did; without, there is no BOS token. Padding is EOS, on the
    left, so that a batch can be continued.
    """
    from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing

    tokenizer = corpus.tokenizer()
    first, last = (tokenizer.id_to_token(i) for i in (corpus.bos_id, corpus.eos_id))
    if bos:
        begin = TemplateProcessing(single=f"{first} $A", pair=f"{first} $A $B", special_tokens=[(first, corpus.bos_id)])
        tokenizer.post_processor = Sequence([ByteLevel(trim_offsets=False), begin])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=first if bos else None,
        eos_token=last,
        pad_token=last,
        padding_side="left",
        model_max_length=length,
        clean_up_tokenization_spaces=False,
    )
