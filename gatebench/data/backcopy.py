"""Bigram-backcopy: a Markov chain in which the token after a trigger copies the token before it.

The task of Guo et al. 2024 (arXiv 2410.13835, "Active-Dormant Attention Heads"): most tokens follow from the one before
them, which needs no attention, so that a head has work to do only after a trigger. Two choices of ours: a trigger comes
with the same probability after every token, and the transition matrix is drawn from a Dirichlet distribution.

Every probability is a whole number of small bins, so that the process that is sampled is known exactly, and with it the
entropy that no predictor can beat. Letters in shapes: N sequences, L tokens, K ordinary tokens, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatebench.config import SyntheticConfig
from gatebench.data.permutation import mix64, stable_hash
from gatebench.data.tokens import HeldoutWindows
from gatebench.errors import UserError

MOVE_BITS = 14
"""A transition has a whole number of 2^-14 of probability, and at least one."""
TRIGGER_BITS = 16
"""So has a trigger, of 2^-16 (it may be 0)."""

_VERSION = 1
_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the step of SplitMix64
_MOVES, _TRIGGERS = np.uint64(2**MOVE_BITS - 1), np.uint64(2**TRIGGER_BITS - 1)


@dataclass(frozen=True)
class EntropyFloor:
    """The expected loss, in nats per target, of a predictor that knows the process and sees the whole window."""

    overall: float
    """Mean over all targets of a window."""
    other: float
    """Mean over the targets that do not follow a trigger; those that do cost nothing."""
    copy_share: float
    """Expected share of targets that follow a trigger."""


class BigramBackcopy:
    """The process that a `data.synthetic` section defines; stands where a built corpus stands for text.

    Ids: 0 is BOS, 1 .. K are ordinary tokens, K + 1 .. K + n_triggers are triggers. A sequence begins with an ordinary
    token from the chain's stationary distribution. After an ordinary token a trigger comes with probability
    `trigger_rate` (each of them equally often), else the chain moves to another ordinary token; after a trigger comes a
    copy of the ordinary token before it, so that triggers never stand side by side.
    """

    name = "bigram_backcopy"
    domains = (name,)
    bos_id = 0

    def __init__(self, config: SyntheticConfig) -> None:
        self.config = config
        n = config.n_tokens
        self.vocab_size = 1 + n + config.n_triggers
        self.first_trigger = 1 + n
        self.token_bytes: NDArray[np.int32] = np.ones(self.vocab_size, np.int32)
        """One each: bits per byte are bits per token here."""
        rng = np.random.Generator(np.random.Philox(stable_hash(self.name, "transitions", config.seed)))
        rows = rng.dirichlet(np.full(n, config.concentration), size=n)
        self.move_bins: NDArray[np.int64] = np.stack([_in_bins(row) for row in rows])
        """(K, K) bins of 2^-14: row a is how often each ordinary token follows a, where no trigger does."""
        self.initial_bins: NDArray[np.int64] = _in_bins(_stationary(self.move_bins / 2**MOVE_BITS))
        """(K,) bins of the first token."""
        self.trigger_bins = round(config.trigger_rate * 2**TRIGGER_BITS)
        self.transitions = self._transitions()
        """(V, V) distribution of the next token by the present one; rows of triggers are 0 (a copy comes)."""
        self.fingerprint = self._fingerprint()
        self._next_row = _lookup(self.move_bins) << MOVE_BITS
        self._first_row = _lookup(self.initial_bins[None]) << MOVE_BITS

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["config"])  # type: ignore[misc]

    def _transitions(self) -> NDArray[np.float64]:
        n, rate = self.config.n_tokens, self.trigger_bins / 2**TRIGGER_BITS
        transitions = np.zeros((self.vocab_size, self.vocab_size))
        transitions[0, 1 : n + 1] = self.initial_bins / 2**MOVE_BITS
        transitions[1 : n + 1, 1 : n + 1] = (1 - rate) * self.move_bins / 2**MOVE_BITS
        draws = np.arange(2**TRIGGER_BITS) * self.config.n_triggers >> TRIGGER_BITS
        transitions[1 : n + 1, n + 1 :] = rate * np.bincount(draws, minlength=self.config.n_triggers) / len(draws)
        return transitions

    def _fingerprint(self) -> str:
        """sha256 (hex) of everything that decides the sequences."""
        numbers = (_VERSION, self.config.n_tokens, self.config.n_triggers, self.trigger_bins, self.config.seed)
        digest = hashlib.sha256(f"{self.name} {numbers}".encode())
        for bins in (self.move_bins, self.initial_bins):
            digest.update(bins.astype("<i8").tobytes())
        return digest.hexdigest()

    def stream(self, split: str, seed: int = 0) -> Stream:
        """Return the endless stream of sequences of a split: "train" has one for every seed, "heldout" is one."""
        if split not in ("train", "heldout"):
            raise ValueError(f"unknown split {split!r}: legal are train, heldout")
        key = (seed,) if split == "train" else ()
        return Stream(self, stable_hash(self.name, self.config.seed, split, *key))

    def is_trigger(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say of each id, of any shape, whether it is a trigger."""
        return ids >= self.first_trigger

    def next_token_probabilities(self, inputs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the true distribution of the token that follows each input, given all before: (N, L, V).

        `inputs` (N, L) are windows from their first token on, with BOS or without.
        """
        probabilities = self.transitions[inputs]
        row, column = np.nonzero(self.is_trigger(inputs))
        probabilities[row, column, inputs[row, column - 1]] = 1.0
        return probabilities

    def entropy_floor(self, seq_len: int, *, bos: bool = True) -> EntropyFloor:
        """Return the exact floor of the loss over windows of `seq_len` inputs.

        A target's entropy depends only on the ordinary token before it (after a trigger it is 0, after BOS it is that
        of the first token), and how often each stands at each position follows from the first by the chain.
        """
        moves, rate = self.move_bins / 2**MOVE_BITS, self.trigger_bins / 2**TRIGGER_BITS
        entropies = _entropy(self.transitions)
        of_first, of_ordinary = float(entropies[0]), entropies[1 : self.first_trigger]
        ordinary: NDArray[np.float64] = self.initial_bins / 2**MOVE_BITS  # P(here stands ordinary token k)
        after: NDArray[np.float64] = np.zeros_like(ordinary)  # P(here stands a trigger, with k before it)
        total, copies = (of_first, 0.0) if bos else (0.0, 0.0)
        for _ in range(seq_len - 1 if bos else seq_len):
            total += float(ordinary @ of_ordinary)
            copies += float(after.sum())
            ordinary, after = (1 - rate) * (ordinary @ moves) + after, rate * ordinary
        return EntropyFloor(total / seq_len, total / (seq_len - copies), copies / seq_len)


class Stream:
    """Sequences by number; number n is a pure function of (definition, split, seed, n), and so is each of its tokens.

    The random bits of position i of sequence n are SplitMix64's, the state of a sequence being a hash of n: no
    generator is carried along, and a longer sequence begins with the shorter one.
    """

    def __init__(self, process: BigramBackcopy, key: int) -> None:
        self.process = process
        self.key = key

    def sequences(self, numbers: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return the sequences of these numbers, without BOS: (N, length) int64."""
        process = self.process
        states = mix64(mix64(numbers.astype(np.uint64)) ^ np.uint64(self.key))
        bits = mix64(states[:, None] + np.arange(length, dtype=np.uint64) * _GAMMA)  # (N, L)

        position = np.arange(length)
        wanted = (bits & _TRIGGERS).astype(np.int64) < process.trigger_bins
        wanted[:, 0] = False
        # Of a run of positions that want a trigger every second one gets it: between two stands a copy.
        last_free = np.maximum.accumulate(np.where(wanted, 0, position), axis=1)
        trigger = wanted & ((position - last_free) % 2 == 1)
        stays = trigger.copy()
        stays[:, 1:] |= trigger[:, :-1]
        n_moves = np.cumsum(~stays, axis=1) - 1  # moves of the chain until here

        draws = ((bits >> np.uint64(32)) & _MOVES).astype(np.intp).T.copy()  # (L, N)
        chain = np.empty((int(n_moves.max()) + 1, len(numbers)), np.intp)  # (moves + 1, N), as first bins of rows
        chain[0] = process._first_row[draws[0]]
        index = np.empty(len(numbers), np.intp)
        for move in range(1, len(chain)):
            np.add(chain[move - 1], draws[move], out=index)
            process._next_row.take(index, out=chain[move], mode="clip")

        ordinary = 1 + (np.take_along_axis(chain.T, n_moves, axis=1) >> MOVE_BITS)
        which = ((bits >> np.uint64(16)) & _TRIGGERS).astype(np.int64) * process.config.n_triggers >> TRIGGER_BITS
        return np.where(trigger, process.first_trigger + which, ordinary).astype(np.int64, copy=False)


