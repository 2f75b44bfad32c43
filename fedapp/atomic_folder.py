"""Folders that are either the old or the new version, never a half-written one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from fedapp.atomic import sync_folder


def write_folder(target: Path, fill: Callable[[Path], None], *, replace: bool = True) -> None:
    """Fill a temporary folder beside ``target``, flush it to disk and rename it into place.

    Its files are readable by everyone, as those of `fedapp.atomic` are.

    A folder that is already there is replaced as a whole. If anything fails it stays, and the
    temporary folder is removed. (Two renames are needed to replace a folder; a power cut between
    them leaves the old one as ``.NAME.old-*`` beside the target.)

    Parameters
    ----------
    target : Path
    fill : callable
        Takes the temporary folder and writes into it.
    replace : bool
        If false, a folder that appears at ``target`` meanwhile stays and the new one is dropped:
        for content that several processes may build at once and that never changes.

    Raises
    ------
    OSError
        If the disk is full or the parent folder is not writable.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        fill(temporary)
        _flush(temporary)
        temporary.chmod(0o755)  # mkdtemp makes it private
        _rename(temporary, target, replace)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(target.parent)


def _rename(temporary: Path, target: Path, replace: bool) -> None:
    if not replace or not target.exists():
        try:
            temporary.rename(target)
        except OSError:
            if replace or not target.is_dir():
                raise
        return
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old-"))
    target.rename(aside)
    try:
        temporary.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside)


def _flush(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)  # safetensors writes for the owner alone
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
    sync_folder(folder)
