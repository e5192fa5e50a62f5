"""Greedy decoding, with the key-value cache or without."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

import torch
from torch import Tensor

from gatebench.model.transformer import Transformer


@torch.no_grad()
def greedy(
    model: Transformer, ids: Tensor, n_new: int, *, stop: Collection[int] = (), cached: bool = True
) -> list[list[int]]:
    """Return for each row of `ids` (B, T) the `n_new` most likely next ids, or those before the first id in `stop`.

    Each new token costs one forward pass over itself, or, where nothing is `cached`, over all before it; the logits of
    the prompt are computed for its last token alone.
    """
    model.eval()
    caches = model.new_caches() if cached else None
    rows: list[list[int]] = [[] for _ in ids]
    running = set(range(len(rows)))
    for _ in range(n_new):
        next_ids = model.lm_head(model.hidden(ids, caches)[:, -1:]).argmax(dim=-1)  # (B, 1)
        ids = next_ids if cached else torch.cat((ids, next_ids), dim=1)
        new = next_ids[:, 0].tolist()
        running = {i for i in running if new[i] not in stop}
        if not running:
            break
        for i in running:
            rows[i].append(new[i])
    return rows


def completer(
    model: Transformer,
    decode: Callable[[list[int]], str],
    *,
    device: torch.device,
    stop: Collection[int] = (),
    batch_size: int = 8,
    cached: bool = True,
) -> Callable[[list[list[int]], int], list[str]]:
    """Return a function (prompts, n_new) -> texts that continues prompts greedily, in batches of one length.

    There is no padding, so that no answer depends on the other prompts.
    """

    def complete(prompts: list[list[int]], n_new: int) -> list[str]:
        of_length: dict[int, list[int]] = defaultdict(list)
        for i, prompt in enumerate(prompts):
            of_length[len(prompt)].append(i)
        texts = [""] * len(prompts)
        for numbers in of_length.values():
            for start in range(0, len(numbers), batch_size):
                batch = numbers[start : start + batch_size]
                ids = torch.tensor([prompts[i] for i in batch], device=device)
                for i, new in zip(batch, greedy(model, ids, n_new, stop=stop, cached=cached), strict=True):
                    texts[i] = decode(new)
        return texts

    return complete
