"""What docs/contributing.md rules and the source tree can show: who may write, read and run what."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "gatebench").rglob("*.py"))

WRITERS = {
    "files.py:write_atomic": "the one writer",
    "training/callbacks.py:MetricsWriter.flush": "appends rows; a line cut short is dropped when the run goes on",
    "training/loggers.py:_csv.append": "appends rows to metrics.csv, which is written anew when the run goes on",
    "training/rundir.py:RunLog.__call__": "appends to the log, for people alone",
    "training/attempt.py:_point": "a link's stand-in, under another name, renamed in the next line",
    "sweep/pool.py:Pool.start": "the log of a child process, appended to",
    "sweep/slurm.py:CommandInJob._run": "the log of a child process, appended to",
    "sweep/storage.py:_MendingLock.acquire": "cuts a torn line off a journal, under its lock",
    "hf/export.py:export": "into a temporary folder, which is renamed whole",
    "hf/export.py:_write_foreign": "into a temporary folder, which is renamed whole",
    "hf/export.py:_change_json": "into a temporary folder, which is renamed whole",
    "data/collect.py:collect": "a spool in the temporary folder of a build",
    "data/shards.py:ShardWriter.close": "into the temporary folder of a build, which is renamed whole",
    "data/shards.py:ShardWriter._next_file": "into the temporary folder of a build, which is renamed whole",
    "data/corpus.py:_Build.encode": "into the temporary folder of a build, which is renamed whole",
    "data/corpus.py:_one_builder": "an empty lock",
}
"""Functions that write by themselves, and why that leaves no file in parts."""
READERS = {
    "evaluation/ruler/questions.py:read_questions": "a user's file of questions, refused in a line of its own",
    "evaluation/benchmarks/mmlu_dev.py:mmlu_dev": "a file of the installed lm-eval",
    "hf/export.py:_write_tokenizer": "what transformers has written just now",
    "hf/export.py:_change_json": "what has been written just now",
}
"""Functions that parse JSON from a file by themselves, and why it is no state of ours."""


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call in the package, with `module:function` around it."""

    def inside(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.Call]]:
        for child in ast.iter_child_nodes(node):
            own = names
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                own = (*names, child.name)
            if isinstance(child, ast.Call):
                yield ".".join(names), child
            yield from inside(child, own)

    for path in SOURCES:
        module = path.relative_to(ROOT / "gatebench").as_posix()
        for where, call in inside(ast.parse(path.read_text(encoding="utf-8")), ()):
            yield f"{module}:{where}", call


CALLS = list(calls())


def named(call: ast.Call) -> str:
    return ast.unparse(call.func)


def given(call: ast.Call, name: str) -> str | None:
    """A keyword's value as source; None where it is not given."""
    return next((ast.unparse(word.value) for word in call.keywords if word.arg == name), None)


def mode(call: ast.Call) -> str:
    """The mode of a call that opens a file; empty for any other call."""
    if named(call) == "open":
        place = 1
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "open":
        place = 0
    else:
        return ""
    words = [*call.args[place : place + 1], *(word.value for word in call.keywords if word.arg == "mode")]
    return "".join(str(word.value) for word in words if isinstance(word, ast.Constant))


def test_nothing_is_unpickled() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                assert module.partition(".")[0] not in ("pickle", "dill", "cloudpickle", "joblib", "shelve"), path
    for where, call in CALLS:
        if named(call) == "torch.load" or given(call, "ckpt_path") is not None:
            assert given(call, "weights_only") == "True", where
        assert given(call, "allow_pickle") in (None, "False"), where
        assert named(call) not in ("yaml.unsafe_load", "yaml.full_load", "pd.read_pickle", "pandas.read_pickle"), where
        if named(call) in ("yaml.load", "yaml.load_all"):
            assert given(call, "Loader") == "_Loader", where
    recipes = (ROOT / "gatebench" / "recipes.py").read_text(encoding="utf-8")
    assert "class _Loader(yaml.SafeLoader)" in recipes


def test_no_word_reaches_a_shell() -> None:
    for where, call in CALLS:
        assert named(call) not in ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"), where
        assert given(call, "shell") in (None, "False"), where


def test_every_file_is_written_by_the_one_writer() -> None:
    found = {
        where
        for where, call in CALLS
        if (isinstance(call.func, ast.Attribute) and call.func.attr in ("write_text", "write_bytes"))
        or named(call) in ("np.save", "np.savez", "torch.save")
        or re.search(r"[wax+]", mode(call))
    }
    assert found == set(WRITERS)


def test_state_is_parsed_where_it_is_verified() -> None:
    found = {
        where
        for where, call in CALLS
        if (named(call) == "json.loads" and re.search(r"\.read_(text|bytes)\(", ast.unparse(call)))
        or named(call) == "json.load"
    }
    assert found == set(READERS)


@pytest.mark.parametrize("page", ["contributing.md"])
def test_the_rules_name_what_is_there(page: str) -> None:
    """Each rule names the module that holds it and the test that proves it."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    rules = text.split("\n## ")[1:]
    rules = [rule for rule in rules if re.match(r"\d+\. ", rule)]
    assert len(rules) == 10
    for rule in rules:
        paths = re.findall(r"`((?:gatebench|tests)/[\w/.]+|Makefile)`", rule)
        assert any(not path.startswith("tests/") for path in paths), rule
        assert any(path.startswith("tests/") for path in paths), rule
        for path in paths:
            assert (ROOT / path).exists(), path
