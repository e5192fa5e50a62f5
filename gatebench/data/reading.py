"""What a run reads: a built corpus or a synthetic process, through the same three functions."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gatebench.config import DataConfig, RunConfig
from gatebench.data.backcopy import BigramBackcopy, SyntheticWindows, synthetic_heldout_windows
from gatebench.data.retrieval_documents import RetrievalWindows
from gatebench.data.tokens import Corpus, HeldoutWindows, TrainingWindows
from gatebench.data.tokens import heldout_windows as corpus_heldout_windows
from gatebench.errors import UserError

DataSource = Corpus | BigramBackcopy
"""Both have `name`, `fingerprint`, `domains`, `vocab_size`, `bos_id` and `token_bytes`."""


class Windows(Protocol):
    """Training windows in an order that is a pure function of (data seed, step)."""

    def batch(self, step: int, batch_size: int) -> NDArray[np.int64]:
        """Return the windows of one step, (B, L + 1) int64."""
        ...


def open_data(data: DataConfig) -> DataSource:
    """Return what `data.corpus` names. Raises UserError where a corpus is missing or damaged."""
    return Corpus.open(data.corpus) if data.synthetic is None else BigramBackcopy(data.synthetic)


def open_run_data(run: RunConfig) -> DataSource:
    """Return what a run reads. Raises UserError, too, where its corpus is another one than when the run began."""
    source = open_data(run.data)
    if run.corpus_fingerprint not in (None, source.fingerprint):
        raise UserError(
            f"corpus '{source.name}': was rebuilt since this run began (fingerprint {source.fingerprint[:12]}, "
            f"{run.run_name} has {str(run.corpus_fingerprint)[:12]}); legal: a new run, or the corpus as it was"
        )
    return source


def training_windows(source: DataSource, data: DataConfig, seed: int) -> Windows:
    """Return the training windows of a run. Raises UserError for a length or mixture that the source cannot give."""
    if isinstance(source, BigramBackcopy):
        return SyntheticWindows(source, data.seq_len, bos=data.bos, seed=seed)
    windows = TrainingWindows(source, data.seq_len, bos=data.bos, seed=seed, mixture=data.mixture)
    return windows if data.retrieval is None else RetrievalWindows(windows, data.retrieval)


def heldout_windows(
    source: DataSource,
    domain: str,
    seq_len: int,
    *,
    bos: bool = True,
    max_tokens: int | None = None,
    full_only: bool = False,
) -> HeldoutWindows:
    """Return held-out windows of a domain, at least `max_tokens` targets of them where there are so many.

    With `full_only` only windows without padding; there may be none.

    Raises UserError as the function of the source's kind does.
    """
    if isinstance(source, BigramBackcopy):
        return synthetic_heldout_windows(source, domain, seq_len, bos=bos, max_tokens=max_tokens, full_only=full_only)
    return corpus_heldout_windows(source, domain, seq_len, bos=bos, max_tokens=max_tokens, full_only=full_only)
