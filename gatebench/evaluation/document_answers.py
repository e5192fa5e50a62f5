"""How many questions of held-out retrieval documents a model answers."""

from __future__ import annotations

import numpy as np
import torch

from gatebench.data.retrieval_documents import RetrievalDocuments
from gatebench.model.transformer import Transformer

N_DOCUMENTS = 128


@torch.no_grad()
def answer_accuracy(
    model: Transformer, documents: RetrievalDocuments, *, bos: bool, batch_size: int, device: torch.device
) -> float:
    """Return the share of answers in 128 documents of which every token is the most likely one, given those before."""
    model.eval()
    right, n_answers = 0, 0
    for start in range(0, N_DOCUMENTS, batch_size):
        made = [documents.document(number) for number in range(start, min(start + batch_size, N_DOCUMENTS))]
        ids, is_answer = (np.stack(parts) for parts in zip(*made, strict=True))
        if bos:
            ids = np.pad(ids, ((0, 0), (1, 0)), constant_values=documents.corpus.bos_id)
            is_answer = np.pad(is_answer, ((0, 0), (1, 0)))
        predicted = model(torch.from_numpy(ids[:, :-1]).to(device)).argmax(dim=-1).cpu().numpy()
        asked, hit = is_answer[:, 1:], predicted == ids[:, 1:]
        begins = asked & ~np.pad(asked, ((0, 0), (1, 0)))[:, :-1]
        number = np.cumsum(begins).reshape(begins.shape)  # of the answer that a token belongs to
        n = int(begins.sum())
        right += n - len(np.unique(number[asked & ~hit]))
        n_answers += n
    return right / n_answers
