"""The runs of a study: those in run directories here, and those of its committed compact frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gatebench.paths import project_root
from gatebench.report.read import committed_frames as compact
from gatebench.report.read import results
from gatebench.sweep.plan import PlannedRun, plan
from gatebench.sweep.study import Combination, Study


@dataclass(frozen=True)
class StudyRuns:
    """A study and its finished runs."""

    study: Study
    frame: pd.DataFrame
    """Of ``results.load``, with ``setting``, the label of the combination. ``run_dir`` is empty for a run that is not
    here; a run that two combinations share has a row in each."""
    n_planned: int

    @property
    def folder(self) -> Path:
        """Where its tables, figures and report go."""
        return results_folder(self.study)

    def of(self, combination: Combination) -> pd.DataFrame:
        """The runs of one combination, in the order of ``results.load``."""
        found: pd.DataFrame = self.frame[self.frame["setting"] == combination.label]
        return found.reset_index(drop=True)


def results_folder(study: Study) -> Path:
    """``results/<study>``."""
    return project_root() / "results" / study.name


def collect(study: Study, planned: list[PlannedRun] | None = None) -> StudyRuns:
    """Find the finished runs of ``study``.

    A run counts by its name, which holds the fingerprint of its configuration and corpus; where the corpus is not
    built, so that names are unknown, rows of the compact frame count by variant, seed and settings.
    """
    planned = plan(study) if planned is None else planned
    cells = pd.DataFrame(
        {
            "run": [run.name for run in planned],
            "variant": [run.config.variant for run in planned],
            "seed": [run.config.seed for run in planned],
            "overrides": [str(run.combination.settings) for run in planned],
            "setting": [run.combination.label for run in planned],
        }
    )
    here = _here(planned)
    found = cells.merge(here.drop(columns=["variant", "seed", "overrides"]), on="run", how="inner")
    committed = compact.read_runs(results_folder(study))
    if committed is not None:
        unfinished = cells[~cells["run"].isin(found["run"])].rename(columns={"run": "planned"})
        kept = committed.merge(unfinished, on=["variant", "seed", "overrides", "setting"], how="inner")
        kept = kept[(kept["planned"] == "") | (kept["planned"] == kept["run"])].drop(columns="planned")
        found = pd.concat([part for part in (found, kept) if len(part)]) if len(found) or len(kept) else found
    return StudyRuns(study, results.tidy(found), len(planned))


def of_combination(planned: Sequence[PlannedRun], combination: Combination) -> pd.DataFrame:
    """The finished runs of one combination as ``results.load`` gives them.

    Their ``overrides`` are this combination's: a run may have been made under another spelling of the same settings.
    """
    directories = [run.directory for run in planned if run.combination == combination and run.directory is not None]
    return results.load(directories).assign(overrides=str(combination.settings))


def _here(planned: list[PlannedRun]) -> pd.DataFrame:
    """Every finished run of the study's recipe below ``results/runs``; none where there is no such folder."""
    folders = {run.directory.parent for run in planned if run.directory is not None}
    found = [results.load(folder) for folder in sorted(folders) if folder.is_dir()]
    if not found:
        return results.as_frame([])
    together = pd.concat(found, ignore_index=True)
    # Its directory names a run, as it does for whoever trained it.
    return together.assign(run=["/".join(Path(folder).parts[-2:]) for folder in together["run_dir"]])
