"""Read named arrays from a numpy file: one row an entry of the first axis."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.errors import DataError


def read_npz(
    path: Path,
    columns: Callable[[Collection[str]], list[str]],
    require: Callable[[str, list[str]], object],
) -> dict[str, list[Any]]:
    """Return the wanted arrays of an ``.npz`` file as lists of rows.

    Rows of an array of one axis are Python's numbers and texts, others are arrays.

    Parameters
    ----------
    path : Path
    columns : callable
        Takes the names that are there and returns those to read.
    require : callable
        Takes a name and the names that are there, and raises if it is not one of them.

    Raises
    ------
    DataError
        If the file is damaged, an array holds Python objects (which numpy would run code for), or
        the arrays have different numbers of rows.
    """
    found: dict[str, list[Any]] = {}
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("one array without a name")
        with loaded as arrays:
            names = list(arrays.files)
            for name in columns(names):
                require(name, names)
                found[name] = _rows(path, name, arrays[name])
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, PermissionError):
            raise
        raise DataError(
            f"{path.name} is not a readable .npz file of plain numbers and texts "
            f"({type(error).__name__}); write it with numpy.savez, without arrays of objects"
        ) from None
    lengths = {name: len(rows) for name, rows in found.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{count} in '{name}'" for name, count in lengths.items())
        raise DataError(f"{path.name}: expected one row a record in every array, got {told}")
    return found


def _rows(path: Path, name: str, array: np.ndarray[Any, Any]) -> list[Any]:
    if array.ndim == 0:
        raise DataError(f"{path.name}: expected one row a record in '{name}', got one value alone")
    return array.tolist() if array.ndim == 1 else list(array)
