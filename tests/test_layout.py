"""What holds for the whole repository: the direction of imports, no torch where none is needed, what git may hold."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "gatebench"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Anyone may import these; they import only one another.
BASE = {"errors", "files", "paths", "config", "identity", "recipes", "gatespec", "design", "validation", "variants"}
BASE |= {"cores", "paper", "metrics"}
# Each of these imports from those to its left and from BASE.
LAYERS = ["model", "data", "training", "hf", "evaluation", "sweep", "report", "cli"]

# What is still to be mended; both end empty, and then go.

TOP_LEVEL = {
    *("README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml", "constraints.txt"),
    *(".ci", ".gitignore", ".gitattributes", ".pre-commit-config.yaml"),
    *("gatebench", "tests", "docs", "experiments", "ablations", "results", "notebooks"),
}


def part_of(module: str) -> str:
    """Return the second word of a dotted name: `gatebench.model.gates` is part of `model`, `gatebench` of ``."""
    return module.split(".")[1] if "." in module else ""


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted(path) for path in MODULES}


def imported(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted gatebench module) for every import in `source`: in functions and for types alone too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                origin = ".".join([*parents, origin] if origin else parents)
            # `from gatebench import variants` names a module, `from gatebench.variants import get` a thing in one.
            within = [f"{origin}.{alias.name}" for alias in node.names]
            names = within if origin == "gatebench" else [name if name in NAMES else origin for name in within]
        else:
            continue
        yield from ((node.lineno, name) for name in dict.fromkeys(names) if name.split(".")[0] == "gatebench")


def refused(importer: str, target: str) -> bool:
    """Say whether part `importer` may not import part `target`."""
    if importer in ("", "__main__"):
        return importer == "" and target not in ("", "__version__")
    if target in BASE or target in ("", "__version__", importer):
        return False
    if target not in LAYERS or importer not in LAYERS:
        return True
    return LAYERS.index(target) > LAYERS.index(importer)


def test_modules_are_there() -> None:
    assert {part_of(dotted(path)) for path in MODULES} == {"", "__main__", *BASE, *LAYERS}


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_point_left(path: Path) -> None:
    module = dotted(path)
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for line, name in imported(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
        if refused(part_of(module), part_of(name))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("part", "barred"), [("analysis", "figures|tables"), ("figures", "tables"), ("read", "analysis|figures|tables")]
)
def test_reports_flow_from_reading_over_analysis_to_tables_and_figures(part: str, barred: str) -> None:
    for path in sorted((PACKAGE / "report" / part).glob("*.py")):
        for line, name in imported(path.read_text(encoding="utf-8"), dotted(path), path.name == "__init__.py"):
            assert not re.match(rf"gatebench\.report\.({barred})\b", name), f"{path}:{line} imports {name}"


@pytest.mark.parametrize(
    ("module", "line", "is_wrong"),
    [
        ("gatebench.model.gates", "from gatebench.variants import GateSpec", False),
        ("gatebench.model.gates", "from gatebench.data import tokens", True),
        ("gatebench.model.gates", "def f():\n    import gatebench.cli", True),
        ("gatebench.model.gates", "from ..training import run", True),
        ("gatebench.model.gates", "from .accounting import flops", False),
        ("gatebench.variants", "from gatebench import model", True),
        ("gatebench.report.analysis.stats", "from gatebench.evaluation import perplexity", False),
        ("gatebench.cli.main", "import gatebench.sweep.study as study", False),
    ],
)
def test_import_rule_sees_every_form(module: str, line: str, is_wrong: bool) -> None:
    found = [name for _, name in imported(line, module, is_package=False)]
    assert len(found) == 1
    assert refused(part_of(module), part_of(found[0])) is is_wrong


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Return modules of which each imports the next and the last is the first; none where no import leads back."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_no_import_circle() -> None:
    imports = {}
    for path in MODULES:
        module = dotted(path)
        names = imported(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
        imports[module] = {name for _, name in names if name != module}
    assert not circle(imports)


def test_circles_are_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    found = circle({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    assert found in (["b", "c", "b"], ["c", "b", "c"])


@pytest.mark.parametrize(
    "part", ["errors", "paths", "config", "recipes", "variants", "paper", "metrics", "report", "cli"]
)
def test_no_torch(part: str) -> None:
    """A module of these parts, imported, has not brought torch along."""
    names = [dotted(path) for path in MODULES if part_of(dotted(path)) == part]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    for heavy in ('torch', 'lightning', 'transformers'):\n"
        "        assert heavy not in sys.modules, f'{name} imports {heavy}'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_needs_no_torch(tmp_path: Path) -> None:
    """`gatebench --help` works where `import torch` fails."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "gatebench", "--help"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "ablation" in done.stdout


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_modules_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400


@cache
def tracked() -> tuple[Path, ...]:
    """Return the files that git holds, relative to the root."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    names = [name for name in done.stdout.split("\0") if name]
    if done.returncode or not names:
        pytest.skip("not a git checkout with files in it")
    return tuple(Path(name) for name in names if (ROOT / name).is_file())


def test_top_level() -> None:
    assert {path.parts[0] for path in tracked()} <= TOP_LEVEL


def test_no_run_directory_is_tracked() -> None:
    assert not [path for path in tracked() if path.parts[:2] == ("results", "runs")]


def test_no_large_file() -> None:
    sizes = {str(path): (ROOT / path).stat().st_size for path in tracked()}
    assert not {name: size for name, size in sizes.items() if size > 2 * 1024**2}


# Somebody's home or work folder, or the host of a package registry.
LOCAL = re.compile(r"(?<![\w.~-])/(?:home|root|Users|work)/[\w.-]+|\b(?:pypi\.org|pythonhosted\.org|registry\.npmjs)\b")


def test_nothing_of_one_machine() -> None:
    here = re.compile(re.escape(f"{ROOT}{os.sep}") + "|" + re.escape(f"{Path.home()}{os.sep}"))
    wrong = []
    for path in tracked():
        text = (ROOT / path).read_text(encoding="utf-8", errors="ignore")
        wrong += [f"{path}: {hit.group()}" for pattern in (LOCAL, here) for hit in pattern.finditer(text)]
    assert not wrong, "\n".join(wrong)
