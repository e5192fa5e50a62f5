"""Studies: variants x recipe overrides x seeds, a YAML file each in `ablations/`. Imports no torch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from gatebench import paper, variants
from gatebench.config import RunConfig
from gatebench.errors import UserError, nearest
from gatebench.files import read_text
from gatebench.model.accounting import account
from gatebench.paths import project_root
from gatebench.recipes import Settings, is_path, make_run, parse_yaml, yaml_name
from gatebench.sweep.space import TuneConfig
from gatebench.training.extension import Extension, extended
from gatebench.validation import Section, one_line

_SETTING_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

MAX_SEEDS = 10_000
"""Of a study; each is a run a variant."""


class OverridesConfig(Section):
    """What a study changes of its recipe."""

    set: list[str] = Field(default_factory=list)
    """Settings of every run, as on the command line, `section.key=value`, or as values by `section.key`."""
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    """Lists of values by `section.key`. Every combination of them is run with every variant and seed."""
    settings: dict[str, list[str]] = Field(default_factory=dict)
    """Named settings in either form, each run with every variant and seed; an empty list is the recipe as it is.

    With a grid too, each of them is run with every combination of the grid.
    """

    @model_validator(mode="before")
    @classmethod
    def _values_by_key(cls, content: Any) -> Any:
        """Spell settings that are given as values by key."""

        def words(given: Any) -> Any:
            return list(Settings.of(given).words) if isinstance(given, dict) else given

        found = dict(content) if isinstance(content, dict) else {}
        if "set" in found:
            found["set"] = words(found["set"])
        if isinstance(named := found.get("settings"), dict):
            found["settings"] = {name: words(bundle) for name, bundle in named.items()}
        return found or content

    @field_validator("grid")
    @classmethod
    def _each_value_once(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key, values in grid.items():
            if not values:
                raise ValueError(f"overrides.grid: '{key}' has no values; legal: a list of one or more")
            words = [str(Settings.of({key: value})) for value in values]
            if twice := sorted({word for word in words if words.count(word) > 1}):
                raise ValueError(f"overrides.grid: {twice[0]} stands twice; legal: each value once")
        return grid

    @field_validator("settings")
    @classmethod
    def _each_bundle_once(cls, settings: dict[str, list[str]]) -> dict[str, list[str]]:
        names: dict[tuple[str, ...], str] = {}
        for name, bundle in settings.items():
            if not _SETTING_NAME.fullmatch(name):
                raise ValueError(
                    f"overrides.settings: '{name}' is no name; legal: letters, digits and ._+- (it names a folder)"
                )
            if wrong := [word for word in bundle if "=" not in word]:
                raise ValueError(f"overrides.settings: '{name}' holds '{wrong[0]}'; legal: section.key=value")
            if (same := names.setdefault(tuple(sorted(bundle)), name)) != name:
                raise ValueError(f"overrides.settings: '{same}' and '{name}' are the same; legal: each bundle once")
        return settings


class Combination(NamedTuple):
    """One way in which a study sets up its recipe."""

    settings: Settings
    """All that is changed of the recipe."""
    label: str
    """The named setting, then those of the grid and what the command line asks for; empty where there are none."""


class Cell(NamedTuple):
    """What tells one run of a study from the others."""

    seed: int
    combination: Combination
    variant: str


class Study(Section):
    """Variants under one recipe, compared with one baseline over the same seeds."""

    description: str = ""
    """What the study asks, in a sentence or two."""
    recipe: str
    """A recipe of `experiments/`, or the path of one."""
    baseline: str = "baseline"
    """The variant that the others are compared with; always run, whether `variants` names it or not."""
    variants: list[str] = Field(min_length=1)
    """Names, globs (`g1_*`), rows of a table of the paper (`table:4`) or groups (`group:sparsity`).

    What the last three hold and the recipe cannot have (four more experts in a dense model) is skipped, and said so.
    """
    overrides: OverridesConfig = Field(default_factory=OverridesConfig)
    """What is changed of the recipe, fixed or as a grid."""
    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2], min_length=1)
    """A list of seeds, or a number N for the seeds 0 .. N-1. One seed gives no verdict."""
    tables: list[int] = Field(default_factory=list)
    """Tables of the paper to print with our numbers beside its own; without any, the comparison with the baseline."""
    extend: Extension | None = None
    """A second stage: each run is extended when all are trained, and what the study compares are the extended ones."""
    tune: TuneConfig | None = None
    """What `gatebench tune` searches; a sweep does not look at it."""

    _name: str = PrivateAttr("")
    _settings: Settings = PrivateAttr(Settings())
    _recipe_word: str = PrivateAttr("")
    _seeds_word: str = PrivateAttr("")
    _combinations: list[Combination] | None = PrivateAttr(None)
    _skipped: dict[str, str] | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _count_of_seeds(cls, content: Any) -> Any:
        """Read `seeds: 3` as [0, 1, 2]."""
        seeds = content.get("seeds") if isinstance(content, dict) else None
        if isinstance(seeds, int) and not isinstance(seeds, bool):
            if not 1 <= seeds <= MAX_SEEDS:
                raise ValueError(f"seeds={seeds}: must be 1 or more, {MAX_SEEDS:,} at most, or a list of seeds")
            return {**content, "seeds": list(range(seeds))}
        return content

    @model_validator(mode="after")
    def _legal(self) -> Study:
        if wrong := [seed for seed in self.seeds if not 0 <= seed < 2**63]:
            raise ValueError(f"seeds={wrong[0]}: must be 0 or more, below 2^63")
        if twice := sorted({seed for seed in self.seeds if self.seeds.count(seed) > 1}):
            raise ValueError(f"seeds={twice[0]}: stands twice; legal: each seed once")
        if unknown := [table for table in self.tables if table not in paper.TABLES]:
            raise ValueError(f"tables={unknown[0]}: not in the paper; legal: {', '.join(map(str, paper.TABLES))}")
        return self

    @property
    def name(self) -> str:
        """Stem of the study's file, and its folder below `results/`; empty for one made on the fly."""
        return self._name

    def changed(
        self,
        *,
        n_seeds: int | None = None,
        settings: tuple[str, ...] | list[str] = (),
        recipe: str | None = None,
    ) -> Study:
        """Return the study on the seeds 0 .. n_seeds - 1, at another recipe, with more settings applied last.

        Another recipe, the settings (`section.key=value`) and other seeds are part of every combination's label.
        """
        study = self.model_copy()
        study._settings = self._settings + Settings(settings)
        study._combinations = study._skipped = None
        if n_seeds is not None and n_seeds > MAX_SEEDS:
            raise UserError(f"--seeds {n_seeds}: legal: 1 to {MAX_SEEDS:,}")
        if n_seeds is not None and list(range(n_seeds)) != self.seeds:
            study.seeds, study._seeds_word = list(range(n_seeds)), f"seeds={n_seeds}"
        if recipe is not None and recipe != self.recipe:
            study.recipe, study._recipe_word = recipe, f"recipe={yaml_name(recipe, 'recipe')}"
        return study

    def variant_names(self) -> list[str]:
        """Return the canonical names, each once: the baseline, then the others in the order of `variants`.

        Without those that are :meth:`skipped`.
        """
        return [name for name in self.selected if name not in self.skipped()]

    def skipped(self) -> dict[str, str]:
        """Return what a table, group or glob of `variants` holds and the recipe cannot have, with the reason.

        A variant that stands in the study by its own name is never skipped: making its run refuses it.
        """
        if self._skipped is None:
            found: dict[str, str] = {}
            for combination in self.combinations():
                with self._named():
                    config = make_run(self.recipe, self.baseline, 0, combination.settings)
                for name, by_name in self.selected.items():
                    try:
                        account(config.model_copy(update={"variant": name}))
                    except UserError as error:
                        if not by_name:
                            found.setdefault(name, str(error))
            self._skipped = found
        return self._skipped

    @cached_property
    def selected(self) -> dict[str, bool]:
        """The canonical names in order, the baseline first, and whether each stands there by its own name."""
        with self._named():
            selected = {variants.get(self.baseline).name: True}
            for word in self.variants:
                for variant in variants.select(word):
                    by_name = selected.get(variant.name, False) or not variants.is_pattern(word)
                    selected[variant.name] = by_name
        return selected

    @property
    def fixed(self) -> Combination:
        """What every run has: the settings of `overrides.set` and of the command line, which are its label."""
        with self._named():
            return Combination(Settings(self.overrides.set) + self._settings, " ".join(self._asked))

    @property
    def _asked(self) -> tuple[str, ...]:
        """What the command line asks for, in words."""
        return tuple(filter(None, (self._recipe_word, *self._settings.words, self._seeds_word)))

    @property
    def as_declared(self) -> bool:
        """Whether it is what its file says: the command line asks for nothing else."""
        return not self._asked

    def combinations(self) -> list[Combination]:
        """Return every named setting with every combination of the grid, the last key changing fastest.

        One where there is neither.
        """
        if self._combinations is None:
            by_key = [[Settings.of({key: value}) for value in values] for key, values in self.overrides.grid.items()]
            found = []
            with self._named():
                for name, bundle in (self.overrides.settings or {"": []}).items():
                    for chosen in itertools.product(*by_key):
                        label = " ".join(filter(None, (name, *map(str, chosen), *self._asked)))
                        settings = sum((Settings(bundle), *chosen, self._settings), Settings(self.overrides.set))
                        found.append(Combination(settings, label))
            self._combinations = found
        return self._combinations

    def cells(self) -> list[Cell]:
        """Return the runs by what tells them apart: by seed first, so that a seed's pairs are complete early."""
        names, combinations = self.variant_names(), self.combinations()
        return [Cell(*cell) for cell in itertools.product(self.seeds, combinations, names)]

    def first_stage(self) -> Study:
        """Return the study of the runs that this one extends."""
        return self.model_copy(update={"extend": None})

    def runs(self) -> list[RunConfig]:
        """Return the configuration of every cell, in the order of :meth:`cells`; before `extend`, where it has that.

        Raises UserError, with the study's name where it has one, for a variant or a setting that is not legal.
        """
        made: dict[tuple[Combination, str], RunConfig] = {}
        found = []
        for seed, combination, variant in self.cells():
            if (combination, variant) not in made:
                with self._named():
                    made[combination, variant] = make_run(self.recipe, variant, seed, combination.settings)
                    if self.extend is not None:
                        extended(made[combination, variant], self.extend)  # refuse what is not legal
            found.append(made[combination, variant].model_copy(update={"seed": seed}))
        return found

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Begin every UserError inside with the study's name."""
        try:
            yield
        except UserError as error:
            raise UserError(f"study '{self.name}': {error}" if self.name else str(error)) from None


def study_names() -> list[str]:
    """Return the names of the studies in `ablations/`."""
    return sorted(path.stem for path in (project_root() / "ablations").glob("*.yaml"))


def load_study(name: str) -> Study:
    """Return the study `name` (of `ablations/`, or a path ending in .yaml). Raises UserError for any mistake in it."""
    path = Path(name) if is_path(name) else project_root() / "ablations" / f"{name}.yaml"
    if not path.is_file():
        names = study_names()
        known = nearest(name, names) if names else f"there are none in {path.parent}"
        raise UserError(f"study '{name}': not found; {known}")
    content = parse_yaml(read_text(path, "legal: a study's YAML file"), str(name))
    if not isinstance(content, dict):
        raise UserError(f"study '{name}': must be a mapping of {', '.join(Study.model_fields)}")
    try:
        study = Study.model_validate(content)
    except ValidationError as error:
        raise UserError(f"study '{name}': {one_line(error, Study)}") from None
    study._name = yaml_name(name, "study")
    return study
