from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fedapp.cli.home import Busy, Home, locked
from fedapp.errors import ConfigError


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_two_projects_of_one_name_have_different_homes(tmp_path: Path) -> None:
    first, second = Home.of(tmp_path / "a" / "app"), Home.of(tmp_path / "b" / "app")
    assert first.path != second.path
    assert first.path.name.startswith("app-")


def test_a_project_has_one_home_however_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "app")
    assert Home.of(tmp_path / "app" / ".." / "link") == Home.of(tmp_path / "app")


def test_the_home_is_private_and_its_working_directory_empty(tmp_path: Path) -> None:
    home = Home.of(tmp_path)
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert not list(home.neutral.iterdir())


def test_a_held_lock_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path), pytest.raises(Busy, match=f"^{os.getpid()}$"), locked(path, wait=False):
        pass
    with locked(path, wait=False):
        pass


def test_a_home_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="give this account a writable home folder"):
        Home.of(tmp_path)


def test_a_folder_whose_name_is_no_text_is_one_sentence(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    folder.mkdir()

    with pytest.raises(ConfigError, match=r"a name that is not Unicode: '.*/a.udcff'; rename it"):
        Home.of(folder)
