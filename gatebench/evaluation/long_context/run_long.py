"""One run at several lengths, plain and with YaRN, untouched and under interventions; results in its folder `long`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatebench import metrics
from gatebench.config import RopeScalingConfig
from gatebench.data.tokens import Corpus
from gatebench.errors import UserError
from gatebench.evaluation import ruler
from gatebench.evaluation.long_context import FOLDER
from gatebench.evaluation.long_context.positions import (
    N_BINS,
    by_position,
    heldout_pieces,
    longest_piece,
    windows_of,
)
from gatebench.evaluation.long_context.ruler_scores import DEPTH_TASK, RulerPrompts, answered, tasks_that_fit
from gatebench.evaluation.perplexity import token_nll
from gatebench.evaluation.probes.interventions import Intervention
from gatebench.evaluation.probes.probe import FOLLOWED, probe
from gatebench.files import sealed
from gatebench.model.rope import Rope
from gatebench.model.transformer import Transformer
from gatebench.training.extension import length_of
from gatebench.training.run import Trained
from gatebench.training.rundir import read_json, write_json

SCHEMA = 1
FREE_TASKS = tuple(name for name, task in ruler.TASKS.items() if task.needs is None)
"""Tasks made of nothing but their templates."""
PROBES = (*(metric.key for metric in metrics.followed()), "first_token_floor", "gate_closed", "probe_tokens")
LONGEST = 8
"""Training windows in a piece of text, so that all lengths up to this read the same."""
BATCH_TOKENS = 16_384
"""Tokens in a forward pass, one window at least."""


@dataclass(frozen=True)
class Request:
    """What to measure."""

    lengths: tuple[str, ...] = ("1x", "2x", "4x", "8x")
    """In tokens, or in training windows."""
    yarn: float | None = None
    """Measure with YaRN by this factor, too."""
    interventions: tuple[Intervention, ...] = ()
    """Measure under each of these, too."""
    tasks: tuple[str, ...] = FREE_TASKS
    samples: int = 50
    depths: int = 5
    """Depths at which a needle is hidden; 0 leaves that out."""
    tokens: int | None = None
    """Held-out tokens for the loss at each length; the probes read half of them. None is one piece of text of each
    domain, 65,536 at least."""
    new_tokens: int | None = None
    digits: int | None = None
    """Of the numbers that needles hold; None is those that the run was taught, or NVIDIA's seven."""
    seed: int = 42

    def __post_init__(self) -> None:
        """Raise UserError for a factor below 1, an unknown task, and one that needs a file of questions."""
        if self.yarn is not None and self.yarn < 1:
            raise UserError(f"--yarn {self.yarn:g}: legal: 1 or more")
        for task in self.tasks:
            if ruler.task(task).needs == "qa_file":
                raise UserError(f"--tasks {task}: needs a file of questions; legal here: the other tasks")


@dataclass(frozen=True)
class Condition:
    """In what state a model is measured."""

    scaling: RopeScalingConfig | None = None
    intervention: Intervention | None = None

    @property
    def name(self) -> str:
        """`plain` or `yarn<factor>`, and the intervention after a plus sign: the stem of the results' file."""
        stretch = "plain" if self.scaling is None else f"yarn{self.scaling.factor:g}"
        return stretch if self.intervention is None else f"{stretch}+{self.intervention.name.replace(':', '_')}"


