"""Massive activations, |SDPA output| and value norms, streamed over windows.

Letters: B windows, T tokens, C d_model, L layers, H query heads, K KV heads, D head_dim, Q quantities.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

QUANTITIES = ("attn_output", "attn_residual", "ffn_output", "ffn_residual")
"""What the paper's Figure 6 tracks: each sublayer's output, and the residual stream after it is added."""
RESIDUAL = QUANTITIES.index("ffn_residual")
"""The quantity that M-Act and Sun et al. read: the residual stream after the whole layer."""
TOP = 3
MASSIVE, MASSIVE_RATIO = 100.0, 1000.0
"""Sun et al. 2024, section 2: an activation is massive over 100 and at 1,000 times the median of its hidden state."""
THRESHOLDS = (1e-2, 1e-3)
"""Below these the paper's Figure 5 calls an SDPA output element near zero."""


class ActivationStats:
    """Largest and median |h| per layer and quantity.

    Per window, over its T x C values: the three largest and the median (locuslab/massive-activations `main_llm.py`,
    exp2), averaged over windows; and the largest over all windows, which grows with their number.
    """

    def __init__(self, n_layers: int) -> None:
        shape = (n_layers, len(QUANTITIES))
        self.n_windows = np.zeros(shape, dtype=np.int64)
        self.max = np.zeros(shape)
        self._top, self._median, self._ratio = np.zeros((*shape, TOP)), np.zeros(shape), np.zeros(shape)
        self._massive, self._at_first = np.zeros(shape), np.zeros(shape)

    def add(self, layer: int, quantity: int, values: Tensor) -> None:
        """Count `values` (B, T, C)."""
        magnitudes = values.float().abs().flatten(1)  # (B, T * C)
        top = magnitudes.topk(TOP, dim=1)
        largest = top.values.cpu().double().numpy()
        median = magnitudes.median(dim=1).values
        massive = magnitudes > (median * MASSIVE_RATIO).clamp(min=MASSIVE)[:, None]
        middle = median.cpu().double().numpy()
        place = (layer, quantity)
        self.n_windows[place] += len(largest)
        self.max[place] = max(self.max[place], float(largest.max()))
        self._top[place] += largest.sum(axis=0)
        self._median[place] += middle.sum()
        self._ratio[place] += (largest[:, 0] / np.maximum(middle, np.finfo(np.float32).tiny)).sum()
        self._massive[place] += int(massive.sum())
        self._at_first[place] += int((top.indices[:, 0] < values.shape[2]).sum())

    def summary(self) -> dict[str, float | int]:
        """Return the ratio criterion on the residual stream: the largest ratio, and how many layers meet it.

        Layers are counted from 1, as figures do.
        """
        arrays = self.arrays()
        ratio = arrays["activation_ratio"][:, RESIDUAL]
        layer = int(ratio.argmax())
        return {
            "massive_ratio": float(ratio[layer]),
            "massive_ratio_layer": layer + 1,
            "massive_layers": int((arrays["massive_count"][:, RESIDUAL] > 0).sum()),
            "massive_at_first": float(arrays["activation_at_first"][layer, RESIDUAL]),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything by layer and quantity (in the order of QUANTITIES)."""
        n = np.maximum(self.n_windows, 1)
        return {
            "max_activation": self.max[:, RESIDUAL],
            "activation_max": self.max,
            "activation_top3": self._top / n[..., None],
            "activation_median": self._median / n,
            "activation_ratio": self._ratio / n,
            "massive_count": self._massive / n,
            "activation_at_first": self._at_first / n,
        }


STAGES = ("before", "after", "mean_gate")
"""The SDPA output before its gate, after it, and before it times the gate's mean (the control)."""


class SdpaOutputStats:
    """Mean |SDPA output| and the fraction near zero, before and after what sits at G1 (the paper's Figures 4 and 5).

    The control, SDPA output times the layer's mean gate score, has the gate's scale and none of its selection:
    what it does not explain of the near-zero fraction is sparsity.
    """

    def __init__(self, n_layers: int) -> None:
        self.n = np.zeros((n_layers, len(STAGES)), dtype=np.int64)
        self._total = np.zeros((n_layers, len(STAGES)))
        self._below = np.zeros((n_layers, len(STAGES), len(THRESHOLDS)))

    def add(self, layer: int, stage: str, output: Tensor) -> None:
        """Count `output` (B, T, H, D) of one layer at one of STAGES."""
        place = (layer, STAGES.index(stage))
        magnitudes = output.float().abs()
        self.n[place] += magnitudes.numel()
        self._total[place] += float(magnitudes.mean()) * magnitudes.numel()
        self._below[place] += [int((magnitudes < threshold).sum()) for threshold in THRESHOLDS]

    def summary(self) -> dict[str, float | None]:
        """Return the means over layers; null for the control of a model that has no score at G1."""
        flat: dict[str, float | None] = {}
        for name, by_layer in self.arrays().items():
            values = np.atleast_1d(by_layer.mean(axis=0))
            keys = [name] if by_layer.ndim == 1 else [f"{name}_{threshold:.0e}" for threshold in THRESHOLDS]
            flat |= dict(zip(keys, map(float, values), strict=True))
        if not self.n[0, STAGES.index("mean_gate")]:
            flat["sdpa_abs_mean_gate"] = None
            flat |= {f"sdpa_below_mean_gate_{threshold:.0e}": None for threshold in THRESHOLDS}
        return flat

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return (L,) means and (L, thresholds) fractions of each stage that was counted."""
        arrays: dict[str, NDArray[Any]] = {}
        for index, stage in enumerate(STAGES):
            if n := int(self.n[0, index]):
                arrays[f"sdpa_abs_{stage}"] = self._total[:, index] / n
                arrays[f"sdpa_below_{stage}"] = self._below[:, index] / n
        return arrays


class ValueNorms:
    """Mean Euclidean norm of the first token's values and of all others', before and after what sits at G2.

    Where some tokens are triggers: after G2, those of triggers and of the ordinary tokens (neither first nor trigger).
    """

    def __init__(self, n_layers: int, n_kv_heads: int) -> None:
        self.n_windows = np.zeros(n_layers, dtype=np.int64)
        self._sums = {name: np.zeros((n_layers, n_kv_heads)) for name in ("first", "rest", "raw_first", "raw_rest")}
        self._kinds = {name: np.zeros((n_layers, n_kv_heads)) for name in ("trigger", "ordinary")}
        self._n_kinds = {name: np.zeros(n_layers, dtype=np.int64) for name in self._kinds}

    def add(self, layer: int, raw: Tensor, gated: Tensor, triggers: Tensor) -> None:
        """Count values (B, T, K, D) before and after G2; `triggers` (B, T) says which tokens are triggers."""
        self.n_windows[layer] += len(raw)
        for prefix, values in (("raw_", raw), ("", gated)):
            norms = values.float().norm(dim=-1).cpu().double().numpy()  # (B, T, K)
            self._sums[f"{prefix}first"][layer] += norms[:, 0].sum(axis=0)
            self._sums[f"{prefix}rest"][layer] += norms[:, 1:].mean(axis=1).sum(axis=0)
        marked = triggers.cpu().numpy()[:, 1:]
        for name, chosen in (("trigger", marked), ("ordinary", ~marked)):
            self._n_kinds[name][layer] += int(chosen.sum())
            self._kinds[name][layer] += norms[:, 1:][chosen].sum(axis=0)

    def summary(self) -> dict[str, float | None]:
        """Return the means over layers and KV heads, after G2; null for triggers where there is none."""
        arrays = self.arrays()
        names = [f"value_norm_{name}" for name in ("first", "rest", "trigger", "ordinary")]
        return {name: float(arrays[name].mean()) if name in arrays else None for name in names}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return (L, K) norms."""
        arrays = {f"value_norm_{name}": total / self.n_windows[:, None] for name, total in self._sums.items()}
        if self._n_kinds["trigger"].any():
            arrays |= {
                f"value_norm_{name}": total / self._n_kinds[name][:, None] for name, total in self._kinds.items()
            }
        return arrays
