from __future__ import annotations

import pytest

from fedapp.text import clean, site_name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("VA Long Beach · é 東京", "VA Long Beach · é 東京"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[2Jhidden", r"\x1b[2Jhidden"),
        ("a\u202eb\u2028c\u2029d\x85e", r"a\u202eb\u2028c\u2029d\x85e"),
        ("\ud800", r"\ud800"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 77 + "..."),
        ("\n" * 80, r"\n" * 38 + "\\..."),
    ],
)
def test_foreign_text_is_shown_on_one_line(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize("name", ["A", "VA Long Beach", "Genève", "東京", "x" * 100])
def test_a_name_is_taken_as_it_is(name: str) -> None:
    assert site_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 101, "a\nb", "a\x1b[0m", "a\u202eb", "a\u200bb", "Gene\u0300ve", "\ud800"]
)
def test_what_cannot_be_told_apart_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 100 printable characters") as caught:
        site_name(name)
    assert str(caught.value).isprintable() or "\u0300" in name
