"""The folder for files that fedapp downloads or derives and can always rebuild."""

from __future__ import annotations

from pathlib import Path

from fedapp.errors import ConfigError


def cache_folder() -> Path:
    """Return ``~/.cache/fedapp``, created if absent.

    Raises
    ------
    ConfigError
        If the folder cannot be created.
    """
    folder = Path.home() / ".cache" / "fedapp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the cache folder ~/.cache/fedapp cannot be created ({error.strerror}); "
            "give this account a writable home folder"
        ) from None
    return folder
