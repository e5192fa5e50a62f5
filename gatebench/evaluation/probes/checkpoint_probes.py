"""The probes of any checkpoint that `gatebench.hf.load` reads: an exported run, the paper's released weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from gatebench import hf
from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from gatebench.evaluation.benchmarks.checkpoint import CORPUS
from gatebench.evaluation.evaluate import context_of, in_turn
from gatebench.evaluation.probes.probe import probe
from gatebench.evaluation.probes.run_probes import Request, kept_maps, seal, write_probes
from gatebench.hf.tokenizer import prefix_ids
from gatebench.training.hardware import resolve_accelerator

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST = 1024
"""Context length where none is asked for, unless the model was trained on a shorter one."""
TOKENS = 32_768
BATCH_SIZE = 4


def probe_checkpoint(
    source: str, folder: Path, request: Request, text: Path | None = None, *, log: Callable[[str], None]
) -> dict[str, Any]:
    """Measure the checkpoint `source` in fp32, write the folder `probe` of `folder`, and return what `run_probes` does.

    It reads `text`, or else the held-out documents of six_domains, through its own tokenizer, in full windows that
    begin with BOS where the tokenizer adds it.

    Raises:
        UserError: a source that cannot be loaded or has no tokenizer; a text shorter than one window.
    """
    model, tokenizer = hf.load(source)
    if tokenizer is None:
        raise UserError(f"{source}: has no tokenizer, so that no text can be read; legal: one beside the weights")
    seq_len = request.seq_len or min(LONGEST, model.config.max_position_embeddings or LONGEST)
    name, fingerprint, documents = _documents(text)
    windows = text_windows(documents, tokenizer, seq_len, request.tokens or TOKENS, name)
    if windows.max() >= model.config.vocab_size:
        raise UserError(
            f"{source}: its tokenizer has token {windows.max()}, its model {model.config.vocab_size:,} embeddings; "
            "legal: the tokenizer that the model was trained with"
        )
    device = torch.device(resolve_accelerator("auto"))
    transformer = model.float().to(device).transformer
    log(f"{source}: probing {len(windows)} windows of {seq_len} tokens")
    maps = kept_maps(transformer, windows, request, device)
    result = probe(transformer, windows, batch_size=BATCH_SIZE, device=device)
    identity = {"run": source, "variant": model.config.variant, "seed": None}
    context = context_of(name, fingerprint, seq_len, bos=bool(prefix_ids(tokenizer)))
    write_probes(folder, identity, context, result, maps, request)
    seal(folder)
    return {**identity, "context": context, "probes": result.flat()}


def text_windows(
    documents: Mapping[str, Sequence[str]],
    tokenizer: PreTrainedTokenizerBase,
    seq_len: int,
    n_tokens: int,
    name: str,
) -> NDArray[np.int64]:
    """Return (N, seq_len) windows of `documents`, lists of texts by domain: N = n_tokens // seq_len, or all there are.

    Windows are cut as a run's held-out ones are (`tokens.heldout_windows`): each document on its own, its rest dropped,
    the token after a window its last target; with BOS every window begins with one. Domains take turns, each with its
    windows in a fixed shuffled order. Raises UserError, naming `name`, where no document is that long.
    """
    first = prefix_ids(tokenizer)
    found: list[list[list[int]]] = []
    for texts in documents.values():
        windows = []
        for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False).input_ids:
            starts = range(0, len(ids) - seq_len + len(first), seq_len)
            windows += [(first + ids[start : start + seq_len])[:seq_len] for start in starts]
        found.append(windows)
    chosen = in_turn(found, max(1, n_tokens // seq_len))
    if not chosen:
        raise UserError(f"--seq-len {seq_len}: '{name}' has no document of so many tokens; legal: a smaller one")
    return np.array(chosen, dtype=np.int64)


def _documents(text: Path | None) -> tuple[str, str, dict[str, list[str]]]:
    """Return name, fingerprint and documents by domain of a text file, or of the held-out documents of `CORPUS`."""
    if text is not None:
        try:
            content = text.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--text {text}: cannot be read ({error}); legal: a file of UTF-8 text") from None
        return text.name, hashlib.sha256(content.encode()).hexdigest(), {text.name: [content]}
    corpus = Corpus.open(CORPUS)
    tokenizer = corpus.tokenizer()
    documents = {}
    for domain in corpus.domains:
        ends = corpus.documents("heldout", domain).tolist()
        tokens = [corpus.tokens("heldout", domain, *span).tolist() for span in pairwise(ends)]
        documents[domain] = tokenizer.decode_batch(tokens, skip_special_tokens=True)
    return corpus.name, corpus.fingerprint, documents
