"""What of a study's runs is small enough to commit: a row a run (``runs.csv``) and thinned curves (``curves.csv``).

Tables, figures and reports are made from these two files as they read back, so that a checkout without run directories
gives the same bytes as the machine that trained. Under 2 MB for a study of 300 runs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from gatebench.errors import UserError
from gatebench.files import write_atomic
from gatebench.metrics import SCHEMA
from gatebench.report.read.results import FLAGS, TEXT, WHOLE, load_curves, tidy

RUNS = "runs.csv"
CURVES = "curves.csv"

MAX_CURVES = 300
"""Runs whose curves are kept: of a larger study those of the first seeds."""
MAX_POINTS = 12_000
"""Points kept of all curves together."""
MAX_POINTS_A_RUN, MIN_POINTS_A_RUN = 200, 40

CURVE_COLUMNS = ("run", "step", "tokens", "loss", "loss_max", "grad_norm")
"""Of ``curves.csv``: last step and tokens of a bin of steps, mean and largest loss in it, mean gradient norm."""


def write(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Write both files for the runs in ``frame`` (columns of ``results.load``) and return their paths.

    Curves are read from the run directories, or kept as they are where all of them are in the old file already.
    """
    directory.mkdir(parents=True, exist_ok=True)
    old_runs, old_curves = read_runs(directory), read_curves(directory)
    runs, curves = directory / RUNS, directory / CURVES
    table = frame.drop(columns="run_dir", errors="ignore").sort_values(["setting", "recipe", "variant", "seed", "run"])
    _to_csv(table, runs, digits=10)
    chosen = _with_curves(frame)
    if not _same_curves(chosen, old_runs, old_curves):
        _to_csv(thinned(chosen, old_curves), curves, digits=5)
    return [runs, curves]


def read_runs(directory: Path) -> pd.DataFrame | None:
    """``runs.csv`` as the frame of ``results.load`` with ``setting``; ``run_dir`` is empty. None where it is missing.

    Raises :class:`UserError` for a file of another schema.
    """
    path = directory / RUNS
    if not path.is_file():
        return None
    text = pd.read_csv(path, dtype=str, keep_default_na=False)
    if "schema" not in text or set(text["schema"]) - {str(SCHEMA)}:
        raise UserError(f"{path}: not of schema {SCHEMA}; restore it with git, or delete it where the runs are there")
    columns = {str(name): _typed(str(name), text[name]) for name in text}
    return tidy(pd.DataFrame(columns).assign(run_dir=""))


def read_curves(directory: Path) -> pd.DataFrame:
    """``curves.csv``; empty where it is missing."""
    path = directory / CURVES
    if not path.is_file():
        return pd.DataFrame(columns=list(CURVE_COLUMNS))
    return pd.read_csv(path, dtype={"run": str})


def thinned(frame: pd.DataFrame, old: pd.DataFrame) -> pd.DataFrame:
    """The curves of the runs in ``frame``, each in at most 200 bins of steps; of a run that is not here the ``old``."""
    n_points = int(np.clip(MAX_POINTS // max(1, len(frame)), MIN_POINTS_A_RUN, MAX_POINTS_A_RUN))
    found = []
    for run, directory in zip(frame["run"], frame["run_dir"], strict=True):
        if directory:
            found.append(_thinned_run(load_curves([directory]).assign(run=run), n_points))
        else:
            found.append(old[old["run"] == run])
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(CURVE_COLUMNS))


def with_labels(curves: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The curves of ``runs`` with their variant and seed, as ``results.load_curves`` gives them."""
    labels = runs.drop_duplicates("run")[["run", "variant", "seed"]]
    return curves.merge(labels, on="run", how="inner")


def _thinned_run(curve: pd.DataFrame, n_points: int) -> pd.DataFrame:
    bins = [part for part in np.array_split(np.arange(len(curve)), n_points) if len(part)]
    starts = [int(part[0]) for part in bins]
    ends = [int(part[-1]) for part in bins]
    sizes = np.array([len(part) for part in bins])

    def binned(name: str) -> npt.NDArray[np.float64]:
        mean: npt.NDArray[np.float64] = np.add.reduceat(curve[name].to_numpy(dtype=float), starts) / sizes
        return mean

    return pd.DataFrame(
        {
            "run": curve["run"].iloc[0],
            "step": curve["step"].to_numpy()[ends],
            "tokens": curve["tokens"].to_numpy()[ends],
            "loss": binned("loss"),
            "loss_max": np.maximum.reduceat(curve["loss"].to_numpy(dtype=float), starts),
            "grad_norm": binned("grad_norm"),
        }
    )


def _with_curves(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs whose curves are kept, each once, in the order of the file."""
    once = frame.drop_duplicates("run").sort_values(["seed", "setting", "recipe", "variant", "run"])
    return once.head(MAX_CURVES).sort_values(["setting", "recipe", "variant", "seed", "run"])


def _same_curves(frame: pd.DataFrame, runs: pd.DataFrame | None, curves: pd.DataFrame) -> bool:
    """Whether the old files hold the curves of exactly these runs."""
    if runs is None or set(curves["run"]) != set(frame["run"]):
        return False
    old = dict(zip(runs["run"], runs["curve_hash"], strict=True))
    return all(old.get(run) == curve for run, curve in zip(frame["run"], frame["curve_hash"], strict=True))


def _typed(name: str, column: pd.Series) -> pd.Series:
    if name in TEXT or name == "setting":
        return column
    if name in FLAGS:
        return column == "True"
    if name in WHOLE:
        return column.replace("", "0").astype("int64")
    numbers = pd.to_numeric(column.replace("", "nan"), errors="coerce")
    return column if numbers.isna().sum() > (column == "").sum() else numbers


def _to_csv(frame: pd.DataFrame, path: Path, digits: int) -> None:
    """Write by rename, and not at all where the text is the same."""
    text = frame.to_csv(index=False, lineterminator="\n", float_format=f"%.{digits}g")
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    write_atomic(path, text)
