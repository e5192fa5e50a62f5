"""Retrieval documents: what is asked can be found, where they stand among the text, and that numbers decide all."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gatebench.config import DataConfig, RetrievalConfig
from gatebench.data.reading import training_windows
from gatebench.data.retrieval import WORDINGS, RetrievalDocuments, RetrievalWindows
from gatebench.data.tokens import Corpus, TrainingWindows
from gatebench.errors import UserError
from gatebench.evaluation.retrieval import N_DOCUMENTS, answer_accuracy
from gatebench.evaluation.ruler.wording import wording
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


def test_some_training_documents_are_a_piece_of_text_over_and_over(corpus: Corpus) -> None:
    config = CONFIG.model_copy(update={"repeat_share": 0.999})
    ids, is_answer = RetrievalDocuments(corpus, config, 256, "train").document(0)
    period = next(n for n in range(8, 129) if np.array_equal(ids[n:], ids[:-n]))
    assert period <= 128 and not is_answer.any()
    assert RetrievalDocuments(corpus, config, 256, "heldout").document(0)[1].any()


def test_the_first_wording_is_that_of_ruler() -> None:
    prompt = wording("gatebench")
    fields = {"kind": "number", "query": "bako", "context": "CONTEXT"}
    ours = f"{WORDINGS[0].head}CONTEXT{WORDINGS[0].question.format(key='bako')}"
    assert prompt.one_value.text(**fields) == ours
    needle = {"kind": "number", "kinds": "numbers", "key": "bako", "value": "1234567"}
    assert prompt.needle.format(**needle) == WORDINGS[0].fact.format(key="bako", value="1234567")


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
