"""The tiny corpus, recipe and reference run."""

from tests.training.tiny_run import reference, run_tiny, tiny_corpus, tiny_recipe

__all__ = ["reference", "run_tiny", "tiny_corpus", "tiny_recipe"]
