"""The sentences of prompts: our own, and RULER's as the installed lm-eval has them."""

from __future__ import annotations

import random
import re
import sys
from types import SimpleNamespace

import pytest

from gatebench.errors import UserError
from gatebench.evaluation.ruler import generate, templates
from tests.evaluation.ruler.prompts import HAYSTACK, encode


def test_made_up_words_differ_and_none_holds_another() -> None:
    words = templates.templates_of("gatebench").words(random.Random(0), 3000)
    assert len(set(words)) == 3000
    assert {len(word) for word in words} <= {4, 6}
    assert len({len(word) for word in words}) == 1


def test_no_prompt_ends_in_a_blank() -> None:
    for name in ("niah_single_1", "vt", "cwe", "fwe"):
        (sample,) = generate(name, encode, 1024, 1)
        assert sample.input == sample.input.rstrip()


def test_without_lm_eval_rulers_wording_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval.tasks.ruler", None)
    templates._ruler.cache_clear()
    with pytest.raises(UserError, match=r"^wording 'ruler': lm-eval is not installed: pip install 'gatebench\[bench"):
        templates.templates_of("ruler")


@pytest.mark.slow
def test_rulers_prompts() -> None:
    """NVIDIA's constants: one value is asked for in the singular; the answer's beginning stands at the end."""
    pytest.importorskip("lm_eval")
    pytest.importorskip("wonderwords")
    one, many = (
        generate(name, encode, 1024, 1, wording="ruler", haystack=HAYSTACK)[0].input
        for name in ("niah_single_2", "niah_multiquery")
    )
    assert one.startswith("A special magic number is hidden within the following text.")
    assert one.endswith("mentioned in the provided text is")
    assert "One of the special magic numbers for " in one
    assert many.startswith("Some special magic numbers are hidden within the following text.")
    assert "What are all the special magic numbers for " in many
    assert many.endswith("mentioned in the provided text are")
    (noise,) = generate("niah_single_1", encode, 512, 1, wording="ruler")
    assert "The grass is green. The sky is blue." in noise.input
    (question,) = generate("fwe", encode, 512, 1, wording="ruler")
    assert question.input.endswith("the three most frequently appeared words are:")
    (listed,) = generate("cwe", encode, 1024, 1, wording="ruler")
    assert "\n1. " in listed.input
    assert templates.templates_of("ruler").name.startswith("ruler (lm-eval 0.4")


@pytest.mark.slow
@pytest.mark.parametrize("n_values", [1, 2])
def test_rulers_needles_are_asked_for_as_lm_eval_does(n_values: int) -> None:
    """A prompt of lm-eval's own making, and ours around the same text for the same key."""
    niah = pytest.importorskip("lm_eval.tasks.ruler.niah_utils")
    made = niah.generate_samples(
        niah.get_haystack("repeat"),
        max_seq_length=600,
        template=niah.TEMPLATE,
        type_haystack="repeat",
        type_needle_k="words",
        type_needle_v="numbers",
        num_needle_v=n_values,
        num_samples=1,
        TOKENIZER=lambda text: SimpleNamespace(input_ids=text.split()),
    )[0]
    ours = templates.templates_of("ruler")
    prompt = ours.one_value if n_values == 1 else ours.many_values
    _, *context, _ = made["input"].split("\n")
    (key,) = {match[1] for line in context if (match := re.search(r"for (\S+) is: ", line))}
    text = prompt.text(context="\n".join(context), query=key, kind="number", kinds="numbers")
    assert text == f"{made['input']} {made['gen_prefix']}"
    noise = " ".join(ours.noise)
    needles = [ours.needle.format(key=key, value=value, kinds="numbers") for value in made["outputs"]]
    assert set(context) == {noise, *needles}


@pytest.mark.slow
def test_rulers_templates_are_those_that_lm_eval_uses() -> None:
    pytest.importorskip("wonderwords")
    cwe = pytest.importorskip("lm_eval.tasks.ruler.cwe_utils")
    fwe = pytest.importorskip("lm_eval.tasks.ruler.fwe_utils")
    qa = pytest.importorskip("lm_eval.tasks.ruler.qa_utils")
    ours = templates.templates_of("ruler")
    assert ours.common_words.template + ours.common_words.answer_prefix == cwe.TEMPLATE
    assert ours.frequent_words.template + ours.frequent_words.answer_prefix == fwe.TEMPLATE
    assert ours.questions.template == qa.TEMPLATE
    assert ours.document == qa.DOCUMENT_PROMPT
    assert set(ours.words(random.Random(0), 10**6)) == set(cwe.WORDS)
