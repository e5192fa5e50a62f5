"""Everything that is measured when training ends: eval.json, probes.json, probes.npz, and the summary's metrics."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatebench.data.backcopy import BigramBackcopy
from gatebench.data.reading import DataSource, heldout_windows
from gatebench.data.retrieval_documents import RetrievalDocuments
from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from gatebench.evaluation.copy_scores import copy_scores
from gatebench.evaluation.document_answers import answer_accuracy
from gatebench.evaluation.perplexity import domain_scores, summarize
from gatebench.evaluation.probes.probe import probe, write_arrays
from gatebench.training.run import NonFiniteLoss, Trained
from gatebench.training.rundir import write_json


def context_of(corpus: str, fingerprint: str, seq_len: int, *, bos: bool) -> dict[str, Any]:
    """Return what every number of an evaluation depends on, as its files state it."""
    return {"corpus": corpus, "corpus_fingerprint": fingerprint, "seq_len": seq_len, "bos": bos, "dtype": "float32"}


def full_windows(corpus: DataSource, seq_len: int, *, bos: bool, n_tokens: int) -> NDArray[np.int64]:
    """Return (N, seq_len) held-out windows without padding: N = n_tokens // seq_len, or all that there are.

    Domains take turns, each with its windows in a fixed shuffled order, so that every domain and many
    documents are there. Raises UserError where no held-out document is that long.
    """
    limits: dict[str, Any] = {"max_tokens": 8 * n_tokens, "full_only": True}
    found = [heldout_windows(corpus, domain, seq_len, bos=bos, **limits).inputs for domain in corpus.domains]
    chosen = in_turn(found, max(1, n_tokens // seq_len))
    if not chosen:
        raise UserError(
            f"eval.seq_len={seq_len}: corpus '{corpus.name}' has no held-out document that long; legal: a smaller one"
        )
    return np.stack(chosen)


def in_turn(windows: Sequence[Sequence[Any] | NDArray[Any]], n: int) -> list[Any]:
    """Return `n` windows or all that there are: domains take turns, each with its own in a fixed shuffled order."""
    shuffled = [[own[i] for i in np.random.Generator(np.random.Philox(0)).permutation(len(own))] for own in windows]
    rows = range(max(map(len, shuffled)))
    return [own[row] for row in rows for own in shuffled if row < len(own)][:n]


def trigger_mask(corpus: DataSource, windows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Return which tokens of `windows` (N, T) are triggers; None on data that has none."""
    return corpus.is_trigger(windows) if isinstance(corpus, BigramBackcopy) else None


def evaluate(trained: Trained) -> dict[str, Any]:
    """Measure a trained model in fp32, write eval.json, probes.json and probes.npz, and return the summary's metrics.

    Raises NonFiniteLoss where a domain's perplexity is no finite number.
    """
    config, model, corpus, device = trained.config, trained.model, trained.corpus, trained.device
    seq_len, bos = config.eval.seq_len or config.data.seq_len, config.data.bos
    context = context_of(corpus.name, corpus.fingerprint, seq_len, bos=bos)

    scores = domain_scores(
        model,
        corpus,
        seq_len=seq_len,
        bos=bos,
        max_tokens=config.eval.tokens_per_domain,
        batch_size=config.eval.batch_size,
        device=device,
    )
    for name, score in scores.items():
        if not score.nll / score.tokens < math.log(sys.float_info.max):
            raise NonFiniteLoss(f"domain '{name}': mean held-out loss {score.nll / score.tokens} nats")
    perplexity = summarize(scores)
    domains = {
        name: {"ppl": s.perplexity, "bpb": s.bits_per_byte, "nll_sum": s.nll, "tokens": s.tokens, "bytes": s.n_bytes}
        for name, s in scores.items()
    }
    details, known = _against_the_true_process(trained, seq_len) if isinstance(corpus, BigramBackcopy) else ({}, {})
    if config.data.retrieval is not None:
        assert isinstance(corpus, Corpus)
        documents = RetrievalDocuments(corpus, config.data.retrieval, seq_len + (not bos), "heldout")
        data: dict[str, Any] = {"batch_size": config.eval.batch_size, "device": device}
        known["retrieval_accuracy"] = details["retrieval_accuracy"] = answer_accuracy(model, documents, bos=bos, **data)
    averages = {k: v for k, v in perplexity.items() if "/" not in k}
    write_json(trained.directory.eval, {**context, "domains": domains, **averages, **details})

    windows = full_windows(corpus, seq_len, bos=bos, n_tokens=config.eval.probe_tokens)
    result = probe(
        model, windows, batch_size=config.eval.batch_size, device=device, triggers=trigger_mask(corpus, windows)
    )
    write_json(trained.directory.probes, {**context, **result.flat()})
    write_arrays(trained.directory.probe_arrays, result.arrays())
    return {"eval_seq_len": seq_len, **perplexity, **known, **result.summary()}


def _against_the_true_process(trained: Trained, seq_len: int) -> tuple[dict[str, Any], dict[str, float | None]]:
    """Return what eval.json holds of synthetic data besides, and the summary's part of it."""
    config, process = trained.config, trained.corpus
    assert isinstance(process, BigramBackcopy)
    bos = config.data.bos
    windows = heldout_windows(process, process.name, seq_len, bos=bos, max_tokens=config.eval.tokens_per_domain)
    scores = copy_scores(trained.model, process, windows, batch_size=config.eval.batch_size, device=trained.device)
    floor = process.entropy_floor(seq_len, bos=bos)
    counts = {key: scores.pop(key) for key in ("copy_targets", "other_targets")}
    known = {"entropy_floor": floor.overall, **scores}
    return {**known, "entropy_floor_other": floor.other, **counts}, known
