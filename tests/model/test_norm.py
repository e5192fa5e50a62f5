"""RMSNorm: values by hand, and what mixed precision makes of it."""

from __future__ import annotations

import math

import pytest
import torch

from gatebench.model.norm import RMSNorm


def test_values_by_hand() -> None:
    norm = RMSNorm(2, eps=1e-6)
    norm.weight.data = torch.tensor([1.0, 2.0])
    expected = torch.tensor([[3 / math.sqrt(12.5), 8 / math.sqrt(12.5)], [0.2, 2.8]])  # rms: sqrt(12.5) and 5
    torch.testing.assert_close(norm(torch.tensor([[3.0, 4.0], [1.0, 7.0]])), expected, atol=1e-6, rtol=0)


def test_eps_keeps_zeros_finite() -> None:
    assert not RMSNorm(4, eps=1e-6)(torch.zeros(1, 4)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_and_sums_under_mixed_precision(dtype: torch.dtype) -> None:
    # 4,096 equal values summed in bf16 would stop growing at 256; their rms would come out at a quarter.
    norm = RMSNorm(4096, eps=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        out = norm(torch.full((1, 4096), 3.0, dtype=dtype))
    assert out.dtype == dtype
    assert out.float().mean().item() == pytest.approx(1.0, abs=2**-8)
