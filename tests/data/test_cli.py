"""`gatebench data build` and `gatebench data info`, as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gatebench.cli.data import app
from gatebench.errors import UserError
from tests.data.conftest import prose


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    if isinstance(result.exception, UserError):
        raise result.exception
    return result


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    for i in range(20):
        (tmp_path / "texts" / f"{i}.txt").write_text(prose(i))
    return tmp_path / "texts"


def test_build_from_a_folder_then_info(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build = ("build", "--from", texts, "--name", "mine", "--domain", "web", "--vocab-size", 300, "--out", out)
    first = run(*build)
    assert first.exit_code == 0
    assert "Built mine" in first.stdout
    assert "encoded web" in first.stderr
    assert "up to date" in run(*build).stdout
    info = run("info", out)
    assert "not stated: the files are yours" in info.stdout
    assert prose(0)[:5] not in info.stderr


def test_json_is_alone_on_standard_output(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    built = run("build", "--from", texts, "--name", "mine", "--vocab-size", 300, "--out", out, "--json")
    facts = json.loads(built.stdout)
    assert facts["built"] is True
    assert facts["domains"]["text"]["train"]["documents"] == 18
    shown = json.loads(run("info", out, "--json", "--samples", 2).stdout)
    assert shown["fingerprint"] == facts["fingerprint"]
    assert len(shown["samples"]["text"]) == 2
    assert shown["samples"]["text"][0][:200] in {prose(i)[:200] for i in range(20)}


def test_info_shows_domains_sources_and_samples(tiny_corpus: Path) -> None:
    shown = run("info", tiny_corpus).stdout
    for word in ("english", "chinese", "held-out tokens", "sources", "Dropped:"):
        assert word in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--from", "."), "--name is missing"),
        (("--from", ".", "--name", "six_domains"), "name 'six_domains' is a preset's"),
        (("--from", ".", "--name", "a/b"), "name 'a/b' must be letters"),
        (("--from", ".", "--name", "x", "--full"), "--full True does not go with --from"),
        (("--from", ".", "--name", "x", "--max-docs", 3), "--max-docs 3 needs --hub"),
        (("--from", ".", "--name", "x", "--domain", "a", "--domain-field", "b"), "exclude each other"),
        (("--text-field", "body"), "--text-field body needs --from or --hub"),
        (("--preset", "seven"), "unknown preset 'seven'"),
    ],
)
def test_options_without_effect_are_refused(options: tuple[object, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run("build", *options)


def test_info_on_data_that_is_never_built_says_so() -> None:
    with pytest.raises(UserError, match=r"corpus 'bigram_backcopy': is made as it is read.*data\.synthetic"):
        run("info", "bigram_backcopy")
