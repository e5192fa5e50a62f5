"""Tasks of the lm-eval harness by name, each with its data, before any model is loaded. Imports no torch."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from glob import glob
from importlib.metadata import version
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import lm_eval.tasks
from lm_eval.tasks._yaml_loader import load_yaml

from gatebench.errors import UserError, nearest
from gatebench.evaluation.benchmarks.availability import is_here, missing
from gatebench.evaluation.benchmarks.checkpoint import digest
from gatebench.evaluation.benchmarks.scores import Scores, from_harness
from gatebench.evaluation.benchmarks.suites import PAPER, RULER, Options

if TYPE_CHECKING:
    from gatebench.evaluation.benchmarks.checkpoint import Checkpoint
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
        if any(_SHIPPED / "ruler" in entry.yaml_path.parents for entry in self._entries() if entry.yaml_path):
            task = name.removeprefix("ruler_")
            ours = task if task in RULER else "<task>"
            raise UserError(
                f"task '{name}': lm-eval's RULER takes the name of a tokenizer, which is not this model's; legal: "
                f"gb_ruler_{ours}_<length>, made for the model's own (tasks: {', '.join(RULER)})"
            )

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
    def fixes_shots(self) -> bool:
        """Whether the task's file states 0 examples, an order to the harness; of a group, each member has its own."""
        return "group" not in self._config and self._config.get("num_fewshot") == 0

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
            lines = str(error).strip().splitlines() or [""]
            raisers = {frame.f_globals["__name__"].partition(".")[0] for frame, _ in walk_tb(error.__traceback__)}
            if data_set and raisers & {"datasets", "huggingface_hub"}:
                raise missing(self.name, data_set, lines[0] or type(error).__name__) from None
            raise UserError(
                f"task '{self.name}': cannot be loaded ({type(error).__name__}: {lines[0]}); legal: a task whose files "
                "lm-eval loads"
            ) from None

    def prepare(self) -> None:
        """Read the data. Raises UserError as `loaded` does."""
        _ = self.loaded

    def score(self, checkpoint: Checkpoint, options: Options) -> Scores:
        """Return the checkpoint's scores, the harness running code where options allow it. Raises DoesNotFit.

        Shots that nothing states leave to every member of a group its own.
        """
        if options.unsafe_code:
            os.environ["HF_ALLOW_CODE_EVAL"] = "1"
        paper = PAPER.get(self.name)
        shots = paper.shots if options.shots is None and paper else options.shots
        metric = paper.metric if paper else None
        return evaluated(checkpoint.model, self.name, self.loaded, metric, shots, options)

    @cached_property
    def own_files(self) -> str | None:
        """The sha256 of what its files say, of what they include and import, and of local data; None for lm-eval's."""
        files = set(self._task_files())
        for entry in self._entries():
            config = entry.cfg or {}
            for text in _texts(config):  # a function is the path of its module, a dot, and its name
                module = Path(text).parent / (Path(text).name.rpartition(".")[0].replace(".", "/") + ".py")
                if module.is_absolute() and module.is_file():
                    files.update(file for file in module.parent.iterdir() if file.is_file())
            files |= _data_files(config)
        own = [path.resolve() for path in files if _SHIPPED not in path.resolve().parents]
        return digest(own) if own else None

    def _task_files(self) -> Iterator[Path]:
        """Yield the YAML files of the task, of a group's members, and what they include."""
        queue = [entry.yaml_path for entry in self._entries() if entry.yaml_path is not None]
        while queue:
            path = queue.pop().resolve()
            yield path
            include = load_yaml(path, resolve_func=False, recursive=False).get("include") or []
            queue += [path.parent / name for name in ([include] if isinstance(include, str) else include)]

    def _entries(self, name: str | None = None) -> Iterator[Any]:
        """Yield what the harness's index has for the task, and for the members of a group or tag."""
        entry = self._manager.task_index.get(name or self.name)
        if entry is None:
            return
        yield entry
        config = entry.cfg or {}
        members = config.get("task") if "group" in config else sorted(entry.tags) if not config else ()
        for member in members if isinstance(members, (list, tuple)) else ():
            child = member if isinstance(member, str) else member.get("task") or member.get("group")
            if isinstance(child, str) and child != entry.name:
                yield from self._entries(child)

    def _stated(self, key: str) -> Any:
        """Return what the file of the task, or of the first member of a group that says something, has for a key."""
        values = ((entry.cfg or {}).get(key) for entry in self._entries())
        return next((value for value in values if value is not None), None)


def _texts(content: Any) -> Iterator[str]:
    """Yield every text in nested lists and dictionaries."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, (dict, list, tuple)):
        for part in content.values() if isinstance(content, dict) else content:
            yield from _texts(part)


def _data_files(config: Mapping[str, Any]) -> set[Path]:
    """Return the local files that a task's data is read from: named one by one, by a pattern, or by their folder."""
    named = config.get("dataset_kwargs") or {}
    folders = [Path(), *(Path(text) for text in (config.get("dataset_path"), named.get("data_dir")) if text)]
    patterns = [*_texts(named.get("data_files")), *map(str, folders[1:])]
    paths = {Path(path) for folder in folders for text in patterns for path in glob(str(folder / text), recursive=True)}
    inside = {file for path in paths if path.is_dir() for file in path.rglob("*")}
    return {path for path in paths | inside if path.is_file()}


def evaluated(
    model: HarnessModel, name: str, loaded: dict[str, Any], metric: str | None, shots: int | None, options: Options
) -> Scores:
    """Return the scores of one loaded task or group, with `shots` examples drawn by the seed. Raises DoesNotFit."""
    import lm_eval.evaluator

    at_0 = []
    for member, task in loaded["tasks"].items():
        own = task.get_config("num_fewshot")
        if shots and own == 0:  # an order, to the harness
            at_0.append(member)
        task.set_config(key="num_fewshot", value=own or 0 if shots is None or own == 0 else shots)
        task.set_fewshot_seed(seed=options.seed)
    with contextlib.redirect_stdout(sys.stderr):  # a stray print of the harness must not stand in our JSON
        results = lm_eval.evaluator.evaluate(
            model,
            loaded,
            limit=options.limit,
            bootstrap_iters=1000,
            confirm_run_unsafe_code=options.unsafe_code,
        )
    scores = from_harness(results, name, metric, loaded["tasks"])
    return {**scores, "shots_asked": shots, "stated_0_shots": at_0} if at_0 else scores


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
