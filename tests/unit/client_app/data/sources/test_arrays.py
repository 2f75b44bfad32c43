"""Arrays in an npz file, and every file that is none."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import save_pictures

from client_app.data.schemas.images import ImageClassificationSchema
from client_app.data.sources.files import read_files
from client_app.data.table import Table
from fedapp.config import DataSection
from fedapp.errors import DataError


class Harmful:
    """Does harm when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harm"),))


def read(path: Path, **settings: Any) -> Table:
    data = DataSection(source=str(path), **settings)
    return read_files(data, ImageClassificationSchema(data))


def test_arrays_of_other_names_are_named_in_the_settings(tmp_path: Path) -> None:
    path = save_pictures(tmp_path / "a.npz", ["x"])
    with np.load(path) as arrays:
        np.savez(path, images=arrays["image"], digit=np.arange(20) % 3, writer=np.arange(20))

    table = read(path, image_column="images", label_column="digit", site_column="writer")

    assert table.strata[:4] == ["0", "1", "2", "0"]
    assert (table.sites or [])[-1] == "19"


def test_an_array_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = save_pictures(tmp_path / "a.npz", ["x"])

    with pytest.raises(DataError, match="expected a column 'pixels', got 4 columns"):
        read(path, image_column="pixels")


def test_arrays_of_different_lengths_are_refused(tmp_path: Path) -> None:
    path = save_pictures(tmp_path / "a.npz", ["x"], label=np.arange(19))

    with pytest.raises(DataError, match="20 in 'image', 19 in 'label', 20 in 'site'"):
        read(path)


def test_one_value_alone_is_refused(tmp_path: Path) -> None:
    path = save_pictures(tmp_path / "a.npz", ["x"], site=np.array("x"))

    with pytest.raises(DataError, match="one row a record in 'site', got one value alone"):
        read(path)


@pytest.mark.parametrize("kind", ["objects", "pickle", "npy", "text", "cut", "empty"])
def test_what_is_no_npz_file_is_refused_and_runs_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = save_pictures(tmp_path / "a.npz", ["x"])
    if kind == "objects":
        save_pictures(path, ["x"], image=np.array([Harmful()] * 20, dtype=object))
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Harmful()))
    elif kind == "npy":
        with path.open("wb") as stream:
            np.save(stream, np.zeros(3))
    elif kind == "text":
        path.write_text("image,label\n")
    else:
        path.write_bytes(path.read_bytes()[: 600 if kind == "cut" else 0])

    with pytest.raises(DataError, match=r"is not a readable .npz file of plain numbers and texts"):
        read(path)

    assert not (tmp_path / "harm").exists()
