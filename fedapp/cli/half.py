"""Functions of the site's half of the package, which the coordinator's installation lacks."""

from __future__ import annotations

from typing import Any

from fedapp.errors import ConfigError
from fedapp.registry import load_half


def half(reference: str) -> Any:
    """Return ``module:function`` of the site's half.

    Raises
    ------
    ConfigError
        If what it needs is not installed.
    """
    try:
        return load_half(reference)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"this needs {error.name}; run it where the site's half is installed "
            "(`pip install 'fedapp[site]'`)"
        ) from None
