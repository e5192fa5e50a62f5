"""What a tokenizer puts before a text is read off what it does."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from gatebench.evaluation.probes.checkpoint_probes import text_windows
from gatebench.hf.tokenizer import adds_bos, prefix_ids


def tokenizer(template: str | None, **names: str) -> PreTrainedTokenizerFast:
    """A tokenizer of <s> 0, <t> 1, a 2 and b 3, with `template` around a text and the config's `names` of tokens."""
    made = Tokenizer(models.BPE({"<s>": 0, "<t>": 1, "a": 2, "b": 3}, []))
    made.add_special_tokens(["<s>", "<t>"])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if template is not None:
        special = [("<s>", 0), ("<t>", 1)]
        made.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


@pytest.mark.parametrize(
    ("template", "names", "expected"),
    [
        ("<s> $A", {}, [0]),
        ("<s> $A", {"bos_token": "<s>"}, [0]),
        ("<s> $A", {"bos_token": "<t>"}, [0]),
        ("<t> <s> $A", {"bos_token": "<s>"}, [1, 0]),
        ("<s> $A <t>", {"eos_token": "<t>"}, [0]),
        ("$A <t>", {"bos_token": "<s>", "eos_token": "<t>"}, []),
        (None, {"bos_token": "<s>"}, []),
    ],
)
def test_what_the_encoding_does_counts_and_not_the_names(
    template: str | None, names: dict[str, str], expected: list[int]
) -> None:
    made = tokenizer(template, **names)
    assert prefix_ids(made) == expected
    assert adds_bos(made) is bool(expected)


def test_windows_of_text_begin_with_the_whole_prefix() -> None:
    texts = {"it": ["ab" * 6]}
    windows = text_windows(texts, tokenizer("<t> <s> $A"), 4, 10**6, "it")
    assert sorted(windows.tolist()) == [[1, 0, 2, 3]] * 3
    assert text_windows(texts, tokenizer(None, bos_token="<s>"), 4, 10**6, "it").tolist() == [[2, 3, 2, 3]] * 2
