"""Cluster profiles: what a site wants to hear with a job. YAML files of `experiments/clusters/`. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from gatebench.errors import UserError, nearest
from gatebench.files import read_text
from gatebench.paths import project_root
from gatebench.recipes import parse_yaml
from gatebench.validation import Section, one_line


class ClusterProfile(Section):
    """How runs are submitted to one SLURM site; what is left out is the site's default."""

    description: str = ""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_minutes: int = Field(240, ge=1)
    """Time limit of one start; a run that needs longer goes on in its next start."""
    gpus_per_device: int = Field(1, ge=0)
    """GPUs for each of train.devices; 0 trains on CPUs."""
    gres: str | None = None
    """Generic resources in place of GPUs, as `shard:1`; for a whole node."""
    cpus_per_task: int = Field(4, ge=1)
    """Cores, and CPU threads, for each of train.devices."""
    mem_gb: float | None = Field(None, gt=0)
    """Memory of a node's share, in GB."""
    max_array_size: int | None = Field(None, ge=1)
    """Runs in one job array; null asks the site (MaxArraySize)."""
    max_requeues: int = Field(10, ge=0)
    """How often one job may start again after preemption, a kill or a lost node."""
    max_timeouts: int = Field(10, ge=0)
    """How often one job may start again after its time limit."""
    signal_delay_s: int = Field(90, ge=1)
    """Seconds before the time limit at which the run is stopped and queued again."""
    setup: list[str] = Field(default_factory=list)
    """Shell lines before the run: `module load cuda`, `export NCCL_SOCKET_IFNAME=ib0`."""
    srun_args: list[str] = Field(default_factory=list)
    """More arguments of srun."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Any other option of sbatch: `{reservation: night, exclude: "node[1-3]"}`."""


def profile_names() -> list[str]:
    """Return the names of the profiles in `experiments/clusters/`."""
    return sorted(path.stem for path in (project_root() / "experiments" / "clusters").glob("*.yaml"))


def load_profile(name: str) -> ClusterProfile:
    """Return the profile `name` (of `experiments/clusters/`, or a path). Raises UserError for any mistake in it."""
    is_path = name.endswith((".yaml", ".yml"))
    path = Path(name) if is_path else project_root() / "experiments" / "clusters" / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"--profile {name}: not found; {nearest(name, profile_names())}, or the path of one")
    content = parse_yaml(read_text(path, "legal: a profile's YAML file"), str(name)) or {}
    if not isinstance(content, dict):
        raise UserError(f"profile '{name}': must be a mapping of {', '.join(ClusterProfile.model_fields)}")
    try:
        return ClusterProfile.model_validate(content)
    except ValidationError as error:
        raise UserError(f"profile '{name}': {one_line(error, ClusterProfile)}") from None
