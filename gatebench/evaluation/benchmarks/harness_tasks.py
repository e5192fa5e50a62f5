"""Tasks of the lm-eval harness by name, each with its data, before any model is loaded. Imports no torch."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval.tasks

from gatebench.errors import UserError, nearest
from gatebench.evaluation.benchmarks.availability import is_here, missing
from gatebench.evaluation.benchmarks.scores import Scores, from_harness
from gatebench.evaluation.benchmarks.suites import PAPER

if TYPE_CHECKING:
    from gatebench.evaluation.benchmarks.harness_model import HarnessModel

logging.getLogger("lm_eval").setLevel(logging.ERROR)

HARNESS = f"lm_eval {version('lm_eval')}"
_SHIPPED = Path(lm_eval.tasks.__file__).parent


class HarnessTask:
    """A task, or a group of them, whose data is loaded when it is asked for. `task_dir` adds a folder of YAML files."""

    def __init__(self, name: str, task_dir: Path | None = None) -> None:
        self.name = name
        self._manager = _manager_of(name, task_dir)
        entry = self._manager.task_index[name]
        if entry.cfg is None:
            members = ", ".join(sorted(entry.tags)[:8])
            raise UserError(f"task '{name}': a tag without a score of its own; legal: its tasks ({members}, ...)")
        self._config: dict[str, Any] = entry.cfg

    @property
    def version(self) -> str:
        """The task's version, as its file states it; empty where it states none."""
        return str((self._config.get("metadata") or {}).get("version", ""))

    @property
    def shots(self) -> int:
        """Examples in front of a question: the paper's number for its tasks, else as the task's file has it."""
        paper = PAPER.get(self.name)
        return paper.shots if paper else int(self._stated("num_fewshot") or 0)

    @property
    def runs_code(self) -> bool:
        """Whether the harness runs what the model writes, in this process's own rights."""
        return bool(self._config.get("unsafe_code"))

    @cached_property
    def loaded(self) -> dict[str, Any]:
        """What the harness evaluates: tasks and groups by name.

        Raises UserError naming the data set where it cannot be read.
        """
        data_set = self._stated("dataset_path")
        if data_set is not None and not is_here(data_set):
            raise missing(self.name, data_set, "it is not in the hub's cache, and the hub cannot be reached")
        try:
            return dict(self._manager.load([self.name]))
        except Exception as error:  # one of many, from `datasets`, the hub's client, or the task's own code
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise missing(self.name, data_set, lines[0]) from None

    def score(self, model: HarnessModel, shots: int | None, limit: int | None, seed: int, *, code: bool) -> Scores:
        """Return the model's scores, the harness running code where `code`. Raises DoesNotFit.

        `shots` None leaves to every member of a group its own, except to the paper's tasks.
        """
        if code:
            os.environ["HF_ALLOW_CODE_EVAL"] = "1"
        paper = PAPER.get(self.name)
        metric = paper.metric if paper else None
        if shots is None and paper:
            shots = paper.shots
        return evaluated(model, self.name, self.loaded, metric, shots, limit, seed, code=code)

    def _stated(self, key: str, name: str | None = None) -> Any:
        """Return what the file of the task, or of the first member of a group that says something, has for a key."""
        entry = self._manager.task_index.get(name or self.name)
        config = (entry and entry.cfg) or {}
        if config.get(key) is not None:
            return config[key]
        members = config.get("task") if "group" in config else sorted(entry.tags) if entry and not config else ()
        for member in members if isinstance(members, (list, tuple)) else ():
            child = member if isinstance(member, str) else member.get("task") or member.get("group")
            if isinstance(child, str) and child != name and (found := self._stated(key, child)) is not None:
                return found
        return None


def evaluated(
    model: HarnessModel,
    name: str,
    loaded: dict[str, Any],
    metric: str | None,
    shots: int | None,
    limit: int | None,
    seed: int,
    *,
    code: bool = False,
) -> Scores:
    """Return the scores of one loaded task or group; the seed is that of drawn examples. Raises DoesNotFit."""
    import lm_eval.evaluator

    for task in loaded["tasks"].values():
        own = task.get_config("num_fewshot") or 0
        task.set_config(key="num_fewshot", value=own if shots is None else shots)
        task.set_fewshot_seed(seed=seed)
    with contextlib.redirect_stdout(sys.stderr):  # a stray print of the harness must not stand in our JSON
        results = lm_eval.evaluator.evaluate(
            model, loaded, limit=limit, bootstrap_iters=1000, confirm_run_unsafe_code=code
        )
    return from_harness(results, name, metric)


@cache
def _manager_of(name: str, task_dir: Path | None) -> Any:
    """Return a TaskManager that knows the task: of its own folder, since reading all 14,000 files takes long."""
    if task_dir is not None and not task_dir.is_dir():
        raise UserError(f"--task-dir {task_dir}: no such folder; legal: a folder of lm-eval's task files (YAML)")
    own = [] if task_dir is None else [str(task_dir)]
    cuts = [match.start() for match in re.finditer("[-_]", name)]
    folders = [_SHIPPED / name[:end] for end in (None, *reversed(cuts))]
    for include in (own, *([*own, str(folder)] for folder in folders if folder.is_dir())):
        manager = lm_eval.tasks.TaskManager(include_defaults=False, include_path=include or None)
        if name in manager.task_index:
            return manager
    manager = lm_eval.tasks.TaskManager(include_path=own or None)
    if name not in manager.task_index:
        raise UserError(f"task '{name}': unknown to {HARNESS}; {nearest(name, manager.all_tasks)}")
    return manager
