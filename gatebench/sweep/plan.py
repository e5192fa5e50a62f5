"""What a study would run, what of it is done, and what it costs: read from files alone. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from gatebench.config import DataConfig, RunConfig
from gatebench.data.reading import open_data
from gatebench.errors import UserError
from gatebench.model.accounting import account
from gatebench.model.memory import Memory, memory
from gatebench.paths import runs_dir
from gatebench.sweep.devices import DEVICES, Device
from gatebench.sweep.study import Combination, Study
from gatebench.training.extension import extended
from gatebench.training.rundir import RunDirectory

Status = Literal["done", "diverged", "begun", "missing"]
"""begun: the directory holds a run that is going on or was stopped; the files do not tell which."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    config: RunConfig
    """Tied to its corpus, where that is there."""
    combination: Combination
    directory: Path | None
    """None where the corpus, which is part of a run's identity, is not there yet; of an extension of a run that
    diverged, that run's."""
    status: Status

    @property
    def name(self) -> str:
        """Its name below ``results/runs``; empty where the corpus, and so the name, is unknown."""
        return "" if self.directory is None else "/".join(self.directory.parts[-2:])

    @property
    def finished(self) -> bool:
        """Whether the run has its result. Diverging is one."""
        return self.status in ("done", "diverged")

    @property
    def tokens(self) -> int:
        """Training tokens."""
        return self.config.train.steps * self.config.train.batch_size * self.config.data.seq_len


@dataclass(frozen=True)
class Cost:
    """What one run costs, by arithmetic."""

    n_params: int
    n_params_active: int
    """Of these, what one token goes through."""
    tokens: int
    flops: int
    """Of the training, in all; what is recomputed for the backward pass is not counted."""
    executed_flops: int
    """With what is recomputed: a third more."""
    memory: Memory
    """On one device, at its peak."""


@dataclass(frozen=True)
class PlanCosts:
    """What the runs of a plan cost on one kind of device."""

    device: Device
    utilisation: float
    """Share of the device's peak that training reaches."""
    of_runs: Sequence[Cost]
    """In the order of the plan."""

    def hours(self, cost: Cost) -> float:
        """Hours of one run, over all its devices together."""
        return self.device.hours(cost.executed_flops, self.utilisation)

    def fits(self, cost: Cost) -> bool:
        """Whether the estimate of the peak is below the device's memory."""
        return self.device.memory is None or cost.memory.total <= self.device.memory


class Measured(NamedTuple):
    """What the runs of a study that trained to their end took, and what the missing ones will at that rate."""

    n_runs: int
    mean_seconds: float
    missing_seconds: float
    """One run after another, on the same machine; by FLOPs."""


def plan(study: Study) -> list[PlannedRun]:
    """Return the runs of `study` in the order in which they would start. Raises UserError for what is not legal."""
    fingerprints: dict[str, str | None] = {}

    def tied(config: RunConfig) -> RunConfig:
        key = config.data.model_dump_json()
        if key not in fingerprints:
            fingerprints[key] = _fingerprint(config.data)
        return config.model_copy(update={"corpus_fingerprint": fingerprints[key]})

    found, root = [], runs_dir()
    for config, cell in zip(study.runs(), study.cells(), strict=True):
        config = tied(config)
        directory = None if config.corpus_fingerprint is None else root / config.run_name
        status = _status(directory)
        if study.extend is not None:
            config = tied(extended(config, study.extend))
            if status != "diverged":  # what diverged cannot be extended, and that is the result
                known = directory is not None and config.corpus_fingerprint is not None
                directory = root / config.run_name if known else None
                status = _status(directory)
        found.append(PlannedRun(config, cell.combination, directory, status))
    return found


def refreshed(planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the same runs with what their directories say now."""
    return [replace(run, status=_status(run.directory)) for run in planned]


def cost(run: PlannedRun, device: Device = DEVICES["h100"]) -> Cost:
    """Return what one run costs, its memory on `device`. Raises UserError where the variant does not fit the recipe."""
    train, costs = run.config.train, account(run.config)
    flops = costs.flops_per_token * run.tokens
    bf16 = train.precision == "bf16" or (train.precision == "auto" and device.is_gpu)
    return Cost(
        n_params=costs.n_params,
        n_params_active=costs.n_params_active,
        tokens=run.tokens,
        flops=flops,
        executed_flops=flops * 4 // 3 if train.recompute else flops,
        memory=memory(run.config, costs, bf16=bf16, gpu=device.is_gpu),
    )


def costs_of(runs: Sequence[PlannedRun], device: Device = DEVICES["h100"]) -> list[Cost]:
    """Return what each run costs; seeds cost the same."""
    known: dict[tuple[str, Combination], Cost] = {}
    for run in runs:
        if (key := (run.config.variant, run.combination)) not in known:
            known[key] = cost(run, device)
    return [known[run.config.variant, run.combination] for run in runs]


def train_seconds(runs: Iterable[PlannedRun]) -> list[float]:
    """Return how long each finished run trained."""
    directories = [run.directory for run in runs if run.finished and run.directory is not None]
    summaries = [RunDirectory(directory).read_summary() for directory in directories]
    return [float(summary.get("train_wall_s") or 0.0) for summary in summaries]


def measured(runs: Sequence[PlannedRun], costs: Sequence[Cost]) -> Measured | None:
    """Return what the runs that trained to their end took; None where none did."""
    done = [run for run in runs if run.status == "done"]
    seconds = sum(train_seconds(done))
    if not seconds:
        return None
    pairs = list(zip(runs, costs, strict=True))
    finished = sum(costs.flops for run, costs in pairs if run.status == "done")
    missing = sum(costs.flops for run, costs in pairs if not run.finished)
    return Measured(len(done), seconds / len(done), seconds * missing / finished)


def _fingerprint(data: DataConfig) -> str | None:
    try:
        return open_data(data).fingerprint
    except UserError:  # not built yet; launching builds it, or says what is wrong with it
        return None


def _status(directory: Path | None) -> Status:
    if directory is None:
        return "missing"
    files = RunDirectory(directory)
    return files.result() or ("begun" if files.config.is_file() else "missing")
