from __future__ import annotations

import pytest

from gatebench.data.documents import Document, clean_text, is_chinese, is_english


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("a\r\nb\rc", "a\nb\nc"),
        ("a \t\nb", "a\nb"),
        ("a\n\n\n\n\n\nb", "a\n\n\nb"),
        ("a\n\n\nb", "a\n\n\nb"),  # two blank lines part Python functions
        ("bell\x07 form\x0c feed\ufeff", "bell form feed"),
        ("tab\tkept, CASE Kept", "tab\tkept, CASE Kept"),
        ("no\xa0break", "no break"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("  \n text\n ", "text"),
    ],
)
def test_clean_text(raw: str, clean: str) -> None:
    assert clean_text(raw) == clean


def test_documents_of_a_group_split_together_and_a_mark_in_a_name_means_nothing() -> None:
    assert Document("a.py#code", "", "code", group="a.py").split_key == "a.py"
    assert len({Document(f"issue #{i}.txt", "", "text").split_key for i in range(3)}) == 3


def test_languages() -> None:
    english = "It was the best of times, it was the worst of times, it was the age of wisdom."
    german = "Es war die beste und die schlimmste Zeit, ein Jahrhundert der Weisheit und des Unsinns."
    chinese = "天下大势，分久必合，合久必分。"
    assert [is_english(t) for t in (english, german, chinese, "")] == [True, False, False, False]
    assert [is_chinese(t) for t in (english, chinese, f"{chinese} API", "")] == [False, True, True, False]
