"""Lightning callbacks: metrics on disk, checkpoints, progress."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import lightning as L
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from gatebench.config import RunConfig
from gatebench.files import publish
from gatebench.training.attempt import Attempt
from gatebench.training.module import LanguageModel
from gatebench.training.optim import lr_factor
from gatebench.training.router_metrics import RouterMetrics
from gatebench.training.rundir import RunDirectory, RunLog, seconds_left
from gatebench.training.sharding import save_weights
from gatebench.training.watch import Watch


class MetricsWriter(L.Callback):
    """Writes one line of `metrics.jsonl` per optimiser step, each step once, without a device sync per step.

    Losses and norms stay on the device and are read every `log_every` steps. The first non-finite loss ends training:
    the run has diverged, and its rows end at that step wherever the block boundaries were.
    """

    def __init__(self, config: RunConfig, directory: RunDirectory, watch: Watch) -> None:
        self.config = config
        self.directory = directory
        self.watch = watch
        self.diverged_step: int | None = None
        self.listeners: list[Callable[[list[dict[str, Any]]], None]] = []
        self._pending: list[tuple[int, Tensor, Tensor, int]] = []
        self._router = RouterMetrics()
        self._loss: Tensor | None = None
        self._step = 0
        self._clock = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Drop rows that the checkpoint does not know, and start the clock."""
        self._step = trainer.global_step
        if trainer.is_global_zero:
            self.directory.keep_metrics(self._step)
        self._clock = time.perf_counter()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint says of the rows until its step, which are verified before a run goes on from it."""
        return self.directory.metrics_state()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Collect the micro-batch; once its optimiser step is made, queue the row."""
        assert isinstance(pl_module, LanguageModel) and pl_module.loss is not None
        self._loss = pl_module.loss if self._loss is None else self._loss + pl_module.loss
        self._router.add(pl_module.router)
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        self._router.close_step()
        assert pl_module.grad_norm is not None
        self._pending.append(
            (self._step, self._loss / self.config.accumulate, pl_module.grad_norm.detach(), batch["crc"])
        )
        self._loss = None
        if self._step % self.config.train.log_every == 0 or self._step == self.config.train.steps:
            self.flush(trainer)

    def flush(self, trainer: L.Trainer) -> None:
        """Read the queued rows from the device and append them to the file."""
        if not self._pending or self.diverged_step is not None:
            return
        losses = torch.stack([loss.float() for _, loss, _, _ in self._pending])
        losses = trainer.strategy.reduce(losses, reduce_op="mean")
        norms = torch.stack([norm.float() for _, _, norm, _ in self._pending])
        values = torch.stack((losses, norms)).tolist()  # the one sync of a dense model; with experts a second
        router = self._router.read(len(self._pending))
        now = time.perf_counter()
        tokens_per_step = self.config.train.batch_size * self.config.data.seq_len
        rate = tokens_per_step * len(self._pending) / (now - self._clock)
        self._clock = now
        rows = []
        for (step, _, _, crc), loss, norm, columns in zip(self._pending, *values, router, strict=True):
            lr = self.config.optim.lr * lr_factor(step - 1, self.config.train.steps, self.config.optim)
            rows.append(
                {
                    "step": step,
                    "tokens": step * tokens_per_step,
                    "loss": loss if math.isfinite(loss) else None,
                    "grad_norm": norm if math.isfinite(norm) else None,
                    "lr": lr,
                    "tokens_per_s": round(rate, 1),
                    "batch": f"{crc:08x}",
                    **columns,
                    **self.watch.take(step),
                }
            )
            if not math.isfinite(loss):
                self.diverged_step = step
                trainer.should_stop = True
                break
        self._pending.clear()
        if trainer.is_global_zero:
            with open(self.directory.metrics, "a", encoding="utf-8") as handle:
                handle.writelines(json.dumps(row) + "\n" for row in rows)
                handle.flush()
                os.fsync(handle.fileno())
            for listener in self.listeners:
                listener(rows)


