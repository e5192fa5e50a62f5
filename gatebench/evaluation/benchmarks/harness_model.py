"""A model as the lm-eval harness calls it. What differs from the harness's own class, and why, stands at each method.

Letters in shapes: B sequences in a batch, T tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from gatebench.errors import DoesNotFit
from gatebench.hf.tokenizer import prefix_ids


class HarnessModel(HFLM):
    """lm-eval's HFLM around a model and tokenizer that are loaded already, in fp32 on the model's device.

    Where the tokenizer begins a text with BOS (a run with `data.bos` has such a one), every sequence has exactly one;
    what is said of BOS goes for a prefix of several tokens. Elsewhere only an empty context gets a prefix: EOS, which
    is what stands before a document in training.
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int = 16) -> None:
        super().__init__(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=batch_size)
        self.prefix = prefix_ids(tokenizer)
        self.bos = bool(self.prefix)
        self.custom_prefix_token_id = self.prefix[-1] if self.prefix else tokenizer.eos_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Return the tokens of a text, after the one BOS where it belongs, whatever the tokenizer would add itself."""
        ids: list[int] = self.tokenizer.encode(string, add_special_tokens=False, verbose=False)
        if add_special_tokens is False or ids[: len(self.prefix)] == self.prefix:
            return ids
        return [*self.prefix, *ids]

    def tok_batch_encode(
        self, strings: Sequence[str], padding_side: str = "left", left_truncate_len: int | None = None, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and attention mask, both (B, T), padded on one side; nothing is cut off."""
        padded = self.tokenizer.pad(
            {"input_ids": [self.tok_encode(string) for string in strings]},
            padding_side=padding_side,
            return_tensors="pt",
        )
        return padded["input_ids"], padded["attention_mask"]

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Split the tokens of the whole text after the context; encode both alone where one token spans the join.

        The harness drops the spanning token there, and with it all of a short continuation.
        """
        text = context.rstrip()
        continuation = context[len(text) :] + continuation
        before = self.tok_encode(text) or [self.prefix_token_id]
        whole = self.tok_encode(text + continuation)
        if text and whole[: len(before)] == before:
            return before, whole[len(before) :]
        return before, self.tok_encode(continuation, add_special_tokens=False)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return (log-likelihood in nats, whether greedy decoding gives it) of every (context, continuation)."""
        encoded = []
        for context, continuation in [request.args for request in requests]:
            encoded.append(((context, continuation), *self._encode_pair(context, continuation)))
        return self._loglikelihood_tokens(encoded, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: Sequence[Any], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Score (key, context tokens, continuation tokens). An empty continuation is certain. Raises DoesNotFit."""
        longest = max((len(context) + len(continuation) for _, context, continuation in requests), default=0)
        self._check_length(longest - 1)  # the last token is only predicted
        scored = [place for place, (_, _, continuation) in enumerate(requests) if continuation]
        results: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        if scored:
            quiet = disable_tqdm or not sys.stderr.isatty()
            scores = super()._loglikelihood_tokens([requests[place] for place in scored], quiet, override_bs)
            for place, score in zip(scored, scores, strict=True):
                results[place] = score
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, in nats, every token scored once.

        With BOS each window begins with it, as in training and in `evaluation.perplexity`, whose number this is;
        the harness would begin the first with two and the others with none. Without BOS its own windows stand.
        """
        if not self.bos:
            return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm)
        windows, texts = [], []
        n_new = self.max_length - len(self.prefix) + 1  # the last token is only predicted
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            for start in range(0, len(ids), n_new):
                windows.append((None, self.prefix, ids[start : start + n_new]))
                texts.append(number)
        totals = [0.0] * len(requests)
        for number, (score, _) in zip(texts, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[number] += score
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the texts that the model goes on with. Raises DoesNotFit where prompt and answer do not."""
        for text, settings in [request.args for request in requests]:
            n_new = settings.get("max_gen_toks", settings.get("max_new_tokens", self.max_gen_toks))
            self._check_length(len(self.tok_encode(text)) + n_new)
        return super().generate_until(requests, disable_tqdm=disable_tqdm or not sys.stderr.isatty())

    def continuations(self, prompts: Sequence[str], *, max_new_tokens: int, until: Sequence[str] = ()) -> list[str]:
        """Return what greedy decoding gives after each prompt, at most so many tokens, up to the first of `until`."""
        settings = {"until": list(until), "max_gen_toks": max_new_tokens, "do_sample": False}
        requests = [Instance("generate_until", {}, (prompt, settings), 0) for prompt in prompts]
        return self.generate_until(requests)

    def _check_length(self, n_tokens: int) -> None:
        if n_tokens > self.max_length:
            raise DoesNotFit(
                f"an item takes {n_tokens:,} tokens, the model's context is {self.max_length:,}; "
                "legal: a model with a longer one, or fewer shots"
            )
