"""Grouped matrix products: rows sorted by group, each group times a matrix of its own, in one operation.

`torch.nn.functional.grouped_mm` does the work, on CPUs and on CUDA. It stands behind operators of our own because it
wants rows of 16-byte multiples, its shape function refuses fp32 under torch.compile, torch's FLOP counter and autocast
pass it by, and oneDNN, which multiplies bf16 on CPUs, builds a kernel for every number of rows that it has not seen:
there, groups are padded to multiples of `BLOCK` rows, so that few numbers occur.

Letters: R rows, G groups, I input width, O output width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

BLOCK = 64
"""Rows to whose multiples a group is padded, in bf16 on a CPU."""


@torch.library.custom_op("gatebench::grouped_mm", mutates_args=())
def grouped_mm(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Return (R, O): rows[r] @ matrices[g] with r in group g.

    `rows` (R, I), sorted by group; `matrices` (G, I, O); `ends` (G,) int32, where each group's rows end. A group may be
    empty. Differentiable in `rows` and `matrices`.
    """
    width = matrices.shape[2]
    rows, matrices = _aligned(rows), _aligned(_aligned(matrices, dim=1), dim=2)
    if _wants_blocks(rows):
        places, ends = _blocks(len(rows), ends)
        return F.grouped_mm(_placed(rows, places, ends), matrices, offs=ends)[places, :width]
    return F.grouped_mm(rows, matrices, offs=ends)[:, :width].contiguous()


@torch.library.custom_op("gatebench::grouped_outer", mutates_args=())
def grouped_outer(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Return (G, I, O): left[rows of g].T @ right[rows of g], zero for an empty group.

    `left` (R, I) and `right` (R, O), sorted by group; `ends` (G,) int32.
    """
    shape = left.shape[1], right.shape[1]
    left, right = _aligned(left), _aligned(right)
    if _wants_blocks(left):
        places, ends = _blocks(len(left), ends)
        left, right = _placed(left, places, ends), _placed(right, places, ends)
    product = F.grouped_mm(left.T, right, offs=ends)
    return product[:, : shape[0], : shape[1]].contiguous()


def _wants_blocks(rows: Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype == torch.bfloat16


def _blocks(n_rows: int, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each of the rows goes when groups are padded to multiples of BLOCK (R,), and the new ends (G,)."""
    counts = ends.diff(prepend=ends.new_zeros(1))
    padded = (-(-counts // BLOCK) * BLOCK).cumsum(0, dtype=torch.int32)
    shifts = F.pad(padded[:-1] - ends[:-1], (1, 0))  # (G,)
    rows = torch.arange(n_rows, dtype=torch.int32)
    return (rows + shifts[torch.searchsorted(ends, rows, right=True)]).long(), padded


def _placed(rows: Tensor, places: Tensor, ends: Tensor) -> Tensor:
    """Return the rows at their places, and zeros between."""
    out = rows.new_zeros(int(ends[-1]), rows.shape[1])
    out[places] = rows
    return out


def _aligned(matrix: Tensor, dim: int = 1) -> Tensor:
    """Pad dimension `dim` with zeros to a multiple of 16 bytes; a matrix that fits already is returned as it is."""
    missing = -matrix.shape[dim] % (16 // matrix.element_size())
    if missing:
        matrix = F.pad(matrix, (0, missing) if dim == matrix.ndim - 1 else (0, 0, 0, missing))
    # a transposed view stays one: the product reads either order
    return matrix if matrix.stride(-1) == 1 or matrix.stride(-2) == 1 else matrix.contiguous()


@grouped_mm.register_fake
def _(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[2])


@grouped_outer.register_fake
def _(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    return left.new_empty(ends.shape[0], left.shape[1], right.shape[1])


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    rows, matrices, ends = ctx.saved_tensors
    grad = grad.contiguous()
    grad_rows = grouped_mm(grad, matrices.transpose(1, 2), ends) if ctx.needs_input_grad[0] else None
    grad_matrices = grouped_outer(rows, grad, ends) if ctx.needs_input_grad[1] else None
    return grad_rows, grad_matrices, None


grouped_mm.register_autograd(_backward, setup_context=_keep)


@register_flop_formula(torch.ops.gatebench.grouped_mm)
def _grouped_mm_flops(rows: Any, matrices: Any, ends: Any, *args: Any, **kwargs: Any) -> int:
    """Two per multiply-add of every row with its matrix (the counter passes shapes)."""
    return int(2 * rows[0] * rows[1] * matrices[2])


@register_flop_formula(torch.ops.gatebench.grouped_outer)
def _grouped_outer_flops(left: Any, right: Any, ends: Any, *args: Any, **kwargs: Any) -> int:
    return int(2 * left[0] * left[1] * right[1])
