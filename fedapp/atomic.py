"""Files that are either the old or the new version, never a half-written one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_bytes(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` atomically and durably.

    The file is written beside its destination, flushed to disk and renamed over it. If anything
    fails the previous content stays, and the temporary file is removed.

    Parameters
    ----------
    path : Path
    data : bytes
    mode : int
        Who may read the file: by default everyone.

    Raises
    ------
    OSError
        If the disk is full or the folder is not writable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path, data, mode) as temporary:
        os.replace(temporary, path)
    sync_folder(path.parent)


def create_bytes(path: Path, data: bytes, mode: int) -> None:
    """Write a new file atomically and durably, see `write_bytes`; never one in place of another.

    Raises
    ------
    FileExistsError
        If there is a file, which stays as it is.
    OSError
        If the disk is full or the folder is not writable.
    """
    with _beside(path, data, mode) as temporary:
        os.link(temporary, path)  # unlike a rename it fails if there is one
    sync_folder(path.parent)


@contextmanager
def _beside(path: Path, data: bytes, mode: int) -> Iterator[str]:
    """Write a temporary file beside ``path``, which is gone at the end unless it was renamed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode)
        yield temporary
    finally:
        Path(temporary).unlink(missing_ok=True)


def overwrite(path: Path, data: bytes) -> None:
    """Write ``data`` into the file that is there, for a disk with no room for another.

    Not atomic: a power cut may leave a mixture. A short file needs no room that it has not already.

    Raises
    ------
    OSError
        If there is no such file, or it would grow and cannot.
    """
    with path.open("r+b") as stream:
        stream.write(data)
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, see `write_bytes`."""
    write_bytes(path, text.encode())


def sync_folder(folder: Path) -> None:
    """Flush a folder entry, so that a rename survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