class ResumePoints(L.Callback):
    """Saves everything that a bit-identical continuation needs every `checkpoint_every` steps; keeps the newest two."""

    def __init__(self, config: RunConfig, directory: RunDirectory, metrics: MetricsWriter) -> None:
        self.config = config
        self.directory = directory
        self.metrics = metrics
        self._saved = -1

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save after the optimiser step, with the metrics of every step until here already on disk."""
        step = trainer.global_step
        if step % self.config.train.checkpoint_every or step in (0, self._saved) or step >= self.config.train.steps:
            return
        self.metrics.flush(trainer)
        if self.metrics.diverged_step is None:
            self.save(trainer, step)

    def save(self, trainer: L.Trainer, step: int) -> None:
        """Write `step_<n>.ckpt` by rename and drop all but the newest two."""
        self._saved = step
        final = self.directory.checkpoints / f"step_{step:07d}.ckpt"
        temporary = final.with_suffix(".tmp")
        try:
            trainer.save_checkpoint(temporary)
            if trainer.is_global_zero:
                publish(temporary, final)
                self.directory.drop_resume_points(keep=2)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


class StopTogether(L.Callback):
    """Ends every process of a run on several devices at SIGTERM, at once; what is on disk resumes as after any kill.

    Lightning's handler starts a collective inside the signal handler, where the ranks wait for one another for ever.
    A single process keeps that handler: it stops after the current batch.
    """

    def __init__(self, attempt: Attempt, log: RunLog) -> None:
        self.attempt = attempt
        self.run_log = log

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Replace Lightning's handler, which stands by now."""
        if trainer.world_size == 1:
            return

        def stop(signum: int, frame: FrameType | None) -> None:
            launcher = trainer.strategy.launcher
            if launcher is not None:
                launcher.kill(signal.SIGKILL)
            if trainer.is_global_zero:
                step = f"step {trainer.global_step} of {trainer.max_steps}"
                self.attempt.record_failure("outside", f"stopped at {step}")
                self.run_log(f"gatebench: {self.attempt.name}: stopped at {step}; run the same line again to go on")
            os._exit(1)

        signal.signal(signal.SIGTERM, stop)


class Snapshots(L.Callback):
    """Keeps a copy of the weights every `snapshot_every` steps, for probes over training; none at the last step."""

    def __init__(self, config: RunConfig, directory: RunDirectory) -> None:
        self.config = config
        self.directory = directory
        self._saved = -1

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write `weights_<n>.safetensors` by rename. A resumed run writes again what it had, bit for bit."""
        step, every = trainer.global_step, self.config.train.snapshot_every
        if every is None or step % every or step in (0, self._saved) or step >= self.config.train.steps:
            return
        self._saved = step
        assert isinstance(pl_module, LanguageModel)
        path = self.directory.checkpoints / f"weights_{step:07d}.safetensors"
        save_weights(pl_module.model, path, write=trainer.is_global_zero)


class TrainingProgress(L.Callback):
    """A bar with loss, tokens/s and time left on a terminal; elsewhere, and in the log, a line a tenth of the run."""

    def __init__(self, config: RunConfig, name: str, metrics: MetricsWriter, log: RunLog) -> None:
        self.steps = config.train.steps
        self.name = name
        self.run_log = log
        self._bar: Progress | None = None
        self._last_tenth = -1
        metrics.listeners.append(self.update)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Open the bar where the run stands."""
        if not trainer.is_global_zero:
            return
        if trainer.global_step:
            self.run_log(f"{self.name}: resumed after step {trainer.global_step}")
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}  {task.fields[rate]} tokens/s"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._bar.add_task(self.name, total=self.steps, completed=trainer.global_step, loss="-", rate="-")

    def update(self, rows: list[dict[str, Any]]) -> None:
        """Show the newest row."""
        row = rows[-1]
        loss = "diverged" if row["loss"] is None else f"{row['loss']:.3f}"
        rate = f"{row['tokens_per_s']:,.0f}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=row["step"], loss=loss, rate=rate)
        tenth = 10 * row["step"] // self.steps
        if tenth != self._last_tenth:
            self._last_tenth = tenth
            left = f"{seconds_left(row, self.steps):.0f} s left"
            text = f"{self.name}: step {row['step']}/{self.steps}  loss {loss}  {rate} tokens/s  {left}"
            self.run_log(text, show=self._bar is None)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the bar."""
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the bar before anything is printed about the exception."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
