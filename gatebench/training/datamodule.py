"""Feeds training windows to Lightning, starting wherever the run stands.

Lightning never has to fast-forward or repeat anything: the loader asks the trainer for its step and begins there, and
what a step reads is a pure function of (data seed, step).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from gatebench.config import RunConfig
from gatebench.data.reading import DataSource, Windows, training_windows


class MicroBatches(IterableDataset[dict[str, Any]]):
    """The micro-batches of one rank, from optimiser step `start` on, without end.

    Each is `{"ids": (micro_batch_size, seq_len + 1) int64, "crc": int}`; in rank 0 `crc` is the CRC-32 of all ranks'
    ids since the step's first micro-batch, so the last one of a step identifies its batch however many devices and
    micro-batches share it. Where the load-balancing loss of an MoE counts ahead, the first one of a step has
    `step_ids`, too: all of this rank's sequences of the step, (accumulate * micro_batch_size, seq_len + 1).
    """

    def __init__(self, windows: Windows, config: RunConfig, start: int, rank: int, world_size: int) -> None:
        self.windows = windows
        self.config = config
        self.start = start
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        micro, accumulate = self.config.micro_batch_size, self.config.accumulate
        moe = self.config.model.moe
        ahead = moe is not None and moe.lbl_scope == "global_batch" and accumulate > 1
        step = self.start
        while True:
            crc = 0
            firsts = [(step * accumulate + accumulated) * self.world_size for accumulated in range(accumulate)]
            for first in firsts:
                ids = self.windows.batch(first + self.rank, micro)
                if self.rank == 0:  # the one that writes the metrics
                    crc = zlib.crc32(_bytes(ids), crc)
                    for other in range(1, self.world_size):
                        crc = zlib.crc32(_bytes(self.windows.batch(first + other, micro)), crc)
                batch = {"ids": torch.from_numpy(ids), "crc": crc}
                if ahead and first == firsts[0]:
                    all_ids = [self.windows.batch(other + self.rank, micro) for other in firsts]
                    batch["step_ids"] = torch.from_numpy(np.concatenate(all_ids))
                yield batch
            step += 1


def _bytes(ids: NDArray[np.int64]) -> bytes:
    return np.ascontiguousarray(ids, dtype="<i8").tobytes()


class TokenData(L.LightningDataModule):
    """Training windows of a run's data."""

    def __init__(self, config: RunConfig, corpus: DataSource) -> None:
        super().__init__()
        self.config = config
        # A window is BOS + seq_len tokens: the model reads seq_len of them and predicts seq_len.
        self.windows = training_windows(corpus, config.data, config.data_seed)

    def train_dataloader(self) -> DataLoader[dict[str, Any]]:
        """Return a loader that begins at the trainer's current step."""
        trainer = self.trainer
        assert trainer is not None
        dataset = MicroBatches(self.windows, self.config, trainer.global_step, trainer.global_rank, trainer.world_size)
        on_gpu = trainer.strategy.root_device.type == "cuda"
        # One worker keeps the order; on CPU it would only take a core from the model.
        return DataLoader(dataset, batch_size=None, num_workers=1 if on_gpu else 0, pin_memory=on_gpu)
