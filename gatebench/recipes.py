"""Reading recipes and runs: YAML, settings on top of it, one clear line for every mistake. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from gatebench.config import Recipe, RunConfig
from gatebench.errors import UserError, nearest
from gatebench.files import read_text
from gatebench.paths import project_root
from gatebench.validation import one_line

T = TypeVar("T", bound=Recipe)


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars (`3e-3` is a number, `off` is a word), whole numbers of 64 bits, and no duplicate keys."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if abs(value) >= 2**64:
            raise yaml.constructor.ConstructorError(None, None, "whole numbers are below 2^64", node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: list[Any] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' stands twice", key_node.start_mark)
            keys.append(key)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.yaml_implicit_resolvers = {
    letter: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:bool"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_FLOAT = re.compile(
    r"^[-+]?(?:\d[\d_]*\.?[\d_]*(?:[eE][-+]?\d+)?|\.\d[\d_]*(?:[eE][-+]?\d+)?|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class _Dumper(yaml.SafeDumper):
    """Quotes a word that `_Loader`, or a reader of YAML 1.1, would take for a number or a truth value."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def parse_yaml(text: str, where: str) -> Any:
    """Return what the YAML `text` says. Raises UserError with `where` and the line of a mistake."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}{line}: {getattr(error, 'problem', None) or 'not valid YAML'}") from None
    except RecursionError:
        raise UserError(f"{where}: not valid YAML: brackets in brackets, too many deep") from None
    except Exception as error:  # PyYAML's constructors raise whatever 2026-99-99, 0x_ or `!!bool abc` make of them
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(f"{where}: not valid YAML: {reason or type(error).__name__}") from None


class Settings(Mapping[str, Any]):
    """What is changed of a recipe: a value for each `section.key`, in the order in which they apply.

    Users write words, `optim.lr=3e-3`; these are read here and nowhere else. A key that is set again has its last
    value, at its last place. Equal are settings of the same keys to the same values, however these are spelled.
    """

    def __init__(self, words: Settings | Iterable[str] = ()) -> None:
        """Read words, or copy settings. Raises UserError for a word that is not `section.key=value`."""
        self._values: dict[str, Any] = {}
        self._words: dict[str, str] = {}
        for word in words.words if isinstance(words, Settings) else words:
            name, equals, value = word.partition("=")
            key = name.strip()
            if not equals or not all(key.split(".")):
                raise UserError(f"--set '{word}': must be key=value, for example optim.lr=3e-3")
            self._words.pop(key, None)
            self._values.pop(key, None)
            self._values[key], self._words[key] = parse_yaml(value, f"--set '{word}'"), word

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Return settings of these values, spelled so that reading the words back gives them."""
        return cls(_word(key, value) for key, value in values.items())

    @property
    def words(self) -> tuple[str, ...]:
        """The settings as they were written, one `section.key=value` each."""
        return tuple(self._words.values())

    def without(self, *keys: str) -> Settings:
        """Return the settings but those of `keys`."""
        return Settings(word for key, word in self._words.items() if key not in keys)

    def apply(self, content: dict[str, Any]) -> None:
        """Change the nested sections `content` in place."""
        for key, value in self._values.items():
            *path, last = key.split(".")
            section: Any = content
            for name in path:
                section = section.setdefault(name, {})
                if not isinstance(section, dict):
                    raise UserError(f"--set '{self._words[key]}': '{name}' holds no further keys")
            section[last] = deepcopy(value)  # a later key may change a part of it

    def __add__(self, others: Settings) -> Settings:
        return Settings((*self.words, *others.words))

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._values)))

    def __str__(self) -> str:
        return " ".join(self.words)


_NEXT_WORD = re.compile(r"\s+(?=[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*=)")


@cache
def settings_of_text(text: str) -> Settings:
    """Return the settings that `str(settings)` wrote, as runs' frames have them; values may hold blanks themselves."""
    words, start = [], 0
    for border in _NEXT_WORD.finditer(text):
        part = text[start : border.start()]
        if (
            all(part.count(opened) == part.count(closed) for opened, closed in ("{}", "[]"))
            and part.count('"') % 2 == 0
        ):
            words.append(part)
            start = border.end()
    return Settings(word for word in (*words, text[start:]) if word.strip())


def _word(key: str, value: Any) -> str:
    """Return `key=value` such that reading it back gives `value`."""
    if isinstance(value, str):
        try:
            plain = parse_yaml(value, key) == value
        except UserError:
            plain = False
        return f"{key}={value if plain else json.dumps(value)}"
    return f"{key}={json.dumps(value, default=str)}"


def recipe_names() -> list[str]:
    """Return the names of the recipes in `experiments/`."""
    return sorted(path.stem for path in (project_root() / "experiments").glob("*.yaml"))


def recipe_path(recipe: str) -> Path:
    """Return the file of a recipe, given its name or path. Raises UserError naming the nearest recipes."""
    path = Path(recipe) if is_path(recipe) else project_root() / "experiments" / f"{recipe}.yaml"
    if not path.is_file():
        raise UserError(f"recipe '{recipe}': not found; {nearest(recipe, recipe_names())}")
    return path


def yaml_name(word: str, kind: str) -> str:
    """Return the name of a recipe or study (`kind`), given that or its path; it may hold dots, and names a folder.

    Raises UserError for dots alone.
    """
    name = Path(word).stem if is_path(word) else Path(word).name
    if not name.strip("."):
        raise UserError(
            f"{kind} '{word}': names no folder; legal: a name with a letter in it, or a path to such a file"
        )
    return name


def is_path(word: str) -> bool:
    """Say whether a recipe or study is given as the path of its file."""
    return word.endswith((".yaml", ".yml"))


def load_recipe(name: str, overrides: Settings | Iterable[str] = ()) -> Recipe:
    """Return the recipe `name` (of `experiments/`, or a path) with settings on top."""
    content = parse_yaml(read_text(recipe_path(name), "legal: a recipe's YAML file"), name) or {}
    if not isinstance(content, dict):
        raise UserError(f"recipe '{name}': must be a mapping of {', '.join(Recipe.model_fields)}")
    Settings(overrides).apply(content)
    return _validated(Recipe, content, f"recipe '{name}'")


def make_run(recipe: str, variant: str, seed: int = 0, overrides: Settings | Iterable[str] = ()) -> RunConfig:
    """Return the resolved configuration of one run. Raises UserError for anything that is not legal."""
    settings = Settings(overrides)
    content = load_recipe(recipe, settings).model_dump()
    content |= {
        "recipe": yaml_name(recipe, "recipe"),
        "variant": variant,
        "seed": seed,
        "overrides": sorted(settings.words),
    }
    return _validated(RunConfig, content, f"seed {seed}")


def changed_run(config: RunConfig, overrides: Settings | Iterable[str]) -> RunConfig:
    """Return `config` with settings on top. Raises UserError as `make_run`."""
    content, settings = config.model_dump(), Settings(overrides)
    settings.apply(content)
    content["overrides"] = sorted({*config.overrides, *settings.words})
    return _validated(RunConfig, content, config.run_name)


def run_from_yaml(text: str, where: str) -> RunConfig:
    """Return the configuration that a run directory's `config.yaml` holds."""
    return _validated(RunConfig, parse_yaml(text, where), where)


def to_yaml(config: RunConfig) -> str:
    """Return `config` as YAML that `run_from_yaml` reads back to an equal object."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _validated(model: type[T], content: Any, where: str) -> T:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{where}: {one_line(error, model)}") from None
