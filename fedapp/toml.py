"""Write Flower's scalars as TOML; reading is `tomllib`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fedapp.config import Scalar


def literal(value: Scalar) -> str:
    """Return ``value`` as a TOML literal that reads back as the same value and type."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A JSON string is a TOML basic string, apart from DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def lines(flat: Mapping[str, Scalar]) -> str:
    """Return one ``key = literal`` line for every entry."""
    return "".join(f"{key} = {literal(value)}\n" for key, value in flat.items())
