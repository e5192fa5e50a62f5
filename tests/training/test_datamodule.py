"""What a step reads is a function of (data seed, step), however many devices and micro-batches share it."""

from __future__ import annotations

import zlib
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gatebench.data.tokens import Corpus, TrainingWindows
from gatebench.training.datamodule import MicroBatches, TokenData
from tests.training.tiny_run import tiny_config


@pytest.fixture
def windows(tiny_corpus: Path) -> TrainingWindows:
    return TrainingWindows(Corpus.open(tiny_corpus), 32, bos=True, seed=0)


def micro_batches(
    windows: TrainingWindows, recipe: str, *settings: str, start: int = 0, rank: int = 0, world: int = 1
) -> Any:
    return iter(MicroBatches(windows, tiny_config(recipe, *settings), start, rank, world))


def test_a_sequence_is_bos_and_the_tokens_that_the_model_reads_and_predicts(
    windows: TrainingWindows, tiny_recipe: str
) -> None:
    ids = next(micro_batches(windows, tiny_recipe))["ids"]
    assert ids.shape == (4, 33) and ids.dtype == torch.int64
    assert ids[:, 0].tolist() == [windows.corpus.bos_id] * 4
    assert not (ids[:, 1:] == windows.corpus.bos_id).any()  # one prefix, and only there


def test_a_loader_that_starts_late_reads_on(windows: TrainingWindows, tiny_recipe: str) -> None:
    whole = list(islice(micro_batches(windows, tiny_recipe), 20))
    late = list(islice(micro_batches(windows, tiny_recipe, start=13), 7))
    assert all(torch.equal(a["ids"], b["ids"]) and a["crc"] == b["crc"] for a, b in zip(late, whole[13:], strict=True))


@pytest.mark.parametrize(("world", "micro"), [(1, 4), (1, 1), (2, 2), (2, 1), (4, 1)])
def test_devices_and_micro_batches_share_the_same_batch(
    windows: TrainingWindows, tiny_recipe: str, world: int, micro: int
) -> None:
    settings = (f"train.devices={world}", f"train.micro_batch_size={micro}")
    accumulate = 4 // (world * micro)
    ranks = [micro_batches(windows, tiny_recipe, *settings, rank=rank, world=world) for rank in range(world)]
    for step in range(3):
        expected = windows.batch(step, 4)
        parts = [[next(rank) for rank in ranks] for _ in range(accumulate)]
        read = torch.cat([part["ids"] for row in parts for part in row]).numpy()
        assert np.array_equal(read, expected)
        assert parts[-1][0]["crc"] == zlib.crc32(expected.astype("<i8").tobytes())


def test_the_order_changes_with_the_data_seed(tiny_recipe: str, tiny_corpus: Path) -> None:
    corpus = Corpus.open(tiny_corpus)
    batches = {}
    for name, settings, seed in (("s0", (), 0), ("s1", (), 1), ("pinned", ("data.seed=0",), 1)):
        batches[name] = TokenData(tiny_config(tiny_recipe, *settings, seed=seed), corpus).windows.batch(0, 4)
    assert not np.array_equal(batches["s0"], batches["s1"])
    assert np.array_equal(batches["s0"], batches["pinned"])
