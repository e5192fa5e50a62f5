"""One run, start to finish: claim the directory, train or resume, evaluate, publish `summary.json`."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException
from safetensors import SafetensorError
from safetensors.torch import load_model

from gatebench.config import RunConfig
from gatebench.data.backcopy import BigramBackcopy
from gatebench.data.reading import DataSource, open_run_data
from gatebench.data.retrieval_documents import RetrievalDocuments
from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from gatebench.files import check_intact, is_intact
from gatebench.metrics import evaluation_keys
from gatebench.model.accounting import Accounting, account
from gatebench.model.build import build_run_model
from gatebench.model.transformer import Transformer
from gatebench.paths import runs_dir
from gatebench.training import hardware, loggers
from gatebench.training.attempt import Attempt, Superseded, new_attempt, settle, shared_attempt, wait_for_others
from gatebench.training.callbacks import MetricsWriter, ResumePoints, Snapshots, StopTogether, TrainingProgress
from gatebench.training.datamodule import TokenData
from gatebench.training.extension import initial_model, tied_to_parent
from gatebench.training.module import LanguageModel
from gatebench.training.rundir import RunDirectory, RunLog, disk_full_is_a_user_error, is_disk_full
from gatebench.training.sharding import save_weights, trainer_strategy
from gatebench.training.summary import run_summary
from gatebench.training.watch import Watch


class InterruptedRun(Exception):
    """Training was stopped from outside (a signal) before its last step; what is saved resumes."""


class NonFiniteLoss(Exception):
    """The held-out loss of a trained model is NaN or too large for a perplexity: the run diverged at its last step."""


@dataclass(frozen=True)
class Trained:
    """A trained model and what an evaluation needs beside it."""

    config: RunConfig
    model: Transformer
    corpus: DataSource
    device: torch.device
    precision: str
    directory: RunDirectory


Evaluate = Callable[[Trained], dict[str, Any]]
"""Measures a trained model, writes eval.json and probes.*, and returns the flat metrics for the summary.

Raises NonFiniteLoss where there is no finite number to report.
"""


def metric_names(corpus: DataSource) -> list[str]:
    """Return the names of everything that an evaluation on `corpus` measures: null in a diverged run's summary."""
    return evaluation_keys(corpus.domains, synthetic=isinstance(corpus, BigramBackcopy))


def prepare(config: RunConfig, *, elsewhere: bool = False) -> tuple[RunConfig, DataSource, Accounting]:
    """Return `config` tied to its corpus, that corpus, and the run's costs. Raises UserError for every mismatch.

    With `elsewhere` the run will train on another machine: this one needs none of its devices.
    """
    costs = account(config)
    if not elsewhere:
        hardware.check_devices(config, hardware.resolve_accelerator(config.train.accelerator))
        hardware.check_memory(config, costs)
    loggers.check(config)
    corpus = open_run_data(config)
    if corpus.vocab_size != config.model.vocab_size:
        raise UserError(
            f"model.vocab_size={config.model.vocab_size}: corpus '{corpus.name}' has {corpus.vocab_size}; "
            f"legal: --set model.vocab_size={corpus.vocab_size}"
        )
    TokenData(config, corpus)  # refuses a length or a mixture that the corpus cannot give
    if isinstance(corpus, Corpus):
        _check_heldout(config, corpus)
    return tied_to_parent(config.model_copy(update={"corpus_fingerprint": corpus.fingerprint})), corpus, costs


def _check_heldout(config: RunConfig, corpus: Corpus) -> None:
    """Refuse, before training and not after it, an evaluation that the corpus has no text for."""
    seq_len, unscored = config.eval.seq_len or config.data.seq_len, 1 if config.data.bos else 2
    longest = {d: int(np.diff(corpus.documents("heldout", d)).max(initial=0)) - unscored for d in corpus.domains}
    for domain, length in longest.items():
        if length < 1:
            raise UserError(
                f"corpus '{corpus.name}': domain '{domain}' has no held-out text; legal: a corpus that has some"
            )
    if max(longest.values()) < seq_len:
        raise UserError(
            f"eval.seq_len={seq_len}: the longest held-out document of corpus '{corpus.name}' has "
            f"{max(longest.values())} tokens to score; legal: that or less"
        )
    if config.data.retrieval is not None:
        RetrievalDocuments(corpus, config.data.retrieval, seq_len + (not config.data.bos), "heldout")  # refuses as well


def run_directory(config: RunConfig, out: Path | None = None) -> RunDirectory:
    """Return the directory of a prepared run: `out`, or its place below `results/runs`."""
    return RunDirectory(out or runs_dir() / config.run_name)


