from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from gatebench.data.hub_documents import hub_source
from gatebench.data.text_files import RecordReader
from gatebench.errors import UserError


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the library, whose one data set never ends."""
    module = ModuleType("datasets")

    def load_dataset(name: str, config: str | None, *, split: str, streaming: bool) -> Iterator[dict[str, Any]]:
        assert streaming
        if name != "org/web":
            raise ConnectionError(f"Couldn't reach {name!r} on the hub\nand a second line")
        return ({"text": f"{config} {split} {i}", "meta": {"set": "Web"}} for i in range(10**9))

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


@pytest.mark.usefixtures("datasets")
def test_streams_until_max_docs() -> None:
    source = hub_source("org/web", config="sample", records=RecordReader(domain_field="meta.set"), max_docs=3)
    assert [(d.text, d.domain) for d in source.read()] == [(f"sample train {i}", "web") for i in range(3)]


@pytest.mark.usefixtures("datasets")
def test_bytes_are_capped_by_the_pipeline() -> None:
    assert hub_source("org/web", max_bytes=1000).cap_bytes == 1000


@pytest.mark.usefixtures("datasets")
def test_an_unreachable_data_set_is_one_line() -> None:
    with pytest.raises(UserError) as caught:
        list(hub_source("org/nothing").read())
    assert str(caught.value) == (
        "hub data set 'org/nothing' (config None, split train) cannot be read: Couldn't reach 'org/nothing' on the hub"
    )


@pytest.mark.usefixtures("datasets")
def test_a_wrong_field_is_named() -> None:
    with pytest.raises(UserError, match=r"'org/web' record 0: no field 'content' \(text-field\); it has meta, text"):
        list(hub_source("org/web", records=RecordReader(text_field="content")).read())


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> ModuleType:
        if name == "datasets":
            raise ImportError(name)
        module: ModuleType = real(name, *args, **kwargs)
        return module

    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UserError, match=r"'org/web' needs the extra `hub`: pip install 'gatebench\[hub\]'"):
        hub_source("org/web")
