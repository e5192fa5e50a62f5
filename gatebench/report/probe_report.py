"""What `gatebench probe` makes of probed runs: where attention goes, what interventions do, and figures of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gatebench import variants
from gatebench.errors import UserError
from gatebench.evaluation.probes import FOLDER
from gatebench.files import write_atomic
from gatebench.paths import project_root
from gatebench.report.analysis import destinations, interventions
from gatebench.report.analysis.flags import Flag, saturated_gates
from gatebench.report.folders import comparison_folder, folder_name
from gatebench.report.read import probe_files
from gatebench.report.tables import destination_table, intervention_table
from gatebench.report.tables.document import Document
from gatebench.sweep.plan import plan
from gatebench.sweep.study import load_study


@dataclass(frozen=True)
class Group:
    """Runs that stand in one table."""

    label: str
    """What sets the group apart from the study's others; empty for one alone."""
    run_dirs: list[Path]
    folder: Path | None
    """Of the tables and figures; None where it follows from the runs."""


@dataclass(frozen=True)
class ProbeReport:
    """What was made of one group."""

    destinations: Document
    interventions: Document | None
    """None where none was asked for."""
    findings: list[Flag]
    """Of single gates (``flags.saturated_gates``); none blocks anything."""
    files: list[Path]

    def to_dict(self, group: Group, measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Plain values for JSON, with what was ``measured`` of each run."""
        return {
            **({"settings": group.label} if group.label else {}),
            "runs": list(measured),
            "interventions": [] if self.interventions is None else self.interventions.to_dict(),
            "destinations": self.destinations.to_dict(),
            "findings": [asdict(flag) for flag in self.findings],
        }


def study_groups(
    name: str, seeds: int | None, settings: Sequence[str], out: Path | None, *, log: Callable[[str], None]
) -> list[Group]:
    """The finished runs of a study, in plan order, a group a combination; diverged ones are left out and named.

    Raises :class:`UserError` where a run is not finished.
    """
    study = load_study(name).changed(n_seeds=seeds, settings=list(settings))
    planned = plan(study)
    if missing := [run for run in planned if not run.finished]:
        first = f"{missing[0].config.variant} seed {missing[0].config.seed} {missing[0].combination.label}".rstrip()
        words = " ".join([name, *([f"--seeds {seeds}"] if seeds else []), *(f"--set {word}" for word in settings)])
        raise UserError(
            f"study '{study.name}': {len(missing)} of {len(planned)} runs are missing or not finished, the first "
            f"{first}; `gatebench sweep {words}` trains them"
        )
    for run in planned:
        if run.status == "diverged":
            log(f"{run.config.variant} seed {run.config.seed} diverged: left out")
    done = [run for run in planned if run.status == "done" and run.directory is not None]
    if not done:
        raise UserError(f"study '{study.name}': every run diverged; legal: a study with a run that did not")
    folder = out or project_root() / "results" / study.name / "probe"
    groups = []
    for combination in study.combinations():
        paths = [run.directory for run in done if run.combination == combination and run.directory is not None]
        if paths:
            groups.append(Group(combination.label, paths, folder / folder_name(combination.label)))
    return groups


def write(group: Group, recipes: Sequence[str], *, intervened: bool, figures: bool) -> ProbeReport:
    """Write the tables and figures of probed runs, whose ``recipes`` name the folder where the group does not.

    Without ``intervened`` interventions that an earlier call measured are left out.
    """
    runs = [probe_files.load(path) for path in group.run_dirs]
    findings = [flag for run in runs for flag in saturated_gates(run)]
    going, changed = destination_table.document(destinations.rows(runs), runs, findings), None
    texts = {"destinations.md": going.to_markdown(), "destinations.json": going.to_json()}
    if intervened and (rows := interventions.rows(runs)):
        changed = intervention_table.document(rows, runs)
        texts |= {"interventions.md": changed.to_markdown(), "interventions_table.json": changed.to_json()}
    folder = group.folder or _folder(group.run_dirs, recipes, runs)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_atomic(folder / name, text)
    files = [folder / name for name in texts]
    if figures:
        from gatebench.report.figures import probe_figures  # matplotlib is slow to import

        labels = {run.variant: variants.get(run.variant).label or run.variant for run in runs}
        drawn = probe_figures.write(runs, labels, folder / "figures")
        files += [path for path in drawn if path.suffix == ".png"]
    return ProbeReport(going, changed, findings, files)


def _folder(run_dirs: Sequence[Path], recipes: Sequence[str], runs: Sequence[probe_files.ProbedRun]) -> Path:
    """One run: its own folder. Several: results/probe/<recipe>/<variants>."""
    if len(run_dirs) == 1:
        return run_dirs[0] / FOLDER
    names = list(dict.fromkeys(run.variant for run in runs))
    return (
        project_root() / "results" / "probe" / ",".join(dict.fromkeys(recipes)) / comparison_folder("baseline", names)
    )
