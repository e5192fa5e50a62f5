from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gatebench.data.tokens import Corpus, TrainingWindows, heldout_windows
from gatebench.errors import UserError


@pytest.fixture
def corpus(tiny_corpus: Path) -> Corpus:
    return Corpus.open(tiny_corpus)


@pytest.fixture
def copy(tiny_corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_corpus, tmp_path / "copy"))


# Opening


def test_a_missing_corpus_says_how_to_build_it() -> None:
    with pytest.raises(
        UserError, match=r"corpus 'six_domains' not found in .*corpora: build it with `gatebench data build"
    ):
        Corpus.open("six_domains")


def test_a_corpus_opens_by_name_below_the_cache(copy: Path, own_cache: Path) -> None:
    (own_cache / "corpora").mkdir(parents=True)
    copy.rename(own_cache / "corpora" / "mine")
    assert Corpus.open("mine").path == own_cache / "corpora" / "mine"


def test_a_truncated_shard_is_named_with_its_sizes(copy: Path) -> None:
    shard = copy / "train" / "law-00000.bin"
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[: size - 2])
    with pytest.raises(UserError, match=f"law-00000.bin has {size - 2} bytes, {size} expected"):
        Corpus.open(copy)


def test_a_missing_shard_is_named(copy: Path) -> None:
    (copy / "heldout" / "math.docs.npy").unlink()
    with pytest.raises(UserError, match=r"math.docs.npy is missing"):
        Corpus.open(copy)


@pytest.mark.parametrize("manifest", ["{", "[]", '{"format": "other"}', '{"format": "gatebench-corpus"}'])
def test_a_bad_manifest_is_one_line(copy: Path, manifest: str) -> None:
    (copy / "manifest.json").write_text(manifest)
    with pytest.raises(UserError, match="bad corpus manifest"):
        Corpus.open(copy)


def test_fingerprint_follows_the_tokens_and_not_the_date(copy: Path, corpus: Corpus) -> None:
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    manifest["seconds"] = {"collect": 1e9}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert Corpus.open(copy).fingerprint == corpus.fingerprint
    manifest["files"]["train/law-00000.bin"]["sha256"] = "0" * 64
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert Corpus.open(copy).fingerprint != corpus.fingerprint


def test_unknown_domain_and_split_are_refused(corpus: Corpus) -> None:
    with pytest.raises(UserError, match=r"unknown domain 'medicine' .* legal are english, chinese"):
        corpus.n_tokens("train", "medicine")
    with pytest.raises(UserError, match="unknown split 'test': legal are train, heldout"):
        corpus.documents("test", "law")
    with pytest.raises(IndexError):
        corpus.tokens("train", "law", 0, corpus.n_tokens("train", "law") + 1)


def test_pickling_carries_no_tokens(corpus: Corpus) -> None:
    before = corpus.tokens("train", "law", 5, 50)
    data = pickle.dumps(corpus)
    assert len(data) < 40_000
    assert np.array_equal(pickle.loads(data).tokens("train", "law", 5, 50), before)


# Training windows


