from __future__ import annotations

import json
from pathlib import Path

import pytest

from gatebench.data import presets
from gatebench.data.presets import build_preset, ensure_corpus
from gatebench.data.sources import DOMAINS, SOURCES, sources_of, text_source
from gatebench.data.tokens import Corpus
from gatebench.data.wheels import Wheel
from gatebench.errors import UserError


def test_every_domain_is_in_both_presets() -> None:
    for full in (False, True):
        assert {source.domain for source, _ in sources_of(full)} == set(DOMAINS)


def test_the_full_preset_adds_four_sources_and_lifts_all_caps_but_one() -> None:
    default = {source.name for source, _ in sources_of(False)}
    full = {source.name: cap for source, cap in sources_of(True)}
    assert set(full) - default == {
        "AWS API documentation",
        "Tencent Cloud API documentation",
        "CHAMP problems",
        "ScanCode licences",
    }
    assert {name: cap for name, cap in full.items() if cap is not None} == {"Project Gutenberg verse": 30.0}


def test_every_source_states_its_licence_and_pin() -> None:
    assert len({source.name for source in SOURCES}) == len(SOURCES)
    for source in SOURCES:
        assert source.licence
        assert source.attribution
        if source.wheel is not None:
            assert len(source.wheel.sha256) == 64
    assert [s.name for s in SOURCES if s.wheel is None] == ["Python standard library"]


def test_a_file_that_is_no_wheel_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no zip")
    with pytest.raises(UserError, match=r"source 'State of the Union speeches' cannot be read from .*x.whl"):
        list(text_source(SOURCES[0], None, tmp_path / "x.whl").read())


@pytest.fixture
def stdlib_preset(monkeypatch: pytest.MonkeyPatch) -> list[list[Wheel]]:
    """six_domains of the standard library alone, 200 kB of it; the wheels asked for."""
    library = next(s for s in SOURCES if s.wheel is None)
    monkeypatch.setattr(presets, "sources_of", lambda full: [(library, 0.2)])
    asked: list[list[Wheel]] = []
    monkeypatch.setattr(presets, "fetch_wheels", lambda wheels, log: asked.append(wheels) or {})
    return asked


def test_ensure_corpus_builds_a_preset_once(stdlib_preset: list[list[Wheel]], own_cache: Path) -> None:
    path = ensure_corpus("six_domains")
    assert path == own_cache / "corpora" / "six_domains"
    assert Corpus.open("six_domains").domains == ("code",)
    assert ensure_corpus("six_domains") == path
    assert len(stdlib_preset) == 1
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["sources"][0]["licence"] == "PSF-2.0"
    assert set(manifest["seconds"]) == {"fetch", "collect", "split", "tokenizer", "encode"}


@pytest.mark.usefixtures("stdlib_preset")
def test_another_python_makes_the_corpus_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    build_preset("six_domains", log=lambda line: None)
    assert build_preset("six_domains", log=lambda line: None)[1] is False
    monkeypatch.setattr("gatebench.data.sources.platform.python_version", lambda: "3.99.0")
    assert build_preset("six_domains", log=lambda line: None)[1] is True


def test_ensure_corpus_takes_a_built_one_and_refuses_an_unknown_one(tiny_corpus: Path) -> None:
    assert ensure_corpus(str(tiny_corpus)) == tiny_corpus
    with pytest.raises(
        UserError, match=r"corpus 'mine' not found in .*: build it with `gatebench data build --from PATH"
    ):
        ensure_corpus("mine")


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(UserError, match="unknown preset 'six_domain': did you mean six_domains"):
        build_preset("six_domain", log=lambda line: None)
