"""Loggers besides `metrics.jsonl`. They are fed from its rows, so none can disagree with it."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Callable
from typing import Any, TextIO

from gatebench.config import RunConfig
from gatebench.errors import UserError
from gatebench.files import write_atomic
from gatebench.training.rundir import RunDirectory

Listener = Callable[[list[dict[str, Any]]], None]


def write_csv(directory: RunDirectory) -> None:
    """Write `metrics.csv` from `metrics.jsonl`: the same rows, each step once."""
    rows = directory.metrics_rows()
    if rows:
        text = io.StringIO()
        writer = _writer(text, rows)
        writer.writeheader()
        writer.writerows(rows)
        write_atomic(directory.path / "metrics.csv", text.getvalue())


def _writer(file: TextIO, rows: list[dict[str, Any]]) -> csv.DictWriter[str]:
    return csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")


def check(config: RunConfig) -> None:
    """Refuse a logger whose package is missing. Raises UserError."""
    if "wandb" in config.train.loggers and importlib.util.find_spec("wandb") is None:
        raise UserError("train.loggers=['wandb']: package wandb is missing; pip install 'gatebench[wandb]'")


def listeners(config: RunConfig, directory: RunDirectory, start_step: int) -> list[Listener]:
    """Return a function per configured logger that takes new metrics rows. Raises UserError for a missing package."""
    makers = {"csv": _csv, "tensorboard": _tensorboard, "wandb": _wandb}
    return [makers[name](config, directory, start_step) for name in config.train.loggers]


def _csv(config: RunConfig, directory: RunDirectory, start_step: int) -> Listener:
    begun = False

    def append(rows: list[dict[str, Any]]) -> None:
        nonlocal begun
        if not begun:  # all that an earlier attempt has, too
            write_csv(directory)
            begun = True
            return
        with open(directory.path / "metrics.csv", "a", encoding="utf-8", newline="") as file:
            _writer(file, rows).writerows(rows)

    return append


def _tensorboard(config: RunConfig, directory: RunDirectory, start_step: int) -> Listener:
    from lightning.pytorch.loggers import TensorBoardLogger

    # purge_step hides what a killed run wrote beyond its checkpoint
    logger = TensorBoardLogger(directory.path, name="tensorboard", version="", purge_step=start_step + 1)
    return lambda rows: _log(logger, rows)


def _wandb(config: RunConfig, directory: RunDirectory, start_step: int) -> Listener:
    from lightning.pytorch.loggers import WandbLogger

    logger = WandbLogger(
        project="gatebench",
        name=directory.name,
        id=directory.name.replace("/", "-"),
        save_dir=directory.path,
        config=config.model_dump(mode="json"),
        resume="allow",
    )
    return lambda rows: _log(logger, rows)


def _log(logger: Any, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        metrics = {key: value for key, value in row.items() if isinstance(value, (int, float)) and key != "step"}
        logger.log_metrics(metrics, step=row["step"])
    logger.save()