@pytest.mark.parametrize("bos", [True, False])
def test_an_epoch_targets_every_token_at_most_once(corpus: Corpus, bos: bool) -> None:
    windows = TrainingWindows(corpus, 32, bos=bos, seed=3)
    located = windows.locate(np.arange(windows.n_windows))
    assert len({(d, w) for d, w, _ in located}) == windows.n_windows
    for domain in corpus.domains:
        starts = sorted(w for d, w, _ in located if d == domain)
        n = corpus.n_tokens("train", domain)
        assert starts == list(range(n // 32 if bos else (n - 1) // 32))


def test_a_window_begins_with_one_bos_and_holds_consecutive_tokens(corpus: Corpus) -> None:
    windows = TrainingWindows(corpus, 32)
    domain, window, _ = windows.locate(np.array([7]))[0]
    sequence = windows.sequence(7)
    assert sequence.shape == (33,)
    assert sequence[0] == corpus.bos_id
    assert np.array_equal(sequence[1:], corpus.tokens("train", domain, window * 32, window * 32 + 32))
    assert (windows.batch(0, 16)[:, 1:] != corpus.bos_id).all()


def test_without_bos_windows_overlap_by_the_token_that_is_only_input(corpus: Corpus) -> None:
    windows = TrainingWindows(corpus, 32, bos=False)
    domain, window, _ = windows.locate(np.array([0]))[0]
    assert np.array_equal(windows.sequence(0), corpus.tokens("train", domain, window * 32, window * 32 + 33))


@pytest.mark.parametrize("mixture", ["proportional", "uniform", {"law": 0.25, "code": 0.75}])
def test_order_is_a_function_of_seed_and_index_alone(corpus: Corpus, mixture: str | dict[str, float]) -> None:
    windows = TrainingWindows(corpus, 32, seed=1, mixture=mixture)
    batches = [windows.batch(step, 4) for step in range(20)]
    fresh = pickle.loads(pickle.dumps(TrainingWindows(Corpus.open(corpus.path), 32, seed=1, mixture=mixture)))
    for step in (19, 3, 11):  # another object, another order of asking
        assert np.array_equal(fresh.batch(step, 4), batches[step])
    assert np.array_equal(fresh.batch(2, 16), np.concatenate(batches[8:12]))  # sequences 32..47
    assert np.array_equal(fresh.sequence(42), batches[10][2])
    other_seed = TrainingWindows(corpus, 32, seed=2, mixture=mixture)
    assert not np.array_equal(other_seed.batch(0, 4), batches[0])


def test_order_is_the_same_in_another_process(corpus: Corpus) -> None:
    program = (
        "import sys; from gatebench.data.tokens import Corpus, TrainingWindows;"
        "windows = TrainingWindows(Corpus.open(sys.argv[1]), 32, seed=5, mixture='uniform');"
        "print(windows.batch(9, 4).sum(axis=1).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program, str(corpus.path)], capture_output=True, text=True, check=True)
    here = TrainingWindows(corpus, 32, seed=5, mixture="uniform").batch(9, 4).sum(axis=1).tolist()
    assert json.loads(done.stdout) == here


def test_epochs_have_different_orders(corpus: Corpus) -> None:
    windows = TrainingWindows(corpus, 64)
    n = windows.n_windows
    first, second = (windows.locate(np.arange(e * n, e * n + n)) for e in (0, 1))
    assert [epoch for *_, epoch in windows.locate(np.array([n - 1, n]))] == [0, 1]
    assert sorted(w[:2] for w in first) == sorted(w[:2] for w in second)
    assert sum(a[:2] == b[:2] for a, b in zip(first, second, strict=True)) < 0.02 * n


def test_proportional_shares_are_the_domains_sizes(corpus: Corpus) -> None:
    windows = TrainingWindows(corpus, 32)
    counts = Counter(d for d, _, _ in windows.locate(np.arange(windows.n_windows)))
    assert counts == {d: corpus.n_tokens("train", d) // 32 for d in corpus.domains}


def test_uniform_shares_are_exact(corpus: Corpus) -> None:
    windows = TrainingWindows(corpus, 32, mixture="uniform")
    counts = Counter(d for d, _, _ in windows.locate(np.arange(6 * 1026)))
    assert counts == dict.fromkeys(corpus.domains, 1026)


def test_weighted_shares_are_exact_and_zero_means_never(corpus: Corpus) -> None:
    windows = TrainingWindows(corpus, 32, mixture={"law": 0.1, "code": 0.6, "math": 0.3, "english": 0})
    counts = Counter(d for d, _, _ in windows.locate(np.arange(10_300)))  # ten cycles of 1,030
    assert counts == {"code": 6180, "math": 3090, "law": 1030}


def test_a_mixture_uses_all_windows_of_a_domain_before_repeating_one(corpus: Corpus) -> None:
    windows = TrainingWindows(corpus, 32, mixture="uniform", seed=4)
    seen: dict[str, list[tuple[int, int]]] = {d: [] for d in corpus.domains}
    for domain, window, epoch in windows.locate(np.arange(20_000)):
        seen[domain].append((window, epoch))
    n = windows.windows_per_domain["law"]
    assert len(seen["law"]) > 2 * n
    for epoch in (0, 1):
        passed = seen["law"][epoch * n : (epoch + 1) * n]
        assert sorted(w for w, _ in passed) == list(range(n))
        assert {e for _, e in passed} == {epoch}


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ({"medicine": 1.0}, "unknown domain 'medicine'"),
        ("balanced", "unknown mixture 'balanced': legal are proportional, uniform"),
        ({"law": -1.0}, "weight of 'law' must be a number >= 0"),
        ({"law": float("nan")}, "weight of 'law' must be a number >= 0"),
        ({"law": 0.0}, "gives no domain a positive weight"),
        ({}, "gives no domain a positive weight"),
    ],
)
def test_bad_mixtures_are_refused(corpus: Corpus, mixture: str | dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainingWindows(corpus, 32, mixture=mixture)


def test_a_window_longer_than_the_text_is_refused(corpus: Corpus) -> None:
    with pytest.raises(UserError, match="no training window of seq_len 1000000"):
        TrainingWindows(corpus, 1_000_000)
    with pytest.raises(UserError, match=r"domain 'law' has \d+ training tokens, fewer than one window"):
        TrainingWindows(corpus, 1_000_000, mixture={"law": 1.0})


@pytest.mark.parametrize("mixture", ["proportional", "uniform"])
def test_a_batch_of_16_by_256_takes_milliseconds(corpus: Corpus, mixture: str) -> None:
    windows = TrainingWindows(corpus, 256, mixture=mixture)
    windows.batch(0, 16)
    best = float("inf")
    for step in range(1, 30):
        started = time.perf_counter()
        windows.batch(step, 16)
        best = min(best, time.perf_counter() - started)
    assert best < 0.016


# Held-out windows


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("domain", ["english", "chinese", "code"])
def test_every_heldout_token_is_scored_once(corpus: Corpus, domain: str, bos: bool) -> None:
    windows = heldout_windows(corpus, domain, 48, bos=bos)
    scored = windows.targets[windows.targets >= 0]
    offsets = corpus.documents("heldout", domain).tolist()
    skipped = 0 if bos else 1  # a first token that follows nothing
    expected = [corpus.tokens("heldout", domain, a + skipped, b - 1) for a, b in pairwise(offsets)]
    assert np.array_equal(scored, np.concatenate(expected))
    assert corpus.eos_id not in scored
    if bos:
        assert corpus.token_bytes[scored].sum() == corpus.manifest["domains"][domain]["heldout"]["bytes"]


def test_heldout_inputs_are_the_targets_moved_by_one(corpus: Corpus) -> None:
    with_bos = heldout_windows(corpus, "law", 48)
    assert (with_bos.inputs[:, 0] == corpus.bos_id).all()
    real = with_bos.targets[:, :-1] >= 0
    following = with_bos.targets[:, 1:] >= 0
    assert np.array_equal(with_bos.inputs[:, 1:][following], with_bos.targets[:, :-1][following])
    assert (with_bos.inputs[:, 1:][~real] == corpus.eos_id).all()
    without = heldout_windows(corpus, "law", 48, bos=False)
    following = without.targets[:, 1:] >= 0
    assert np.array_equal(without.inputs[:, 1:][following], without.targets[:, :-1][following])
    assert without.inputs[0, 0] == corpus.tokens("heldout", "law", 0, 1)[0]


def test_windows_do_not_cross_documents(corpus: Corpus) -> None:
    lengths = np.diff(corpus.documents("heldout", "law")) - 1
    windows = heldout_windows(corpus, "law", 48)
    assert len(windows.inputs) == sum(-(-n // 48) for n in lengths.tolist())
    assert (windows.inputs == corpus.eos_id).sum() == len(windows.inputs) * 48 - lengths.sum()


def test_max_tokens_takes_a_fixed_sample_over_many_documents(corpus: Corpus) -> None:
    sample = heldout_windows(corpus, "code", 32, max_tokens=1000)
    n = (sample.targets >= 0).sum()
    assert 1000 <= n < 1032
    again = heldout_windows(Corpus.open(corpus.path), "code", 32, max_tokens=1000)
    assert np.array_equal(sample.inputs, again.inputs)
    larger = heldout_windows(corpus, "code", 32, max_tokens=2000)
    assert {r.tobytes() for r in sample.inputs} <= {r.tobytes() for r in larger.inputs}
    everything = heldout_windows(corpus, "code", 32)
    everything_asked = heldout_windows(corpus, "code", 32, max_tokens=10**9)
    assert np.array_equal(everything.targets, everything_asked.targets)
    starts = {r.tobytes() for r in everything.inputs}
    assert {r.tobytes() for r in sample.inputs} <= starts


@pytest.mark.parametrize("bos", [True, False])
def test_full_only_leaves_out_the_windows_with_padding(corpus: Corpus, bos: bool) -> None:
    everything = heldout_windows(corpus, "law", 48, bos=bos)
    full = (everything.targets >= 0).all(axis=1)
    assert 0 < full.sum() < len(full)
    found = heldout_windows(corpus, "law", 48, bos=bos, full_only=True)
    assert np.array_equal(found.inputs, everything.inputs[full])
    assert np.array_equal(found.targets, everything.targets[full])
    sample = heldout_windows(corpus, "law", 48, bos=bos, max_tokens=100, full_only=True)
    assert sample.inputs.shape == (3, 48) and (sample.targets >= 0).all()
    for max_tokens in (None, 100):
        none = heldout_windows(corpus, "law", 10**6, bos=bos, max_tokens=max_tokens, full_only=True)
        assert none.inputs.shape == none.targets.shape == (0, 10**6)


def test_bad_heldout_requests_are_refused(corpus: Corpus) -> None:
    with pytest.raises(UserError, match="unknown domain 'medicine'"):
        heldout_windows(corpus, "medicine", 32)
    with pytest.raises(UserError, match="seq_len must be at least 1, not 0"):
        heldout_windows(corpus, "law", 0)
    with pytest.raises(UserError, match="max_tokens must be at least 1, not 0"):
        heldout_windows(corpus, "law", 32, max_tokens=0)
