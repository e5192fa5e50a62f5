"""Every probe of a finished run, again or further than at its end: checkpoints, interventions, attention maps.

All that it writes is in the folder `probe` of the run directory; what the run itself left is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_model

from gatebench.data.backcopy import BigramBackcopy
from gatebench.data.reading import heldout_windows, open_run_data
from gatebench.errors import UserError
from gatebench.evaluation.evaluate import context_of, full_windows, trigger_mask
from gatebench.evaluation.probes import FOLDER
from gatebench.evaluation.probes.intervention_effects import effects
from gatebench.evaluation.probes.interventions import Intervention
from gatebench.evaluation.probes.probe import ProbeResult, probe, write_arrays
from gatebench.evaluation.probes.sinks import attention_maps
from gatebench.files import SUMS, check_intact, write_sums
from gatebench.model.build import build_run_model
from gatebench.model.transformer import Transformer
from gatebench.training.extension import initial_model
from gatebench.training.hardware import resolve_accelerator
from gatebench.training.run import Trained
from gatebench.training.rundir import RunDirectory, write_json

N_MAP_WINDOWS = 16
READ_BACK = (
    "probes.json",
    "probes.npz",
    "attention_maps.npz",
    "interventions.json",
    "checkpoints.json",
    "checkpoints.npz",
)
"""What `report/read/probe_files.py` reads of a folder of probes."""


@dataclass(frozen=True)
class Request:
    """What to measure beyond the probes."""

    interventions: tuple[Intervention, ...] = ()
    every_checkpoint: bool = False
    map_layers: tuple[int, ...] = ()
    """Layers whose attention maps are kept, from 0."""
    map_length: int = 128
    tokens: int | None = None
    """Held-out tokens for the probes; None is the run's `eval.probe_tokens`."""
    seq_len: int | None = None
    """Context length; None is the run's own."""


def open_run(path: Path) -> Trained:
    """Return the trained model of the run directory `path`, on its device in fp32, with its data.

    Raises UserError for a folder that is no run, a run without trained weights, and data that was rebuilt since.
    """
    directory = RunDirectory(path)
    config = directory.read_config()
    directory.check_trained()
    corpus = open_run_data(config)
    device = torch.device(resolve_accelerator(config.train.accelerator))
    model = _loaded(build_run_model(config), directory.weights).to(device).eval()
    return Trained(config, model, corpus, device, "fp32", directory)


def checkpoints(trained: Trained) -> list[tuple[int, Path | None]]:
    """Return (step, weights) of every state that a run kept, oldest first.

    The initial one (None: made again from the seed), the snapshots (`train.snapshot_every`), and the trained one.
    Raises UserError where it kept no snapshot.
    """
    kept = trained.directory.snapshots()
    if not kept:
        raise UserError(
            f"{trained.directory.name}: kept no checkpoints; legal: a run trained with "
            "--set train.snapshot_every=N (in a new --out, where this one is done)"
        )
    steps = trained.config.train.steps
    return [(0, None), *((step, path) for step, path in kept if step < steps), (steps, trained.directory.weights)]


