"""RULER (Hsieh et al. 2024, arXiv 2404.06654): long-context tasks made on the spot, at any length that fits them.

`generate` makes samples, `evaluate` lets a model answer them, `score` grades answers, `depth_grid` moves one needle
through the context. `docs/ruler.md` says how they compare with NVIDIA's and lm-eval's.
"""

from gatebench.evaluation.ruler.haystack import Haystack, heldout_haystack
from gatebench.evaluation.ruler.needles import NeedleTask
from gatebench.evaluation.ruler.samples import TASKS, depth_grid, facts, generate, task
from gatebench.evaluation.ruler.scoring import Complete, Result, evaluate, sample_scores, score
from gatebench.evaluation.ruler.task import NVIDIA_DIGITS, Needle, Sample, Task
from gatebench.evaluation.ruler.templates import WORDINGS

__all__ = [
    "NVIDIA_DIGITS",
    "TASKS",
    "WORDINGS",
    "Complete",
    "Haystack",
    "Needle",
    "NeedleTask",
    "Result",
    "Sample",
    "Task",
    "depth_grid",
    "evaluate",
    "facts",
    "generate",
    "heldout_haystack",
    "sample_scores",
    "score",
    "task",
]
