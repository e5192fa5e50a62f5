"""Windows far beyond the trained one: the cache gives what a prefill gives, and memory grows with the length alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from gatebench.config import ModelConfig, RopeScalingConfig
from gatebench.model.build import build_model

WINDOW = 64


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    "variant", ["baseline", "g1_elementwise", "g1_headwise_from_previous", "sink_logits", "registers4", "softpick"]
)
@torch.no_grad()
def test_decoding_at_sixteen_windows_equals_prefill(variant: str, scaled: bool) -> None:
    scaling = RopeScalingConfig(factor=16, original_max_position_embeddings=WINDOW) if scaled else None
    shape = ModelConfig(
        n_layers=2, d_model=32, n_heads=4, n_kv_heads=2, head_dim=8, ffn_dim=64, vocab_size=50, init_std=0.2,
        context_length=WINDOW, rope_scaling=scaling,
    )  # fmt: skip
    model = build_model(shape, variant).eval()
    ids = torch.randint(50, (2, 16 * WINDOW), generator=torch.Generator().manual_seed(0))
    expected = model(ids)
    caches = model.new_caches()
    parts = [model(ids[:, :1000], caches)]
    parts += [model(ids[:, n : n + 1], caches) for n in range(1000, ids.shape[1])]
    logits = torch.cat(parts, dim=1)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


MEASURE = """
import sys, torch
from gatebench.config import ModelConfig
from gatebench.model.build import build_model
trains, lengths = sys.argv[1] == "train", [int(length) for length in sys.argv[3:]]
torch.set_num_threads(1)
shape = ModelConfig(n_layers=4, d_model=128, n_heads=4, n_kv_heads=2, head_dim=32, ffn_dim=352, vocab_size=4096)
model = build_model(shape, sys.argv[2])
model.recompute = True

def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1])

def one(length):
    ids = torch.zeros(1, length + 1, dtype=torch.long)
    if trains:
        model.loss(ids[:, :-1], ids[:, 1:]).backward()
    else:
        with torch.no_grad():
            model.hidden(ids[:, :-1])

one(64)
before = status("VmRSS")
for length in lengths:
    one(length)
    print(status("VmHWM") - before)
"""


def grown(what: str, variant: str, *lengths: int) -> list[int]:
    """Return by how much passes over the growing `lengths` raise a process above what it held before, in kB."""
    command = [sys.executable, "-c", MEASURE, what, variant, *map(str, lengths)]
    exact = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back at once
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=exact)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("what", ["forward", "train"])
@pytest.mark.parametrize("variant", ["baseline", "g1_elementwise"])
def test_twice_the_length_takes_at_most_2_2_times_the_memory(what: str, variant: str) -> None:
    short, long = grown(what, variant, 2048, 4096)
    assert long <= 2.2 * short
