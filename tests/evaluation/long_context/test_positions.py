"""Windows of the same text at every length, and the loss by position in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from gatebench.evaluation.long_context.positions import by_position, heldout_pieces, windows_of

PIECES = np.arange(2 * 65).reshape(2, 65)


def test_with_bos_every_length_reads_the_same_text() -> None:
    short, long = windows_of(PIECES, 16, bos_id=999), windows_of(PIECES, 64, bos_id=999)
    assert short.shape == (8, 17) and long.shape == (2, 65)
    assert (short[:, 0] == 999).all() and (long[:, 0] == 999).all()
    assert np.array_equal(short[:, 1:].ravel(), long[:, 1:].ravel())
    assert np.array_equal(long[0, 1:], np.arange(64))


def test_without_bos_the_first_token_is_no_target() -> None:
    windows = windows_of(PIECES, 15, bos_id=None)
    assert windows.shape == (8, 16)
    assert np.array_equal(windows[1], np.arange(16, 32))


def test_pieces_take_turns_between_domains(tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    pieces = heldout_pieces(corpus, 32, 6 * 32)
    assert pieces.shape == (6, 33)
    for domain, piece in zip(corpus.domains, pieces, strict=True):
        assert np.array_equal(piece, corpus.tokens("heldout", domain, 0, 33))


def test_a_length_without_text_is_refused(tiny_corpus: Path) -> None:
    with pytest.raises(UserError, match=r"length 10000000: corpus 'tiny' has not so much held-out text; legal: \d+ or"):
        heldout_pieces(Corpus.open(tiny_corpus), 10_000_000, 1)


def test_bins_and_the_last_quarter() -> None:
    losses = np.tile(np.arange(64.0), (2, 1))
    losses[1] += 2
    bins, tail = by_position(losses)
    assert [(part.start, part.stop) for part in bins[:2]] == [(0, 4), (4, 8)]
    assert bins[0].nats == 2.5  # 1.5 and 3.5
    assert (tail.start, tail.stop, tail.nats) == (48, 64, 56.5)
    assert tail.high is not None and tail.high - tail.nats == pytest.approx(12.706, abs=1e-3)  # t(1) sd / sqrt(2)
    assert by_position(losses[:1])[1].low is None