def measure(
    trained: Trained, request: Request, *, log: Callable[[str], None] = lambda line: None
) -> dict[str, dict[str, Any]]:
    """Return the results of every condition by its name, measuring only what no file has; each length is saved at once.

    Results that are not asked for stay; those that are asked for in another way are replaced.

    Raises UserError for a run on data that is no text, lengths that it has no text for, and YaRN on top of YaRN.
    """
    corpus, config = trained.corpus, trained.config
    if not isinstance(corpus, Corpus):
        raise UserError(f"{trained.directory.name}: was trained on '{corpus.name}', which is no text; legal: a corpus")
    window = config.data.seq_len
    lengths = sorted({_length(word, window) for word in request.lengths})
    scaling = None
    if request.yarn is not None:
        if config.model.rope_scaling is not None:
            raise UserError(f"{trained.directory.name}: was trained with model.rope_scaling; legal: without --yarn")
        scaling = RopeScalingConfig(factor=request.yarn, original_max_position_embeddings=window)
    longest = max(lengths[-1], min(LONGEST * window, longest_piece(corpus) // window * window))
    n_tokens = request.tokens or max(65_536, len(corpus.domains) * longest)
    pieces = heldout_pieces(corpus, longest, n_tokens)
    taught = config.data.retrieval
    digits = request.digits or (ruler.NVIDIA_DIGITS if taught is None else taught.digits)
    prompts = RulerPrompts(corpus, config.data.bos, request.samples, request.seed, request.new_tokens, digits)
    fit, left_out = tasks_that_fit(prompts, [*request.tasks, *([DEPTH_TASK] if request.depths else [])], lengths[0])
    for why in left_out.values():
        log(f"left out: {why}")
    tasks = tuple(task for task in request.tasks if task in fit)
    work = Work(trained, prompts, pieces, tasks, request.depths if DEPTH_TASK in fit else 0)
    records = {}
    for stretch in (None,) if scaling is None else (None, scaling):
        for intervention in (None, *request.interventions):
            if intervention is None or intervention.applies_to(trained.model):
                condition = Condition(stretch, intervention)
                records[condition.name] = work.measured(condition, lengths, log)
    return records


@contextmanager
def stretched(model: Transformer, scaling: RopeScalingConfig | None) -> Iterator[None]:
    """Give the model another RoPE for the length of the block; None leaves it its own."""
    own = model.rope
    if scaling is not None:
        model.rope = Rope(own.head_dim, own.theta, scaling)
    try:
        yield
    finally:
        model.rope = own


def _length(word: str, window: int) -> int:
    try:
        length = length_of(word, window)
    except ValueError:
        length = 0
    if length < N_BINS:
        raise UserError(
            f"--lengths {word}: legal: {N_BINS} tokens or more, or multiples of the training window (1x,2x,4x)"
        )
    return length


@dataclass(frozen=True)
class Work:
    """What is measured at every length and under every condition."""

    trained: Trained
    prompts: RulerPrompts
    pieces: NDArray[np.int64]
    """(P, tokens): held-out text."""
    tasks: tuple[str, ...]
    depths: int

    def measured(self, condition: Condition, lengths: list[int], log: Callable[[str], None]) -> dict[str, Any]:
        """Return one condition's results: what its file has, asked in the same way, and what is measured now."""
        directory, config = self.trained.directory, self.trained.config
        path = directory.path / FOLDER / f"{condition.name}.json"
        record = read_json(path) or {
            "schema": SCHEMA,
            "run": directory.name,
            "variant": config.variant,
            "seed": config.seed,
            "window": config.data.seq_len,
            "rope_scaling": None if condition.scaling is None else condition.scaling.model_dump(),
            "intervention": None if condition.intervention is None else condition.intervention.name,
            "lengths": {},
        }
        for length in lengths:
            known = record["lengths"].get(str(length), {"text": {}, "ruler": {}, "depths": {}})
            if not (missing := self._missing(known)):
                continue
            log(f"{directory.name}: {condition.name} at {length:,} tokens")
            with stretched(self.trained.model, condition.scaling):
                record["lengths"][str(length)] = self._at_length(condition.intervention, length, known, missing)
            path.parent.mkdir(exist_ok=True)
            write_json(path, sealed(record))
        return record

    def _missing(self, known: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return how each part is asked that a length's results lack or have in another way: text, a task, depths."""
        prompts = self.prompts
        corpus = {"corpus": prompts.corpus.name, "corpus_fingerprint": prompts.corpus.fingerprint, "bos": prompts.bos}
        text = {**corpus, "piece": self.pieces.shape[1] - 1, "tokens": self.pieces[:, 1:].size, "dtype": "float32"}
        missing = {} if known["text"].get("asked") == text else {"text": text}
        questions = {**corpus, "samples": prompts.samples, "seed": prompts.seed, "new_tokens": prompts.new_tokens}
        for task in self.tasks:
            asked = {**questions, **ruler.facts(task, haystack=prompts.haystack, digits=prompts.digits)}
            if known["ruler"].get(task, {}).get("asked") != asked:
                missing[task] = asked
        depths = {**questions, **ruler.facts(DEPTH_TASK, digits=prompts.digits), "depths": self.depths}
        if self.depths and known["depths"].get("asked") != depths:
            missing["depths"] = depths
        return missing

    def _at_length(
        self,
        intervention: Intervention | None,
        length: int,
        known: dict[str, Any],
        missing: dict[str, dict[str, Any]],
    ) -> dict[str, Any]:
        """Return a length's results with the `missing` parts measured."""
        model, device, prompts = self.trained.model, self.trained.device, self.prompts
        windows = windows_of(self.pieces, length, prompts.corpus.bos_id if prompts.bos else None)
        probed = windows[::2, :-1]  # of all domains
        data: dict[str, Any] = {"batch_size": max(1, BATCH_TOKENS // length), "device": device}
        results = {**known, "ruler": dict(known["ruler"])}
        with nullcontext() if intervention is None else intervention.applied(model, probed, **data):

            def scores(task: str, depth: float | None = None) -> dict[str, float | int]:
                return answered(model, prompts, task, length, device, cached=intervention is None, depth=depth)

            for part, asked in missing.items():
                if part == "text":
                    losses = token_nll(model, windows[:, :-1], windows[:, 1:], **data)
                    bins, tail = by_position(losses)
                    probes = probe(model, probed, probes=FOLLOWED, **data).summary()
                    results["text"] = {
                        "asked": asked,
                        "windows": len(windows),
                        "loss": float(losses.mean()),
                        "tail": asdict(tail),
                        "bins": [asdict(each) for each in bins],
                        "probes": {key: value for key, value in probes.items() if key in PROBES},
                    }
                elif part == "depths":
                    rows = [{"depth": x, **scores(DEPTH_TASK, x)} for x in np.linspace(0, 1, self.depths).tolist()]
                    results["depths"] = {"asked": asked, "rows": rows}
                else:
                    results["ruler"][part] = {"asked": asked, **scores(part)}
        return results
