"""What is checked and built before the first trial: corpora, a run of each search, the name of the objective."""

from __future__ import annotations

from rich.console import Console

from gatebench.data.presets import PRESETS, ensure_corpus
from gatebench.errors import UserError, nearest
from gatebench.sweep.tuning.search import Search

TRAINING_COLUMNS = ("final_train_loss", "tokens_per_s", "train_wall_s")
"""What can be an objective besides what an evaluation measures."""


def prepare(searches: list[Search], console: Console, *, elsewhere: bool) -> None:
    """Build the corpora and check a run of each search, on this machine unless `elsewhere`. Raises UserError."""
    from gatebench.training import run

    for search in searches:
        config = search.config({}, search.seeds[0])
        if elsewhere and (n_nodes := config.train.num_nodes) > 1:
            raise UserError(f"train.num_nodes={n_nodes}: a worker has one node; legal: train.num_nodes=1")
        if config.data.corpus in PRESETS:
            ensure_corpus(config.data.corpus, log=console.print)
        _, corpus, _ = run.prepare(config, elsewhere=elsewhere)
        legal = [*TRAINING_COLUMNS, *run.metric_names(corpus)]
        if (objective := search.tune.objective) not in legal:
            raise UserError(f"study '{search.study.name}': tune.objective={objective}: {nearest(objective, legal)}")
