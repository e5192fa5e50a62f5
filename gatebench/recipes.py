"""Reading recipes and runs: YAML, `--set` overrides, one clear line for every mistake. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from gatebench import variants
from gatebench.config import Recipe, RunConfig, apply_variant
from gatebench.errors import UserError, nearest
from gatebench.paths import project_root
from gatebench.validation import one_line

T = TypeVar("T", bound=Recipe)


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars (`3e-3` is a number, `off` is a word) and no duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: list[Any] = []
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"key '{key}' stands twice", key_node.start_mark)
            keys.append(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    letter: [resolver for resolver in resolvers if resolver[0] != "tag:yaml.org,2002:bool"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\d[\d_]*\.?[\d_]*(?:[eE][-+]?\d+)?|\.\d[\d_]*(?:[eE][-+]?\d+)?|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


def parse_yaml(text: str, where: str) -> Any:
    """Return what the YAML `text` says. Raises UserError with `where` and the line of a mistake."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}{line}: {getattr(error, 'problem', None) or 'not valid YAML'}") from None


def recipe_names() -> list[str]:
    """Return the names of the recipes in `experiments/`."""
    return sorted(path.stem for path in (project_root() / "experiments").glob("*.yaml"))


def recipe_path(name: str) -> Path:
    """Return the file of a recipe, given its name or path. Raises UserError naming the nearest recipes."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
    else:
        path = project_root() / "experiments" / f"{name}.yaml"
    if not path.is_file():
        raise UserError(f"recipe '{name}': not found; {nearest(name, recipe_names())}")
    return path


def load_recipe(name: str, overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """Return the recipe `name` (of `experiments/`, or a path) with `section.key=value` overrides applied."""
    path = recipe_path(name)
    content = parse_yaml(path.read_text(encoding="utf-8"), str(name)) or {}
    if not isinstance(content, dict):
        raise UserError(f"recipe '{name}': must be a mapping of {', '.join(Recipe.model_fields)}")
    for override in overrides:
        _apply_override(content, override)
    return _validated(Recipe, content, f"recipe '{name}'")


def make_run(recipe: str, variant: str, seed: int = 0, overrides: list[str] | tuple[str, ...] = ()) -> RunConfig:
    """Return the resolved configuration of one run. Raises UserError for anything that is not legal."""
    loaded = load_recipe(recipe, overrides)
    known = variants.get(variant)
    apply_variant(loaded.model, known)
    name = Path(recipe).stem
    content = {
        **loaded.model_dump(),
        "recipe": name,
        "variant": known.name,
        "seed": seed,
        "overrides": sorted(overrides),
    }
    return _validated(RunConfig, content, f"seed {seed}")


def changed_run(config: RunConfig, overrides: list[str] | tuple[str, ...]) -> RunConfig:
    """Return `config` with `section.key=value` overrides applied on top. Raises UserError as `make_run`."""
    content = config.model_dump()
    for override in overrides:
        _apply_override(content, override)
    content["overrides"] = sorted({*config.overrides, *overrides})
    return _validated(RunConfig, content, config.run_name)


def run_from_yaml(text: str, where: str) -> RunConfig:
    """Return the configuration that a run directory's `config.yaml` holds."""
    return _validated(RunConfig, parse_yaml(text, where), where)


def to_yaml(config: RunConfig) -> str:
    """Return `config` as YAML that `run_from_yaml` reads back to an equal object."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply_override(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UserError(f"--set '{override}': must be key=value, for example optim.lr=3e-3")
    section: Any = content
    for name in path[:-1]:
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            raise UserError(f"--set '{override}': '{name}' holds no further keys")
    section[path[-1]] = parse_yaml(value, f"--set '{override}'")


def _validated(model: type[T], content: Any, where: str) -> T:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{where}: {one_line(error, model)}") from None