def run(
    config: RunConfig,
    evaluate: Evaluate,
    *,
    out: Path | None = None,
    threads: int | None = None,
    takeover: bool = False,
) -> dict[str, Any]:
    """Train (or resume, or find done) one run and return its summary.

    `takeover` shuts out another process that seems to be at work on it, as on a machine that was lost.
    Raises UserError for bad input, InterruptedRun when stopped by a signal or shut out.
    """
    config, corpus, costs = prepare(config)
    directory = run_directory(config, out)
    if threads:
        torch.set_num_threads(threads)
    if is_first_process(config):
        directory.claim(config)
    if directory.is_done():
        return directory.read_finished()
    if not is_first_process(config):  # a worker process of DDP: the first one holds the directory
        _train(config, corpus, costs, shared_attempt(directory), evaluate)
        raise SystemExit(0)
    with disk_full_is_a_user_error(directory):
        if not takeover:
            wait_for_others(directory)
        settle(directory)
        if directory.is_done():
            return directory.read_finished()
        try:
            with new_attempt(directory, takeover=takeover) as attempt, _failure_recorded(attempt):
                return _train(config, corpus, costs, attempt, evaluate)
        except Superseded:  # finished by another process between the two looks at it
            return directory.read_finished()


@contextmanager
def _failure_recorded(attempt: Attempt) -> Iterator[None]:
    """Write down why an attempt ended without a result; one that was shut out is interrupted, whatever it met."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, Superseded) or not attempt.is_current():
            raise InterruptedRun(f"{attempt.name}: another process has taken this run over") from None
        outside = isinstance(error, (InterruptedRun, KeyboardInterrupt)) or is_disk_full(error)
        attempt.record_failure("outside" if outside else "own", f"{type(error).__name__}: {error}".splitlines()[0])
        raise


def is_first_process(config: RunConfig) -> bool:
    """Return whether this is the process that owns the directory; Lightning and srun start the others with these set.

    A run of one process is its own first, whatever number srun has given it among the tasks of a job.
    """
    return config.train.devices * config.train.num_nodes == 1 or (
        os.environ.get("LOCAL_RANK", "0") == "0"
        and os.environ.get("NODE_RANK", os.environ.get("SLURM_PROCID", "0")) == "0"
    )


def _train(
    config: RunConfig, corpus: DataSource, costs: Accounting, directory: Attempt, evaluate: Evaluate
) -> dict[str, Any]:
    started = datetime.now(UTC)
    accelerator = hardware.resolve_accelerator(config.train.accelerator)
    precision = _as_before(directory, accelerator, hardware.resolve_precision(config.train.precision, accelerator))
    model = initial_model(config)
    device = (
        torch.device(accelerator, int(os.environ.get("LOCAL_RANK", 0)) if config.train.devices > 1 else 0)
        if accelerator == "cuda"
        else torch.device(accelerator)
    )
    diverged: int | None = None
    compiled = False
    if directory.weights.is_file() and _load_weights(model, directory):
        record = directory.places()
        compiled = bool(record and record[-1]["compiled"])
    else:
        compiled = _compile(config, costs, model, device, precision)
        _record_environment(config, directory, accelerator, precision, compiled)
        diverged = _fit(config, corpus, directory, model, accelerator, precision)
    if not is_first_process(config):
        return {}
    if config.train.strategy == "fsdp" and diverged is None:  # this process has a share of the model; the file has all
        model = build_run_model(config)
        load_model(model, directory.weights)
    hardware.uncompile_blocks(model)
    model = model.to(device).eval()
    metrics: dict[str, Any] = dict.fromkeys(metric_names(corpus))
    if diverged is None:
        try:
            metrics = evaluate(Trained(config, model, corpus, device, precision, directory))
        except NonFiniteLoss:
            diverged = config.train.steps
    summary = run_summary(config, corpus, costs, directory, diverged, started) | metrics
    if "csv" in config.train.loggers:
        loggers.write_csv(directory)
    directory.publish(summary)
    return summary


def _as_before(directory: RunDirectory, device: str, precision: str) -> str:
    """Go on with the threads and the precision that the first attempt had, which the bits depend on; return the latter.

    On another kind of device the run goes on as that allows, and says so.
    """
    attempts = directory.places()
    if not attempts or not (directory.resume_points() or directory.weights.is_file()):
        return precision
    first, log = attempts[0], RunLog(directory)
    if first["device"] != device:
        log(f"{directory.name}: began on {first['device']}, goes on on {device}: equal to rounding, not to the bit")
        return precision
    if device == "cpu" and first["threads"] != torch.get_num_threads():
        log(f"{directory.name}: goes on with {first['threads']} thread(s), as it began")
        torch.set_num_threads(first["threads"])
    return str(first["precision"])


def _compile(config: RunConfig, costs: Accounting, model: Transformer, device: torch.device, precision: str) -> bool:
    tokens = config.train.steps * config.train.batch_size * config.data.seq_len
    if not hardware.wants_compile(config.train.compile, device.type, costs.flops_per_token * tokens):
        return False
    model.to(device)
    example = torch.zeros(config.micro_batch_size, config.data.seq_len, dtype=torch.long, device=device)
    return hardware.compile_blocks(model, example, device.type, precision) is None


def _fit(
    config: RunConfig, corpus: DataSource, directory: Attempt, model: Transformer, accelerator: str, precision: str
) -> int | None:
    """Train to the last step and save the weights; return the step at which the run diverged, if it did."""
    quieten_lightning()
    module = LanguageModel(config, model)
    watch = Watch(config.train.watch_every)
    metrics = MetricsWriter(config, directory, watch)
    points = ResumePoints(config, directory, metrics)
    log = RunLog(directory)
    checkpoint, start = _newest_readable(directory, log)
    if is_first_process(config):
        metrics.listeners += loggers.listeners(config, directory, start)
    trainer = L.Trainer(
        accelerator={"cuda": "gpu"}.get(accelerator, accelerator),
        devices=config.train.devices,
        num_nodes=config.train.num_nodes,
        strategy=trainer_strategy(config),
        precision="bf16-mixed" if precision == "bf16" else "32-true",
        accumulate_grad_batches=config.accumulate,
        max_steps=config.train.steps,
        max_epochs=-1,
        min_epochs=0,
        callbacks=[
            watch,  # before the metrics, which take what it measured
            metrics,
            points,
            Snapshots(config, directory),
            TrainingProgress(config, directory.name, metrics, log),
            StopTogether(directory, log),
        ],
        default_root_dir=directory.path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        plugins=_cluster_environment(config.train.devices * config.train.num_nodes),
        num_sanity_val_steps=0,
    )
    try:
        # tensors, numbers and words alone: a checkpoint that somebody else wrote runs no code here
        trainer.fit(module, datamodule=TokenData(config, corpus), ckpt_path=checkpoint, weights_only=True)
    except SIGTERMException:
        raise InterruptedRun(
            f"{directory.name}: stopped at step {trainer.global_step} of {config.train.steps}"
        ) from None
    if metrics.diverged_step is not None:
        return metrics.diverged_step
    if trainer.global_step < config.train.steps:
        raise InterruptedRun(f"{directory.name}: stopped at step {trainer.global_step} of {config.train.steps}")
    save_weights(model, directory.weights, write=is_first_process(config))
    return None


def _cluster_environment(n_processes: int) -> ClusterEnvironment | None:
    """Return who starts the processes of a run: srun where one step of it has them all, else Lightning.

    Lightning never requeues a job itself: that is the launcher's business (`sweep/slurm.py`).
    """
    if "SLURM_JOB_ID" not in os.environ:
        return None
    if n_processes > 1 and os.environ.get("SLURM_STEP_NUM_TASKS") == str(n_processes):
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


def _load_weights(model: Transformer, directory: RunDirectory) -> bool:
    """Load the trained weights; where their file is damaged, say so and return False: training goes on."""
    try:
        check_intact(directory.weights)
        load_model(model, directory.weights)
    except (SafetensorError, UserError) as error:
        RunLog(directory)(f"{directory.weights}: cannot be read ({error}); going back to a checkpoint")
        return False
    return True


def _newest_readable(directory: RunDirectory, log: RunLog) -> tuple[Path | None, int]:
    """Return the newest checkpoint that can be read, and its step; damaged ones are passed over with a warning."""
    for step, path in directory.resume_points():
        if not is_intact(path):
            log(f"{path}: cannot be read (damaged: its sha256 is another one); going back to an earlier one")
            continue
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            rows = content["callbacks"].get(MetricsWriter.__qualname__)  # none in a checkpoint of an older version
            if rows is None or directory.metrics_reach(rows):
                return path, step
            log(f"{directory.metrics}: damaged before step {step}; going back to an earlier checkpoint")
        except Exception as error:
            log(f"{path}: cannot be read ({type(error).__name__}); going back to an earlier one")
    return None, 0


def quieten_lightning() -> None:
    """Keep Lightning's advertisements and hints off a researcher's terminal; warnings that matter stay."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",
        ".*srun.*",
    ):
        warnings.filterwarnings("ignore", message=message)


def _record_environment(
    config: RunConfig, directory: RunDirectory, device: str, precision: str, compiled: bool
) -> None:
    """Add this attempt to environment.json; a resumed run lists every place it ran in."""
    if not is_first_process(config):
        return
    attempt = {"started": datetime.now(UTC).isoformat(timespec="seconds")}
    attempt |= hardware.environment(config, device, precision, compiled)
    directory.write_places([*directory.places(), attempt])
