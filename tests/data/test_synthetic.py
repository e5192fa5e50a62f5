"""Bigram-backcopy: its rules, its order, and the floor of its loss."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from gatebench.config import SYNTHETIC_CORPORA, SyntheticConfig
from gatebench.data.backcopy import MOVE_BITS, TRIGGER_BITS, BigramBackcopy, SyntheticWindows
from gatebench.data.reading import heldout_windows, open_data, training_windows
from gatebench.errors import UserError
from gatebench.recipes import make_run, run_from_yaml, to_yaml

DEFAULT = BigramBackcopy(SyntheticConfig())
BUSY = BigramBackcopy(SyntheticConfig(n_tokens=6, n_triggers=2, trigger_rate=0.6, concentration=1.0))
PROCESSES = pytest.mark.parametrize("process", [DEFAULT, BUSY], ids=["default", "busy"])


def batch(process: BigramBackcopy, n: int = 500, seq_len: int = 128, *, seed: int = 0) -> NDArray[np.int64]:
    return SyntheticWindows(process, seq_len, seed=seed).batch(0, n)


# --- the process


@PROCESSES
def test_after_a_trigger_comes_the_token_before_it(process: BigramBackcopy) -> None:
    ids = batch(process)
    row, column = np.nonzero(process.is_trigger(ids[:, :-1]))
    assert len(row) > 4000
    assert np.array_equal(ids[row, column + 1], ids[row, column - 1])
    assert column.min() == 2  # after BOS and an ordinary token
    assert not (process.is_trigger(ids[:, 1:]) & process.is_trigger(ids[:, :-1])).any()


@PROCESSES
def test_bos_stands_at_the_start_and_only_there(process: BigramBackcopy) -> None:
    ids = batch(process)
    assert (ids[:, 0] == 0).all() and (ids[:, 1:] > 0).all()
    assert set(np.unique(ids)) == set(range(process.vocab_size))
    assert process.vocab_size == 1 + process.config.n_tokens + process.config.n_triggers


@PROCESSES
def test_moves_triggers_and_first_tokens_have_the_stated_frequencies(process: BigramBackcopy) -> None:
    ids = batch(process, 4000)
    before, after = ids[:, 1:-1], ids[:, 2:]
    free = ~process.is_trigger(before)
    triggers = process.is_trigger(after[free])
    assert stats.binomtest(int(triggers.sum()), triggers.size, process.trigger_bins / 2**TRIGGER_BITS).pvalue > 1e-3
    which = np.bincount(after[free][triggers] - process.first_trigger)
    assert stats.chisquare(which).pvalue > 1e-3
    assert stats.chisquare(*expected(process.initial_bins, ids[:, 1])).pvalue > 1e-3
    p_values = [
        stats.chisquare(*expected(process.move_bins[k], after[free & (before == k + 1) & ~process.is_trigger(after)]))
        for k in range(process.config.n_tokens)
    ]
    assert min(p.pvalue for p in p_values) > 1e-3 / process.config.n_tokens


def expected(bins: NDArray[np.int64], drawn: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return counts of ordinary tokens and what their bins let expect, the rare ones together."""
    counts = np.bincount(drawn - 1, minlength=len(bins)).astype(float)
    wanted = bins / 2**MOVE_BITS * len(drawn)
    rare = wanted < 10
    if rare.any():
        counts, wanted = (np.append(x[~rare], x[rare].sum()) for x in (counts, wanted))
    return counts, wanted


def test_every_move_is_possible_and_a_row_is_a_distribution() -> None:
    for process in (DEFAULT, BUSY):
        assert (process.move_bins >= 1).all() and (process.move_bins.sum(axis=1) == 2**MOVE_BITS).all()
        assert (process.initial_bins >= 1).all() and process.initial_bins.sum() == 2**MOVE_BITS
        sums = process.transitions.sum(axis=1)
        assert sums[: process.first_trigger] == pytest.approx(1, abs=1e-12)
        assert (sums[process.first_trigger :] == 0).all()


def test_the_first_token_has_the_stationary_distribution_of_the_chain() -> None:
    initial = DEFAULT.initial_bins / 2**MOVE_BITS
    assert initial @ (DEFAULT.move_bins / 2**MOVE_BITS) == pytest.approx(initial, abs=1e-3)


def test_without_triggers_it_is_a_markov_chain() -> None:
    process = BigramBackcopy(SyntheticConfig(trigger_rate=0))
    assert batch(process).max() == 64
    assert process.entropy_floor(128).copy_share == 0


# --- the order