def run_probes(trained: Trained, request: Request, *, log: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Measure what `request` asks for, write it to the run's `probe` folder, and return it as plain data.

    Keys: `run`, `variant`, `seed`, `context`, `probes`, and, where asked for, `checkpoints`, `interventions`.
    Raises UserError for layers, lengths and checkpoints that the run has not; nothing is written then.
    """
    config, directory, device = trained.config, trained.directory, trained.device
    seq_len = request.seq_len or config.eval.seq_len or config.data.seq_len
    n_tokens = request.tokens or config.eval.probe_tokens
    windows = full_windows(trained.corpus, seq_len, bos=config.data.bos, n_tokens=n_tokens)
    triggers = trigger_mask(trained.corpus, windows)
    states = checkpoints(trained) if request.every_checkpoint else []
    maps = kept_maps(trained.model, windows, request, device)
    context = context_of(trained.corpus.name, trained.corpus.fingerprint, seq_len, bos=config.data.bos)
    identity = {"run": directory.name, "variant": config.variant, "seed": config.seed}
    found: dict[str, Any] = {**identity, "context": context}

    def probed(model: Transformer) -> ProbeResult:
        return probe(model, windows, batch_size=config.eval.batch_size, device=device, triggers=triggers)

    log(f"{directory.name}: probing {len(windows)} windows of {seq_len} tokens")
    result = probed(trained.model)
    found["probes"] = result.flat()
    if request.interventions:
        found["interventions"] = _effects(trained, request.interventions, windows, seq_len, log)
    series = []
    for step, path in states:
        log(f"{directory.name}: probing step {step} of {config.train.steps}")
        series.append(probed(_state(trained, path)))
    folder = write_probes(directory.path, identity, context, result, maps, request)
    if request.interventions:
        content = {**identity, **context, "probe_tokens": int(windows.size), "effects": found["interventions"]}
        write_json(folder / "interventions.json", content)
    if states:
        steps = [step for step, _ in states]
        found["checkpoints"] = _series_rows(trained, steps, series)
        write_json(folder / "checkpoints.json", {**identity, **context, "checkpoints": found["checkpoints"]})
        stacked = {name: np.stack([r.arrays()[name] for r in series]) for name in series[0].arrays()}
        write_arrays(folder / "checkpoints.npz", {"step": np.array(steps), **stacked})
    seal(folder)
    return found


def seal(folder: Path) -> None:
    """Write the sums over what a folder of probes holds for reading; a kill before it leaves files without sums."""
    write_sums(folder, {name: folder / name for name in READ_BACK})


def kept_maps(
    model: Transformer, windows: NDArray[np.int64], request: Request, device: torch.device
) -> NDArray[np.float32] | None:
    """Return the attention maps that `request` asks for, over the first `windows` (N, T); None for no layer."""
    if not request.map_layers:
        return None
    return attention_maps(model, windows[:N_MAP_WINDOWS], request.map_layers, device=device, length=request.map_length)


def write_probes(
    directory: Path,
    identity: dict[str, Any],
    context: dict[str, Any],
    result: ProbeResult,
    maps: NDArray[np.float32] | None,
    request: Request,
) -> Path:
    """Write probes and attention maps into the folder `probe` of `directory`; return the folder."""
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMS).unlink(missing_ok=True)  # of an earlier call
    write_json(folder / "probes.json", {**identity, **context, **result.flat()})
    write_arrays(folder / "probes.npz", result.arrays())
    if maps is not None:
        layers = np.array([layer + 1 for layer in request.map_layers])
        write_arrays(folder / "attention_maps.npz", {"maps": maps, "layers": layers})
    return folder


def target_groups(
    trained: Trained, seq_len: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[str, NDArray[np.bool_]]]:
    """Return held-out inputs and targets (N, T) and their groups, masks (N, T).

    Groups are the domains; on synthetic data `copy` (targets that follow a trigger) and `other`.
    """
    config, corpus = trained.config, trained.corpus
    parts = {
        domain: heldout_windows(corpus, domain, seq_len, bos=config.data.bos, max_tokens=config.eval.tokens_per_domain)
        for domain in corpus.domains
    }
    inputs = np.concatenate([part.inputs for part in parts.values()])
    targets = np.concatenate([part.targets for part in parts.values()])
    if isinstance(corpus, BigramBackcopy):
        copies = corpus.is_trigger(inputs)
        return inputs, targets, {"copy": copies, "other": ~copies}
    row_domain = np.repeat(list(parts), [len(part.inputs) for part in parts.values()])
    shape = np.ones(inputs.shape[1], dtype=bool)
    return inputs, targets, {domain: (row_domain == domain)[:, None] & shape for domain in parts}


def _effects(
    trained: Trained,
    interventions: Sequence[Intervention],
    windows: NDArray[np.int64],
    seq_len: int,
    log: Callable[[str], None],
) -> list[dict[str, Any]]:
    inputs, targets, groups = target_groups(trained, seq_len)
    log(f"{trained.directory.name}: {len(interventions)} interventions on {len(inputs)} windows")
    rows = effects(
        trained.model,
        interventions,
        inputs=inputs,
        targets=targets,
        groups=groups,
        probe_inputs=windows,
        batch_size=trained.config.eval.batch_size,
        device=trained.device,
    )
    return [row.as_dict() for row in rows]


def _state(trained: Trained, path: Path | None) -> Transformer:
    if path is None:
        model = initial_model(trained.config)
    else:
        model = _loaded(build_run_model(trained.config), path)
    return model.to(trained.device).eval()


def _loaded(model: Transformer, path: Path) -> Transformer:
    try:
        check_intact(path)
        load_model(model, path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read ({error}); train the run again") from None
    return model


def _series_rows(trained: Trained, steps: list[int], series: list[ProbeResult]) -> list[dict[str, Any]]:
    losses = {row["step"]: row["loss"] for row in trained.directory.metrics_rows()}
    per_step = trained.config.train.batch_size * trained.config.data.seq_len
    return [
        {"step": step, "tokens": step * per_step, "train_loss": losses.get(step), **r.flat()}
        for step, r in zip(steps, series, strict=True)
    ]
