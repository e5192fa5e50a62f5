"""Perplexity per domain on held-out documents.

A domain's perplexity is exp of the mean negative log-likelihood over all its scored tokens (never a mean of means),
whatever the batch size and padding; Avg PPL is the arithmetic mean over domains (the paper does not state its own
averaging).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from gatebench.data.reading import DataSource, heldout_windows
from gatebench.data.tokens import IGNORED_TARGET
from gatebench.model.transformer import Transformer

LOGITS_LENGTH = 1024
"""Tokens whose logits are in memory at once, of each sequence."""


@dataclass(frozen=True)
class DomainScore:
    """Sums over the scored tokens of one domain."""

    nll: float
    """Negative log-likelihood in nats, summed."""
    tokens: int
    n_bytes: int
    """UTF-8 bytes of the scored tokens."""

    @property
    def perplexity(self) -> float:
        """Exp of the token-weighted mean."""
        return math.exp(self.nll / self.tokens)

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte: comparable across tokenizers."""
        return self.nll / (self.n_bytes * math.log(2))


@torch.no_grad()
def token_nll(
    model: Transformer, inputs: NDArray[np.int64], targets: NDArray[np.int64], *, batch_size: int, device: torch.device
) -> NDArray[np.float64]:
    """Return the fp32 negative log-likelihood of every target, (N, T) nats; 0 where the target is -100.

    `inputs` and `targets` are (N, T). No value depends on `batch_size` beyond fp32 rounding.
    """
    model.eval()
    rows = []
    for start in range(0, len(inputs), batch_size):
        ids, wanted = (torch.from_numpy(part[start : start + batch_size]).to(device) for part in (inputs, targets))
        parts = [
            F.cross_entropy(
                model.lm_head(hidden).float().flatten(0, 1),
                aims.flatten(),
                ignore_index=IGNORED_TARGET,
                reduction="none",
            ).view_as(aims)
            for hidden, aims in zip(
                model.hidden(ids).split(LOGITS_LENGTH, dim=1), wanted.split(LOGITS_LENGTH, dim=1), strict=True
            )
        ]
        rows.append(torch.cat(parts, dim=1).cpu().double().numpy())
    return np.concatenate(rows) if rows else np.zeros(targets.shape)


def score(nll: NDArray[np.float64], targets: NDArray[np.int64], token_bytes: NDArray[np.integer[Any]]) -> DomainScore:
    """Return the sums over scored tokens: `nll` and `targets` (N, T), `token_bytes` (V,)."""
    scored = targets != IGNORED_TARGET
    return DomainScore(float(nll[scored].sum()), int(scored.sum()), int(token_bytes[targets[scored]].sum()))


def domain_scores(
    model: Transformer,
    corpus: DataSource,
    *,
    seq_len: int,
    bos: bool,
    max_tokens: int | None,
    batch_size: int,
    device: torch.device,
) -> dict[str, DomainScore]:
    """Return every domain's score on its held-out documents, in windows of `seq_len` that begin with BOS if `bos`."""
    scores = {}
    for domain in corpus.domains:
        windows = heldout_windows(corpus, domain, seq_len, bos=bos, max_tokens=max_tokens)
        nll = token_nll(model, windows.inputs, windows.targets, batch_size=batch_size, device=device)
        scores[domain] = score(nll, windows.targets, corpus.token_bytes)
    return scores


def summarize(scores: Mapping[str, DomainScore]) -> dict[str, float | int]:
    """Return the flat metrics: per domain, Avg PPL, average bits per byte, perplexity over all tokens."""
    flat: dict[str, float | int] = {}
    for domain, result in scores.items():
        flat[f"ppl/{domain}"] = result.perplexity
        flat[f"bpb/{domain}"] = result.bits_per_byte
        flat[f"nll/{domain}"] = result.nll / result.tokens
        flat[f"eval_tokens/{domain}"] = result.tokens
    flat["avg_ppl"] = sum(result.perplexity for result in scores.values()) / len(scores)
    flat["avg_bpb"] = sum(result.bits_per_byte for result in scores.values()) / len(scores)
    tokens = sum(result.tokens for result in scores.values())
    flat["micro_ppl"] = math.exp(sum(result.nll for result in scores.values()) / tokens)
    return flat