def test_a_sequence_is_a_function_of_data_seed_and_number() -> None:
    windows = SyntheticWindows(DEFAULT, 128, seed=3)
    whole = windows.batch(0, 64)
    again = SyntheticWindows(BigramBackcopy(SyntheticConfig()), 128, seed=3)
    assert np.array_equal(again.batch(3, 16), whole[48:])  # another process that starts at step 3
    assert np.array_equal(again.batch(1, 16), whole[16:32])  # and goes back
    assert all(np.array_equal(again.batch(n, 1)[0], whole[n]) for n in (63, 0, 17))
    assert np.array_equal(pickle.loads(pickle.dumps(windows)).batch(0, 64), whole)


def test_a_longer_sequence_begins_with_the_shorter() -> None:
    assert np.array_equal(batch(DEFAULT, 20, 256)[:, :129], batch(DEFAULT, 20, 128))
    without = SyntheticWindows(DEFAULT, 128, bos=False).batch(0, 20)
    assert np.array_equal(without[:, :-1], batch(DEFAULT, 20)[:, 1:])


def test_no_sequence_comes_twice_in_training_or_on_both_sides() -> None:
    heldout = heldout_windows(DEFAULT, "bigram_backcopy", 128, max_tokens=128 * 1000)
    several = [batch(DEFAULT, 2000, seed=seed)[:, :-1] for seed in (0, 1, 2)] + [heldout.inputs]
    assert len(np.unique(np.concatenate(several), axis=0)) == 7000


def test_the_run_seed_draws_other_sequences_of_the_same_process() -> None:
    first, second = (make_run("sink_lab", "baseline", seed) for seed in (0, 1))
    sources = [open_data(config.data) for config in (first, second)]
    assert sources[0].fingerprint == sources[1].fingerprint
    drawn = [
        training_windows(s, c.data, c.data_seed).batch(0, 8) for s, c in zip(sources, (first, second), strict=True)
    ]
    assert not np.array_equal(*drawn)


def test_the_held_out_windows_are_full_and_the_same_for_every_run() -> None:
    windows = heldout_windows(DEFAULT, "bigram_backcopy", 128, max_tokens=1000)
    assert windows.inputs.shape == windows.targets.shape == (8, 128)
    assert (windows.inputs[:, 0] == 0).all() and np.array_equal(windows.inputs[:, 1:], windows.targets[:, :-1])
    full = heldout_windows(DEFAULT, "bigram_backcopy", 128, max_tokens=1000, full_only=True)
    assert np.array_equal(full.inputs, windows.inputs) and np.array_equal(full.targets, windows.targets)
    more = heldout_windows(BigramBackcopy(SyntheticConfig()), "bigram_backcopy", 128, max_tokens=2000)
    assert np.array_equal(more.inputs[:8], windows.inputs)


def test_the_fingerprint_is_of_the_whole_definition() -> None:
    assert DEFAULT.fingerprint == BigramBackcopy(SyntheticConfig()).fingerprint
    changed = [("n_tokens", 63), ("n_triggers", 2), ("trigger_rate", 0.11), ("concentration", 0.2), ("seed", 1)]
    others = {BigramBackcopy(SyntheticConfig(**{key: value})).fingerprint for key, value in changed}  # type: ignore[arg-type]
    assert len(others | {DEFAULT.fingerprint}) == 6


def test_the_default_process_is_the_one_that_published_runs_have_seen() -> None:
    """A change of these numbers makes every sink-lab result another experiment: say so in the CHANGELOG."""
    assert DEFAULT.fingerprint[:12] == "83f12c92a161"
    assert batch(DEFAULT, 1)[0, :16].tolist() == [0, 11, 4, 46, 46, 5, 40, 64, 50, 38, 7, 44, 23, 50, 41, 66]


# --- the floor


def test_the_default_floor_in_nats() -> None:
    floor = DEFAULT.entropy_floor(128)
    assert floor.overall == pytest.approx(2.39848, abs=1e-5)
    assert floor.other == pytest.approx(2.63441, abs=1e-5)
    assert floor.copy_share == pytest.approx(0.089558, abs=1e-6)


def test_the_floor_of_a_uniform_chain_has_a_closed_form() -> None:
    """Four equal moves and a trigger half of the time: ln 2 + ln(4) / 2 nats at 2 positions of 3, else nothing."""
    process = BigramBackcopy(SyntheticConfig(n_tokens=4, n_triggers=1, trigger_rate=0.5, concentration=1e9))
    assert process.entropy_floor(100_000).overall == pytest.approx(2 / 3 * 2 * math.log(2), abs=1e-4)
    assert process.entropy_floor(100_000).copy_share == pytest.approx(1 / 3, abs=1e-4)
    # BOS (ln 4), an ordinary token (2 ln 2), and then a trigger or another one with equal chance.
    assert process.entropy_floor(3).overall == pytest.approx((2 + 2 + 1) / 3 * math.log(2), abs=1e-6)


