"""Massive activations, |SDPA output| and value norms, streamed over windows.

Letters: B windows, T tokens, C d_model, L layers, H query heads, K KV heads, D head_dim, Q quantities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gatebench.evaluation.probes.base import Array, Batch, Place, Probe, by_place
from gatebench.evaluation.probes.hooks import scores_replaced
from gatebench.model.gates import GateInputs
from gatebench.model.transformer import Block

QUANTITIES = ("attn_output", "attn_residual", "ffn_output", "ffn_residual")
"""What the paper's Figure 6 tracks: each sublayer's output, and the residual stream after it is added."""
RESIDUAL = QUANTITIES.index("ffn_residual")
"""The quantity that M-Act and Sun et al. read: the residual stream after the whole layer."""
TOP = 3
MASSIVE, MASSIVE_RATIO = 100.0, 1000.0
"""Sun et al. 2024, section 2: an activation is massive over 100 and at 1,000 times the median of its hidden state."""
THRESHOLDS = (1e-2, 1e-3)
"""Below these the paper's Figure 5 calls an SDPA output element near zero."""


class ActivationStats(Probe):
    """Largest and median |h| per layer and quantity.

    Per window, over its T x C values: the three largest and the median (locuslab/massive-activations `main_llm.py`,
    exp2), averaged over windows; and the largest over all windows, which grows with their number.
    """

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._max: dict[Place, float] = {}

    def attach(self, layer: int, block: Block, batch: Batch) -> list[RemovableHandle]:
        """Count a layer's quantities from now on."""
        attn_output, attn_residual, ffn_output, ffn_residual = range(len(QUANTITIES))
        return [
            block.attn.register_forward_hook(lambda _, args, output: self.add(layer, attn_output, output)),
            block.ffn_norm.register_forward_pre_hook(lambda _, args: self.add(layer, attn_residual, args[0])),
            block.ffn.register_forward_hook(lambda _, args, output: self.add(layer, ffn_output, output)),
            block.register_forward_hook(lambda _, args, output: self.add(layer, ffn_residual, output)),
        ]

    def add(self, layer: int, quantity: int, values: Tensor) -> None:
        """Count `values` (B, T, C)."""
        magnitudes = values.float().abs().flatten(1)  # (B, T * C)
        top = magnitudes.topk(TOP, dim=1)
        largest = top.values.cpu().double().numpy()
        median = magnitudes.median(dim=1).values
        massive = magnitudes > (median * MASSIVE_RATIO).clamp(min=MASSIVE)[:, None]
        middle = median.cpu().double().numpy()
        place, n = (layer, quantity), len(largest)
        self._max[place] = max(self._max.get(place, 0.0), float(largest.max()))
        self.count("activation_top3", place, largest.sum(axis=0), n)
        self.count("activation_median", place, middle.sum(), n)
        ratio = largest[:, 0] / np.maximum(middle, np.finfo(np.float32).tiny)
        self.count("activation_ratio", place, ratio.sum(), n)
        self.count("massive_count", place, int(massive.sum()), n)
        self.count("activation_at_first", place, int((top.indices[:, 0] < values.shape[2]).sum()), n)

    def summary(self) -> dict[str, float | int]:
        """Return M-Act, and the ratio criterion on the residual stream: the largest, and how many layers meet it.

        Layers are counted from 1, as figures do.
        """
        arrays = self.arrays()
        ratio = arrays["activation_ratio"][:, RESIDUAL]
        layer = int(ratio.argmax())
        return {
            "m_act": float(arrays["max_activation"].mean()),
            "massive_ratio": float(ratio[layer]),
            "massive_ratio_layer": layer + 1,
            "massive_layers": int((arrays["massive_count"][:, RESIDUAL] > 0).sum()),
            "massive_at_first": float(arrays["activation_at_first"][layer, RESIDUAL]),
        }

    def arrays(self) -> dict[str, Array]:
        """Return everything by layer and quantity (in the order of QUANTITIES)."""
        largest = by_place(self._max)
        return {"max_activation": largest[:, RESIDUAL], "activation_max": largest, **self.means()}


STAGES = ("before", "after", "mean_gate")
"""The SDPA output before its gate, after it, and before it times the gate's mean (the control)."""