class SyntheticWindows:
    """Training windows of a synthetic process, for one data seed; no window ever repeats.

    With `bos` a window is [BOS, x_1 .. x_L], without [x_1 .. x_L+1]; either way w[:-1] is the input, w[1:] the target.
    """

    def __init__(self, process: BigramBackcopy, seq_len: int, *, bos: bool = True, seed: int = 0) -> None:
        if seq_len < 1:
            raise UserError(f"seq_len must be at least 1, not {seq_len}")
        self.corpus = process
        self.seq_len = seq_len
        self.bos = bos
        self.seed = seed
        self._stream = process.stream("train", seed)

    def batch(self, step: int, batch_size: int) -> NDArray[np.int64]:
        """Sequences step * B .. step * B + B - 1; (B, L + 1) int64."""
        numbers = np.arange(step * batch_size, (step + 1) * batch_size)
        if numbers.size and int(numbers.min()) < 0:
            raise IndexError(f"sequence numbers start at 0, not {int(numbers.min())}")
        return _with_prefix(self.corpus, self._stream, numbers, self.seq_len, self.bos)


def synthetic_heldout_windows(
    process: BigramBackcopy,
    domain: str,
    seq_len: int,
    *,
    bos: bool = True,
    max_tokens: int | None = None,
    full_only: bool = False,
) -> HeldoutWindows:
    """Return the first held-out windows, all full: as many as hold `max_tokens` targets. The same for every run.

    `full_only` leaves nothing out here: no window has padding.

    Raises:
        UserError: unknown domain, seq_len < 1, or max_tokens missing or < 1.
    """
    if domain not in process.domains:
        raise UserError(f"unknown domain {domain!r} of corpus {process.name!r}: legal are {', '.join(process.domains)}")
    if seq_len < 1:
        raise UserError(f"seq_len must be at least 1, not {seq_len}")
    if max_tokens is None or max_tokens < 1:
        raise UserError(f"max_tokens must be at least 1, not {max_tokens}: corpus {process.name!r} has no end")
    numbers = np.arange(-(-max_tokens // seq_len))
    windows = _with_prefix(process, process.stream("heldout"), numbers, seq_len, bos)
    return HeldoutWindows(windows[:, :-1], windows[:, 1:])


def _with_prefix(
    process: BigramBackcopy, stream: Stream, numbers: NDArray[np.int64], seq_len: int, bos: bool
) -> NDArray[np.int64]:
    if not bos:
        return stream.sequences(numbers, seq_len + 1)
    out = np.full((len(numbers), seq_len + 1), process.bos_id, np.int64)
    out[:, 1:] = stream.sequences(numbers, seq_len)
    return out


def _in_bins(probabilities: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round (K,) probabilities to whole bins, at least one each, by largest remainder; the bins sum to 2^14."""
    free = 2**MOVE_BITS - len(probabilities)
    exact = probabilities * free
    bins = np.floor(exact).astype(np.int64)
    largest = np.argsort(bins - exact, kind="stable")
    bins[largest[: free - int(bins.sum())]] += 1
    filled: NDArray[np.int64] = bins + 1
    return filled


def _stationary(moves: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the stationary distribution (K,) of a chain (K, K) in which every move is possible."""
    n = len(moves)
    equations = np.vstack((moves.T - np.eye(n), np.ones(n)))[1:]  # any one balance follows from the others
    right_side = np.zeros(n)
    right_side[-1] = 1.0
    return np.linalg.solve(equations, right_side).astype(np.float64)


def _lookup(bins: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the token of each bin, row after row: (rows * 2^14,)."""
    tokens = np.tile(np.arange(bins.shape[1], dtype=np.intp), len(bins))
    return np.repeat(tokens, bins.ravel())


def _entropy(distributions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropies in nats of distributions (..., V), with 0 ln 0 = 0."""
    logs = np.log(distributions, where=distributions > 0, out=np.zeros_like(distributions))
    return np.array([-math.fsum(row) for row in (distributions * logs).reshape(-1, distributions.shape[-1])])
