"""Residual sinks: a few fixed dimensions of the residual stream that are large on most tokens.

Qiu et al. 2026 (arXiv 2601.22966, read in its abstract and in summaries) name them and hold that, through RMSNorm, they
rescale all other dimensions. They print no threshold: 3 times the rms on half of all tokens is ours. The rms is that of
the token's own hidden state, by which RMSNorm divides it: over a whole layer it would be that of the few tokens with
massive activations, above which no other token's dimension stands out.

Letters: B windows, T tokens, C d_model, L layers.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from gatebench.evaluation.probes.base import Batch, Probe
from gatebench.model.transformer import Block

TIMES_RMS = 3.0
"""A dimension is large on a token whose rms over all dimensions it exceeds so many times."""
OF_TOKENS = 0.5
"""It is a sink where it is large on at least this share of all tokens."""


class ResidualSinks(Probe):
    """The residual stream h after each layer, token by token, in fp64.

    Arrays: the share of tokens on which a dimension is large, and its share of |h|^2 (L, C); the kurtosis of a token's
    C values (3 of a normal distribution, near C where one dimension has all) and the least |weight| of the two RMSNorms
    of a layer that read h (L,).
    """

    def attach(self, layer: int, block: Block, batch: Batch) -> list[RemovableHandle]:
        """Count the residual stream after a layer from now on."""
        weights = (block.attn_norm.weight, block.ffn_norm.weight)
        self.count("norm_weight_min", layer, min(float(weight.abs().min()) for weight in weights), 1)
        return [block.register_forward_hook(lambda _, args, output: self.add(layer, output))]

    def add(self, layer: int, h: Tensor) -> None:
        """Count the tokens of `h` (B, T, C)."""
        values = h.flatten(0, 1).cpu().double().numpy()  # (N, C)
        squares = values**2
        least = np.finfo(np.float64).tiny  # a token of zeros has no large dimension
        total = squares.sum(axis=1, keepdims=True)
        large = squares * values.shape[1] > TIMES_RMS**2 * total
        centred = (values - values.mean(axis=1, keepdims=True)) ** 2
        kurtosis = (centred**2).mean(axis=1) / np.maximum(centred.mean(axis=1) ** 2, least)
        self.count("residual_large", layer, large.sum(axis=0), len(values))
        self.count("residual_norm_share", layer, (squares / np.maximum(total, least)).sum(axis=0), len(values))
        self.count("residual_kurtosis", layer, kurtosis.sum(), len(values))

    def summary(self) -> dict[str, float]:
        """Return the mean over layers of how many sinks there are, of their share of |h|^2, and of the kurtosis."""
        arrays = self.arrays()
        sinks = arrays["residual_large"] >= OF_TOKENS  # (L, C)
        return {
            "residual_sinks": float(sinks.sum(axis=1).mean()),
            "residual_sink_share": float((arrays["residual_norm_share"] * sinks).sum(axis=1).mean()),
            "residual_kurtosis": float(arrays["residual_kurtosis"].mean()),
            "norm_weight_min": float(arrays["norm_weight_min"].min()),
        }
