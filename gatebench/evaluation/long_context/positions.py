"""The loss by position in a window, on the same held-out text at every length. Letters: N windows, T tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from gatebench.data.tokens import Corpus
from gatebench.errors import UserError

N_BINS = 16
TAIL = 0.25
"""The last quarter of a window, where what a model makes of a long context shows."""


@dataclass(frozen=True)
class Loss:
    """Mean loss over positions `start` to `stop` of a window, with its 95 % interval over windows."""

    start: int
    stop: int
    nats: float
    low: float | None
    """None from a single window."""
    high: float | None


def heldout_pieces(corpus: Corpus, longest: int, n_tokens: int) -> NDArray[np.int64]:
    """Return held-out documents end to end, (P, longest + 1), about `n_tokens` in all; domains take turns.

    Raises UserError where no domain has a piece.
    """
    size = longest + 1
    n_pieces = {domain: corpus.n_tokens("heldout", domain) // size for domain in corpus.domains}
    turns = [(domain, n) for n in range(max(n_pieces.values())) for domain in corpus.domains if n < n_pieces[domain]]
    if not turns:
        most = longest_piece(corpus)
        raise UserError(
            f"length {longest}: corpus '{corpus.name}' has not so much held-out text; legal: {most} or less"
        )
    chosen = turns[: max(1, n_tokens // longest)]
    return np.stack([corpus.tokens("heldout", domain, n * size, (n + 1) * size) for domain, n in chosen])


def longest_piece(corpus: Corpus) -> int:
    """Return the greatest length at which there is a window of held-out text."""
    return max(corpus.n_tokens("heldout", domain) for domain in corpus.domains) - 1


def windows_of(pieces: NDArray[np.int64], length: int, bos_id: int | None) -> NDArray[np.int64]:
    """Return the windows of `length` inputs and one more target that `pieces` (P, longest + 1) hold, (N, length + 1).

    With a `bos_id` they begin with it; without, with a token that is no target. Tokens left over at a piece's end are
    dropped: lengths that divide the longest read the same text.
    """
    step = length + (bos_id is None)
    n_windows = pieces.shape[1] // step
    windows = pieces[:, : n_windows * step].reshape(-1, step)
    return windows if bos_id is None else np.pad(windows, ((0, 0), (1, 0)), constant_values=bos_id)


def by_position(nll: NDArray[np.float64]) -> tuple[list[Loss], Loss]:
    """Return the loss in 16 bins of positions, and over the last quarter, of `nll` (N, T), T at least 16."""
    length = nll.shape[1]
    edges = [round(length * i / N_BINS) for i in range(N_BINS + 1)]
    bins = [_mean(nll, start, stop) for start, stop in pairwise(edges)]
    return bins, _mean(nll, length - int(length * TAIL), length)


def _mean(nll: NDArray[np.float64], start: int, stop: int) -> Loss:
    by_window = nll[:, start:stop].mean(axis=1)
    n, mean = len(by_window), float(by_window.mean())
    if n < 2:
        return Loss(start, stop, mean, None, None)
    half = float(stats.t.ppf(0.975, n - 1)) * float(by_window.std(ddof=1)) / math.sqrt(n)
    return Loss(start, stop, mean, mean - half, mean + half)