@pytest.mark.parametrize("bos", [True, False])
def test_the_floor_is_the_entropy_of_all_windows_there_are(bos: bool) -> None:
    process = BigramBackcopy(SyntheticConfig(n_tokens=2, n_triggers=2, trigger_rate=0.3, concentration=1.0))
    seq_len = 5
    texts = np.array(list(itertools.product(range(1, 5), repeat=seq_len if bos else seq_len + 1)))
    texts = texts[~process.is_trigger(texts[:, 0])]  # a sequence begins with an ordinary token
    windows = np.concatenate((np.zeros((len(texts), 1), np.int64), texts), axis=1)
    chosen = chosen_probabilities(process, windows)
    probability = chosen.prod(axis=1)
    assert probability.sum() == pytest.approx(1, abs=1e-12)
    scored = chosen if bos else chosen[:, 1:]
    seen = probability > 0
    loss = -(probability[seen, None] * np.log(scored[seen])).sum(axis=0)
    floor = process.entropy_floor(seq_len, bos=bos)
    assert floor.overall == pytest.approx(loss.mean(), abs=1e-12)
    copies = process.is_trigger(windows[:, :-1] if bos else windows[:, 1:-1])
    share = float((probability[:, None] * copies).sum()) / seq_len
    assert floor.copy_share == pytest.approx(share, abs=1e-12)
    assert floor.other == pytest.approx(loss.mean() / (1 - share), abs=1e-12)


def chosen_probabilities(process: BigramBackcopy, windows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what the true predictor gives to each target of `windows`, (N, L)."""
    probabilities = process.next_token_probabilities(windows[:, :-1])
    assert probabilities.sum(axis=-1) == pytest.approx(1, abs=1e-12)
    chosen: NDArray[np.float64] = np.take_along_axis(probabilities, windows[:, 1:, None], axis=2)[..., 0]
    return chosen


@PROCESSES
@pytest.mark.parametrize("bos", [True, False])
def test_the_true_predictor_scores_the_floor_in_a_long_run(process: BigramBackcopy, bos: bool) -> None:
    windows = SyntheticWindows(process, 128, bos=bos)
    losses = np.concatenate([window_losses(process, windows.batch(step, 250)) for step in range(8)])
    error = losses.std() / math.sqrt(len(losses))
    assert error < 0.003
    assert losses.mean() == pytest.approx(process.entropy_floor(128, bos=bos).overall, abs=3.5 * error)


def window_losses(process: BigramBackcopy, windows: NDArray[np.int64]) -> NDArray[np.float64]:
    losses: NDArray[np.float64] = -np.log(chosen_probabilities(process, windows)).mean(axis=1)
    return losses


# --- refusals


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.synthetic.n_tokens=1"], ["data.synthetic.n_tokens=1", "greater than or equal to 2"]),
        (["data.synthetic.trigger_rate=1"], ["data.synthetic.trigger_rate=1", "less than 1"]),
        (["data.synthetic.n_token=8"], ["key 'data.synthetic.n_token' is unknown", "did you mean n_tokens"]),
        (["data.corpus=six_domains"], ["data.synthetic: does not go with data.corpus='six_domains'", "null"]),
        (["data.mixture=uniform"], ["data.mixture='uniform'", "legal: proportional"]),
        (["eval.tokens_per_domain=null"], ["eval.tokens_per_domain=null", "has no end", "legal: a number"]),
    ],
)
def test_a_bad_definition_is_refused_in_one_line(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        make_run("sink_lab", "baseline", 0, overrides)
    assert "\n" not in str(error.value)
    assert [word for word in words if word not in str(error.value)] == [], error.value


def test_the_name_alone_gives_the_default_process() -> None:
    assert (BigramBackcopy.name,) == SYNTHETIC_CORPORA
    config = make_run("quick", "baseline", 0, ["data.corpus=bigram_backcopy"])
    assert config.data.synthetic == SyntheticConfig()
    assert open_data(config.data).fingerprint == DEFAULT.fingerprint
    assert run_from_yaml(to_yaml(config), "config.yaml") == config


def test_every_key_of_the_definition_decides_the_run() -> None:
    base = make_run("sink_lab", "baseline")
    changes = ["n_tokens=32", "n_triggers=4", "trigger_rate=0.3", "concentration=1", "seed=1"]
    changed = [make_run("sink_lab", "baseline", 0, [f"data.synthetic.{change}"]) for change in changes]
    assert len({config.fingerprint for config in (base, *changed)}) == 6


@pytest.mark.parametrize(("domain", "max_tokens"), [("english", 100), ("bigram_backcopy", None)])
def test_held_out_windows_need_the_domain_and_a_number(domain: str, max_tokens: int | None) -> None:
    with pytest.raises(UserError, match="bigram_backcopy"):
        heldout_windows(DEFAULT, domain, 128, max_tokens=max_tokens)
