"""Paths: as somebody wrote them, and made of names that no path may hold."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from fedapp.errors import ConfigError


def user_path(path: str | Path) -> Path:
    """Return ``path`` with a leading ``~`` or ``~NAME`` replaced by that account's home folder.

    Raises
    ------
    ConfigError
        If there is no such account, or the path holds a NUL character.
    """
    if "\0" in str(path):
        raise ConfigError(f"the path {str(path)!r} holds a NUL character; correct it")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        account = Path(path).parts[0]
        raise ConfigError(
            f"the path '{path}' begins with '{account}', but no account of that name has a home "
            "folder here; write the whole path, or ./~... for a folder that is called so"
        ) from None


def site_folder(root: Path, site: str) -> Path:
    """Return a site's folder: its name is legible where it can be, and no other site's."""
    legible = re.sub(r"[^A-Za-z0-9-]+", "-", site)[:40].strip("-")
    return root / f"{legible}-{hashlib.sha256(site.encode()).hexdigest()[:12]}"
