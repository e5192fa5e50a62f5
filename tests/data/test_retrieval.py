"""Retrieval documents: what is asked can be found, where they stand among the text, and that numbers decide all."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gatebench.config import DataConfig, RetrievalConfig
from gatebench.data.reading import training_windows
from gatebench.data.retrieval_documents import PHRASINGS, RetrievalDocuments, RetrievalWindows, draw_numbers
from gatebench.data.tokens import Corpus, TrainingWindows
from gatebench.errors import UserError
from gatebench.evaluation.document_answers import N_DOCUMENTS, answer_accuracy
from gatebench.evaluation.ruler.templates import templates_of
from gatebench.recipes import make_run
from tests.training.tiny_run import tiny_corpus

__all__ = ["tiny_corpus"]
CONFIG = RetrievalConfig(share=0.25, max_facts=4)


@pytest.fixture
def corpus(tiny_corpus: Path) -> Corpus:
    return Corpus.open(tiny_corpus)


def windows(corpus: Corpus, *, bos: bool = True, seed: int = 0, share: float = 0.25) -> RetrievalWindows:
    data = DataConfig(seq_len=256, bos=bos, retrieval=CONFIG.model_copy(update={"share": share}))
    found = training_windows(corpus, data, seed)
    assert isinstance(found, RetrievalWindows)
    return found


@pytest.mark.parametrize("number", range(12))
def test_every_answer_stands_in_the_context_before_it(corpus: Corpus, number: int) -> None:
    ids, is_answer = RetrievalDocuments(corpus, CONFIG, 256, "train").document(number)
    assert ids.shape == is_answer.shape == (256,)
    first = int(is_answer.argmax())
    decode = corpus.tokenizer().decode
    answers = decode(ids[is_answer].tolist()).split()
    context, rest = decode(ids[:first].tolist()), decode(ids[first:].tolist())
    assert 1 <= len(answers) <= 4
    for value in answers:
        assert re.fullmatch(r"\d{7}", value)
        key = re.search(rf"(\w+)\W+(?:is )?{value}", context)
        assert key is not None, value
        assert key[1] in context[key.end() :] + rest, "its key is asked for"


def test_a_share_of_the_sequences_are_documents_and_the_text_is_all_there(corpus: Corpus) -> None:
    mixed, text = windows(corpus), TrainingWindows(corpus, 256)
    assert np.array_equal(mixed.sequence(0), text.sequence(0))
    assert np.array_equal(mixed.sequence(3)[1:], mixed.documents.document(0)[0])
    assert mixed.sequence(3)[0] == corpus.bos_id
    assert np.array_equal(mixed.sequence(4), text.sequence(3))
    batch = mixed.batch(2, 4)
    assert batch.shape == (4, 257)
    assert np.array_equal(batch[1], mixed.sequence(9))


def test_without_bos_a_document_is_a_window_long(corpus: Corpus) -> None:
    found = windows(corpus, bos=False, share=1.0)
    assert np.array_equal(found.sequence(5), found.documents.document(5)[0])
    assert found.sequence(5).shape == (257,)


def test_seed_split_and_number_decide_all(corpus: Corpus) -> None:
    one = windows(corpus).batch(3, 8)
    assert np.array_equal(one, pickle.loads(pickle.dumps(windows(corpus))).batch(3, 8))
    assert not np.array_equal(one[3], windows(corpus, seed=1).batch(3, 8)[3])
    train, heldout = (RetrievalDocuments(corpus, CONFIG, 256, split).document(0)[0] for split in ("train", "heldout"))
    assert not np.array_equal(train, heldout)


def n_answers(is_answer: np.ndarray) -> int:  # type: ignore[type-arg]
    return int((is_answer & ~np.append(False, is_answer[:-1])).sum())


QUESTION = "|".join(f"{re.escape(one.question).replace(re.escape('{key}'), '([a-z]{4})')} [0-9]" for one in PHRASINGS)
PASSKEYS = RetrievalConfig(max_facts=1, digits=1, shortest=24, question_every=12)


def test_every_second_training_sequence_has_several_documents(corpus: Corpus) -> None:
    """Short ones are learned first; each has its own fact, and asks for it again and again."""
    found = RetrievalDocuments(corpus, PASSKEYS, 256, "train")
    decode, n_facts, n_questions = corpus.tokenizer().decode, [], []
    for number in range(40):
        ids, is_answer = found.document(number)
        assert ids.shape == is_answer.shape == (256,)
        assert re.fullmatch(r"[ 0-9]+", decode(ids[is_answer].tolist()))
        n_questions.append(n_answers(is_answer))
        n_facts.append(len(set(re.findall(QUESTION, decode(ids.tolist())))))
    assert min(n_facts) == 1
    assert 8 <= sum(n > 1 for n in n_facts) <= 32
    assert max(n_questions) > 8 and min(n_questions) >= 1


def test_heldout_documents_fill_the_window_and_ask_once(corpus: Corpus) -> None:
    found = RetrievalDocuments(corpus, PASSKEYS, 256, "heldout")
    assert all(n_answers(found.document(number)[1]) == 1 for number in range(20))


def test_numbers_repeat_only_where_there_are_too_few() -> None:
    assert sorted(draw_numbers(Random(0), 1, 10)) == list("0123456789")
    assert set(draw_numbers(Random(0), 1, 300)) == set("0123456789")
    assert len(set(draw_numbers(Random(0), 7, 300))) == 300
    assert all(1_000_000 <= int(number) <= 9_999_999 for number in draw_numbers(Random(0), 7, 300))


def test_the_first_wording_is_that_of_ruler() -> None:
    prompt = templates_of("gatebench")
    fields = {"kind": "number", "query": "bako", "context": "CONTEXT"}
    ours = f"{PHRASINGS[0].head}CONTEXT{PHRASINGS[0].question.format(key='bako')}"
    assert prompt.one_value.text(**fields) == ours
    needle = {"kind": "number", "kinds": "numbers", "key": "bako", "value": "1234567"}
    assert prompt.needle.format(**needle) == PHRASINGS[0].fact.format(key="bako", value="1234567")


def test_a_window_that_holds_no_fact_is_refused(corpus: Corpus) -> None:
    with pytest.raises(UserError, match=r"data\.seq_len=8: a retrieval document needs \d+ or more"):
        RetrievalDocuments(corpus, CONFIG, 8, "train")


def test_synthetic_data_has_none() -> None:
    with pytest.raises(UserError, match=r"data\.retrieval: hides facts in text, and 'bigram_backcopy' is none"):
        make_run("sink_lab", "baseline", overrides=["data.retrieval={}"])


def test_it_is_part_of_what_a_run_is() -> None:
    assert make_run("quick", "baseline").fingerprint == "92432aca"  # as before there were such documents
    assert make_run("quick", "baseline", overrides=["data.retrieval={}"]).fingerprint != "92432aca"


class Knows(nn.Module):
    """Gives the right next token, but for every n-th answer."""

    def __init__(self, documents: RetrievalDocuments, wrong_every: int) -> None:
        super().__init__()
        self.next: dict[bytes, np.ndarray] = {}  # type: ignore[type-arg]
        n_answers = 0
        for number in range(N_DOCUMENTS):
            ids, mask = documents.document(number)
            told = ids.copy()
            for place in np.flatnonzero(mask & ~np.roll(mask, 1)):
                n_answers += 1
                if n_answers % wrong_every == 0:
                    told[place] = (ids[place] + 1) % 512
            self.next[np.append(0, ids)[:-1].tobytes()] = told
        self.n_answers = n_answers

    def forward(self, ids: Tensor) -> Tensor:
        told = torch.stack([torch.from_numpy(self.next[row.numpy().tobytes()]) for row in ids])
        return nn.functional.one_hot(told, 512).float()


@pytest.mark.parametrize("wrong_every", [2, 10**6])
def test_accuracy_counts_whole_answers(corpus: Corpus, wrong_every: int) -> None:
    documents = RetrievalDocuments(corpus, CONFIG, 256, "heldout")
    model = Knows(documents, wrong_every)
    expected = 1 - (model.n_answers // wrong_every) / model.n_answers
    assert corpus.bos_id == 0
    found = answer_accuracy(model, documents, bos=True, batch_size=16, device=torch.device("cpu"))  # type: ignore[arg-type]
    assert found == pytest.approx(expected)
