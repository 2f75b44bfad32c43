from pathlib import Path

import pytest

from fedapp.cache import cache_folder
from fedapp.errors import ConfigError


def test_the_folder_is_created_below_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_folder() == tmp_path / ".cache" / "fedapp"
    assert cache_folder().is_dir()


def test_an_impossible_folder_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cache").write_text("a file where a folder should be")
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(ConfigError, match="cannot be created"):
        cache_folder()
