"""What is benchmarked: a run or any checkpoint, with the place of its results. Imports torch for the model alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gatebench.config import RunConfig
from gatebench.data.reading import open_run_data
from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from gatebench.evaluation.benchmarks.suites import FOLDER
from gatebench.paths import project_root
from gatebench.training.rundir import RunDirectory

if TYPE_CHECKING:
    from gatebench.evaluation.benchmarks.harness_model import HarnessModel

CORPUS = "six_domains"
"""Whose held-out documents a checkpoint that is no run is asked about, and probed on where no text is given."""


def digest(files: Iterable[Path]) -> str:
    """Return the sha256 (hex) of the names and contents of files, whatever their order."""
    lines = []
    for path in files:
        with path.open("rb") as handle:
            lines.append(f"{path.name} {hashlib.file_digest(handle, 'sha256').hexdigest()}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """A run directory, a directory that `gatebench.hf.load` reads, or a hub id."""

    source: str
    batch_size: int = 16

    @property
    def is_run(self) -> bool:
        """Whether it is a run directory."""
        return self._directory.config.is_file()

    @property
    def name(self) -> str:
        """Recipe and run, or the source as it was given."""
        return RunDirectory(Path(self.source).resolve()).name if self.is_run else self.source

    @property
    def folder(self) -> Path:
        """Where its results are: in a run itself, else below results/benchmarks, by the directory's place."""
        if self.is_run:
            return Path(self.source) / FOLDER
        name = re.sub(r"[^\w.-]+", "_", self.source).strip("_")
        if (path := Path(self.source).expanduser()).is_dir():
            path = path.resolve()
            name = f"{path.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        return project_root() / "results" / FOLDER / name

    @cached_property
    def identity(self) -> dict[str, str]:
        """What results are of: a run by its name; else the place, and what lies there, whose results no other has.

        That is the revision of a hub id, or the sha256 of weights, configuration and tokenizer.
        """
        if self.is_run:
            return {"checkpoint": self.name}
        from gatebench.hf.load import local_directory, model_files

        path = local_directory(self.source).absolute()
        if not Path(self.source).expanduser().is_dir():  # in the hub's cache, whichever folder of the repository
            revision = next(part.name for part in (path, *path.parents) if part.parent.name == "snapshots")
            return {"checkpoint": self.source, "content": revision}
        return {"checkpoint": str(path.resolve()), "content": digest(model_files(path))}

    @cached_property
    def corpus(self) -> Corpus:
        """The corpus whose held-out documents items are made of. Raises UserError where it is missing or rebuilt."""
        if not self.is_run:
            return Corpus.open(CORPUS)
        corpus = open_run_data(self._config)
        if not isinstance(corpus, Corpus):
            raise UserError(f"{self.name}: was trained on '{corpus.name}', which is no text; legal: a run on a corpus")
        return corpus

    def check(self) -> None:
        """Raise UserError for a run that is not finished or diverged, before anything is loaded."""
        if self.is_run:
            self._directory.check_done()

    @cached_property
    def model(self) -> HarnessModel:
        """The model in fp32 on this machine's accelerator. Raises UserError as `gatebench.hf.load` does."""
        import torch

        from gatebench import hf
        from gatebench.evaluation.benchmarks.harness_model import HarnessModel
        from gatebench.training.hardware import resolve_accelerator

        model, tokenizer = hf.load(self.source)
        if tokenizer is None:
            raise UserError(f"{self.name}: has no tokenizer; legal: a checkpoint with one")
        device = torch.device(resolve_accelerator("auto"))
        return HarnessModel(model.float().to(device), tokenizer, batch_size=self.batch_size)

    def close(self) -> None:
        """Forget the model; it is loaded again when it is asked for."""
        self.__dict__.pop("model", None)

    @property
    def context(self) -> int:
        """Tokens that the model sees at once; of a run as it was trained, which no model need be loaded for."""
        return self._config.data.seq_len if self.is_run else self.model.max_length

    @property
    def _directory(self) -> RunDirectory:
        return RunDirectory(Path(self.source))

    @cached_property
    def _config(self) -> RunConfig:
        return self._directory.read_config()