class SdpaOutputStats(Probe):
    """Mean |SDPA output| and the fraction near zero, before and after what sits at G1 (the paper's Figures 4 and 5).

    The control, SDPA output times the layer's mean gate score, has the gate's scale and none of its selection:
    what it does not explain of the near-zero fraction is sparsity.

    Arrays are (L,) means and (L, thresholds) fractions of each stage that was counted.
    """

    def attach(self, layer: int, block: Block, batch: Batch) -> list[RemovableHandle]:
        """Count a layer's SDPA output before and after G1 from now on."""

        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            self.add(layer, "before", args[0])
            self.add(layer, "after", output)

        return [block.attn.g1.register_forward_hook(hook)]

    def attach_control(self, layer: int, block: Block, means: Sequence[float]) -> list[RemovableHandle]:
        """Count a layer's SDPA output times the gates' mean scores, which a first pass has to find."""

        def hook(module: Any, args: tuple[Tensor, GateInputs], output: Tensor) -> None:
            site, inputs = args
            remaining = iter(means)
            for gate in module.gates:
                if gate.spec.source == "self":
                    site = gate.forward(site, inputs)
                    continue
                with scores_replaced(gate, site.new_full((1,), next(remaining))):
                    site = gate.forward(site, inputs)
            self.add(layer, "mean_gate", site)

        return [block.attn.g1.register_forward_hook(hook)]

    def add(self, layer: int, stage: str, output: Tensor) -> None:
        """Count `output` (B, T, H, D) of one layer at one of STAGES."""
        magnitudes = output.float().abs()
        n = magnitudes.numel()
        self.count(f"sdpa_abs_{stage}", layer, float(magnitudes.mean()) * n, n)
        below = [int((magnitudes < threshold).sum()) for threshold in THRESHOLDS]
        self.count(f"sdpa_below_{stage}", layer, below, n)

    def summary(self) -> dict[str, float | None]:
        """Return the means over layers; null for the control of a model that has no score at G1."""
        arrays = self.arrays()
        flat: dict[str, float | None] = {}
        for stage in STAGES:
            known = f"sdpa_abs_{stage}" in arrays
            flat[f"sdpa_abs_{stage}"] = float(arrays[f"sdpa_abs_{stage}"].mean()) if known else None
            for place, threshold in enumerate(THRESHOLDS):
                below = float(arrays[f"sdpa_below_{stage}"].mean(axis=0)[place]) if known else None
                flat[f"sdpa_below_{stage}_{threshold:.0e}"] = below
        return flat


class ValueNorms(Probe):
    """Mean Euclidean norm of the first token's values and of all others', before and after what sits at G2.

    Where some tokens are triggers: after G2, those of triggers and of the ordinary tokens (neither first nor trigger).
    """

    def attach(self, layer: int, block: Block, batch: Batch) -> list[RemovableHandle]:
        """Count a layer's values from now on."""
        return [
            block.attn.g2.register_forward_hook(
                lambda _, args, output: self.add(layer, args[0], output, batch.triggers)
            )
        ]

    def add(self, layer: int, raw: Tensor, gated: Tensor, triggers: Tensor) -> None:
        """Count values (B, T, K, D) before and after G2; `triggers` (B, T) says which tokens are triggers."""
        after, before = (values.float().norm(dim=-1).cpu().double().numpy() for values in (gated, raw))  # (B, T, K)
        for prefix, norms in (("", after), ("raw_", before)):
            self.count(f"value_norm_{prefix}first", layer, norms[:, 0].sum(axis=0), len(norms))
            self.count(f"value_norm_{prefix}rest", layer, norms[:, 1:].mean(axis=1).sum(axis=0), len(norms))
        marked = triggers.cpu().numpy()[:, 1:]
        for name, chosen in (("trigger", marked), ("ordinary", ~marked)):
            self.count(f"value_norm_{name}", layer, after[:, 1:][chosen].sum(axis=0), int(chosen.sum()))

    def summary(self) -> dict[str, float | None]:
        """Return the means over layers and KV heads, after G2; null for triggers where there is none."""
        arrays = self.arrays()
        names = [f"value_norm_{name}" for name in ("first", "rest", "trigger", "ordinary")]
        return {name: float(arrays[name].mean()) if name in arrays else None for name in names}

    def arrays(self) -> dict[str, Array]:
        """Return (L, K) norms."""
        arrays = self.means()
        if "value_norm_trigger" not in arrays:
            arrays.pop("value_norm_ordinary", None)
        return arrays
