from __future__ import annotations

import numpy as np

from gatebench.data.overlap import GramStore, contained_shares, gram_hashes, repeated_shares
from tests.data.conftest import prose


def test_a_text_of_n_words_has_n_minus_12_grams() -> None:
    assert len(gram_hashes(" ".join(f"word{i}" for i in range(100)))) == 88


def test_case_and_punctuation_do_not_matter() -> None:
    words = [f"word{i}" for i in range(20)]
    assert np.array_equal(gram_hashes(" ".join(words)), gram_hashes(", ".join(w.upper() for w in words) + "!"))


def test_chinese_counts_by_character() -> None:
    text = "天地玄黄宇宙洪荒日月盈昃辰宿列张"  # 16 characters, no space
    assert len(gram_hashes(text)) == 4
    assert np.array_equal(gram_hashes(text), gram_hashes("天地玄黄，宇宙洪荒。日月盈昃，辰宿列张！"))


def test_a_text_shorter_than_a_gram_is_one_gram() -> None:
    assert len(gram_hashes("three words only")) == 1
    assert len(gram_hashes("...")) == 0


def test_repeated_share_counts_grams_of_earlier_documents() -> None:
    first, second = prose(1, 112), prose(2, 112)  # 100 grams each
    half = " ".join(first.split()[:62])  # 50 grams of `first`
    shares = repeated_shares([gram_hashes(t) for t in (first, second, f"{half} . {second}", first)])
    assert shares[0] == shares[1] == 0
    assert np.isclose(shares[2], 150 / 162)  # 12 grams span the joint
    assert shares[3] == 1


def test_contained_share() -> None:
    reference = [gram_hashes(prose(1, 212))]
    quarter = " ".join(prose(1, 212).split()[:62])
    shares = contained_shares([gram_hashes(quarter), gram_hashes(prose(2))], reference)
    assert shares.tolist() == [1.0, 0.0]
    assert contained_shares([gram_hashes("anything at all")], []).tolist() == [0.0]


def test_sampled_grams_keep_shares() -> None:
    """Beyond its limit a store keeps one gram in 2, 4, ...: the same ones in every document."""
    store = GramStore(limit=8000)
    texts = [prose(1, 20_000), prose(2, 20_000), prose(1, 20_000)]
    for text in texts:
        store.add(gram_hashes(text))
    assert store.one_in == 8
    sets = store.sets(range(3))
    assert 2300 < len(sets[0]) < 2700
    assert repeated_shares(sets).tolist() == [0.0, 0.0, 1.0]
