"""The probes of runs, read back as arrays: those of a run's end, and those that `gatebench probe` left in `probe`."""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from gatebench.errors import UserError
from gatebench.evaluation.probes import FOLDER
from gatebench.files import read_checked, read_object
from gatebench.gatespec import POSITIONS

SITES = tuple(POSITIONS)

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class ProbedRun:
    """One run's probes. Arrays are those of docs/results.md."""

    run: str
    variant: str
    seed: int
    summary: dict[str, Any]
    """The flat figures of `probes.json`."""
    arrays: Arrays
    checkpoints: Arrays = field(default_factory=dict)
    """Arrays over training, steps first, with `step` (S,); empty where not asked for."""
    effects: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `interventions.json`; empty where not asked for."""
    maps: Arrays = field(default_factory=dict)
    """`maps` (layers, H, T, T) and `layers`, from 1; empty where not asked for."""

    @property
    def sites(self) -> list[str]:
        """Gate sites with scores."""
        return [site for site in SITES if f"gate_{site}_mean" in self.arrays]


Groups = Mapping[str, Sequence[ProbedRun]]
"""Runs by variant, one a seed: of :func:`by_variant`."""


def load(run_dir: str | Path) -> ProbedRun:
    """Read one run's folder `probe`. Raises UserError where there is none or a file cannot be read."""
    folder = Path(run_dir) / FOLDER
    if not (folder / "probes.json").is_file():
        raise UserError(f"{folder}: no probes here; legal: a run that `gatebench probe` has measured")
    summary = _json(folder / "probes.json")

    def of_this_context(name: str) -> dict[str, Any]:
        """What an earlier call left of another length or corpus is not shown beside these probes."""
        content = _json(folder / name)
        same = all(content.get(key) == summary[key] for key in ("seq_len", "corpus_fingerprint"))
        return content if same else {}

    return ProbedRun(
        run=str(summary["run"]),
        variant=str(summary["variant"]),
        seed=summary["seed"] or 0,  # a checkpoint from elsewhere has none
        summary=summary,
        arrays=_arrays(folder / "probes.npz"),
        checkpoints=_arrays(folder / "checkpoints.npz") if of_this_context("checkpoints.json") else {},
        effects=of_this_context("interventions.json").get("effects", []),
        maps=_arrays(folder / "attention_maps.npz"),
    )


def at_the_end(run_dir: str | Path) -> ProbedRun:
    """Read the probes that every run makes when it ends. Raises UserError where there are none or an array lacks."""
    folder = Path(run_dir)
    run, arrays = _json(folder / "summary.json"), _arrays(folder / "probes.npz")
    if not arrays:
        raise UserError(f"{folder / 'probes.npz'}: no probes here; legal is the directory of a finished run")
    for name in ("first_token_share", "max_activation"):
        if name not in arrays:
            raise UserError(
                f"{folder / 'probes.npz'}: the array '{name}' is missing; docs/results.md lists what must be there"
            )
    return ProbedRun(folder.name, run["variant"], run["seed"], _json(folder / "probes.json"), arrays)


def by_variant(runs: Sequence[ProbedRun], baseline: str = "baseline") -> dict[str, list[ProbedRun]]:
    """Group runs by variant, the baseline first, then in the order given; seeds in order."""
    groups: dict[str, list[ProbedRun]] = {}
    for run in sorted(runs, key=lambda run: run.variant != baseline):
        groups.setdefault(run.variant, []).append(run)
    return {name: sorted(found, key=lambda run: run.seed) for name, found in groups.items()}


def mean_over_seeds(runs: Sequence[ProbedRun], name: str) -> npt.NDArray[np.float64]:
    """The mean over runs of one array."""
    return np.asarray(np.mean([run.arrays[name] for run in runs], axis=0), dtype=np.float64)


def context(runs: Sequence[ProbedRun]) -> str:
    """What every number of a table of these probes depends on, in a line."""

    def values(key: str) -> str:
        found = dict.fromkeys(run.summary[key] for run in runs)
        return " or ".join(str(value) if isinstance(value, str) else f"{value:,}" for value in found)

    bos = " or ".join("BOS" if bos else "no BOS" for bos in dict.fromkeys(run.summary["bos"] for run in runs))
    seeds = ", ".join(map(str, sorted({run.seed for run in runs if run.summary.get("seed", run.seed) is not None})))
    tokens = f"{values('probe_tokens')} tokens probed"
    return (
        f"Corpus {values('corpus')}; {bos}; context {values('seq_len')}; {tokens}{f'; seeds {seeds}' if seeds else ''}."
    )


def _json(path: Path) -> dict[str, Any]:
    return read_object(path, "run `gatebench probe` on the run again") if path.is_file() else {}


def _arrays(path: Path) -> Arrays:
    if not path.is_file():
        return {}
    try:
        with np.load(io.BytesIO(read_checked(path))) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except (OSError, ValueError, KeyError, BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error}); run `gatebench probe` on the run again") from None
