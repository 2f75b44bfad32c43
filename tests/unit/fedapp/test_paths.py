from __future__ import annotations

from pathlib import Path

import pytest

from fedapp.errors import ConfigError
from fedapp.paths import user_path


def test_the_home_folder_of_an_account_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/users/ada")
    assert user_path("~/runs") == Path("/users/ada/runs")
    assert user_path("~") == Path("/users/ada")
    assert user_path("a/~b") == Path("a/~b")
    assert user_path(Path("/x")) == Path("/x")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("~nosuchuser/x", "'~nosuchuser/x' begins with '~nosuchuser', but no account"),
        ("x\0.csv", r"the path 'x\\x00\.csv' holds a NUL character"),
    ],
)
def test_what_is_no_path_is_one_sentence(path: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        user_path(path)
