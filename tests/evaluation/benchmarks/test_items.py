"""The bundled items: the same every time, right by construction, and nothing of training."""

from __future__ import annotations

from collections import Counter

import pytest

from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from gatebench.evaluation.benchmarks import items
from gatebench.evaluation.benchmarks.bundled import BundledTask
from gatebench.evaluation.benchmarks.mmlu_dev import mmlu_dev
from gatebench.evaluation.benchmarks.suites import CHOICE


@pytest.mark.parametrize("name", CHOICE)
def test_every_task_is_the_same_again(corpus: Corpus, name: str) -> None:
    found = CHOICE[name](corpus)
    assert len(found) == (281 if name == "gb_mmlu_dev" else 300)
    assert len(set(found)) == len(found) - (name == "gb_mmlu_dev")  # MMLU has one question twice
    assert items.fingerprint(found) == items.fingerprint(CHOICE[name](corpus))
    for item in found:
        assert len(set(item.choices)) == len(item.choices) in (3, 4)
        assert "\ufffd" not in item.context + "".join(item.choices)
    answers = Counter(item.answer for item in found)
    n_choices = len(found[0].choices)
    assert all(0.7 < n_choices * answers[place] / len(found) < 1.35 for place in range(n_choices))


def test_every_name_has_items_of_its_own_and_no_other_name_any(corpus: Corpus) -> None:
    assert len({items.fingerprint(make(corpus)) for make in CHOICE.values()}) == len(CHOICE) == 10
    with pytest.raises(UserError, match="task 'gb_next_lines': no bundled task; did you mean gb_next_line"):
        BundledTask("gb_next_lines")
    assert "gb_next_lines" not in CHOICE


def test_items_without_a_corpus_never_change() -> None:
    """Results of another week are of the same items; a change takes another VERSION."""
    assert items.fingerprint(items.brackets()) == "52dca3aeb1b3da7e"
    assert items.fingerprint(items.copy()) == "6af0d57a5ccb2c3d"


@pytest.mark.parametrize("domain", ["english", "chinese", "code"])
def test_the_answer_of_a_cloze_item_is_how_the_document_goes_on(corpus: Corpus, domain: str) -> None:
    offsets = corpus.documents("heldout", domain)
    documents = [
        corpus.tokenizer().decode(corpus.tokens("heldout", domain, first, end - 1).tolist())
        for first, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]
    for item in items.cloze(corpus, domain)[:50]:
        source = [text for text in documents if item.context + item.choices[item.answer] in text]
        assert source
        others = [choice for place, choice in enumerate(item.choices) if place != item.answer]
        assert any(all(other in text for other in others) for text in source)


def test_the_answer_of_a_bracket_item_closes_the_innermost() -> None:
    pairs = {"(": ")", "[": "]", "{": "}"}
    for item in items.brackets():
        opened: list[str] = []
        for letter in item.context:
            if letter in pairs:
                opened.append(pairs[letter])
            elif letter in pairs.values():
                assert opened.pop() == letter
        assert item.choices[item.answer] == opened[-1]


def test_the_answer_of_a_copy_item_comes_next_in_the_sequence() -> None:
    for item in items.copy():
        words = item.context.split()
        assert words[:8] == words[8:16]
        assert item.choices[item.answer] == f" {words[len(words) - 16]}"


def test_next_line(corpus: Corpus) -> None:
    item = items.next_line(corpus)[0]
    assert item.context.count("\n") == 4
    assert item.context.endswith("\n")


def test_mmlu_dev_is_57_subjects() -> None:
    found = mmlu_dev()
    subjects = Counter(item.context.split("\n")[0] for item in found)
    assert len(subjects) == 57
    assert found[0].context.startswith(
        "The following are multiple choice questions (with answers) about abstract algebra.\n\nStatement 1 |"
    )
    assert found[0].choices == (" A", " B", " C", " D")
    assert found[0].answer == 2
    assert "step by step" not in found[0].context


def test_a_domain_that_is_not_there(corpus: Corpus) -> None:
    with pytest.raises(UserError, match="corpus 'tiny' has no domain 'greek'"):
        items.cloze(corpus, "greek")


def test_too_little_text(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "CONTEXT_TOKENS", 100_000)
    with pytest.raises(UserError, match="too little held-out text in 'law' for 300 items"):
        items.cloze(corpus, "law")
