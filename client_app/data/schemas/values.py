"""Single values of a row, checked. Messages tell the kind of what came, never the value."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fedapp.errors import DataError


def read_text(value: Any, where: str, site: str | None, *, empty: bool = False) -> str:
    """Return a text as it is.

    Parameters
    ----------
    value
    where : str
        Source, column and row, for the message.
    site : str or None
    empty : bool
        Whether a text without a visible character will do.

    Raises
    ------
    DataError
        If it is none, or has no visible character, or holds half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise DataError(
            f"{where}: expected text, got {kind(value)}; correct or remove the row", site=site
        )
    if not empty and not value.strip():
        raise DataError(f"{where}: expected text, got nothing; fill or remove the row", site=site)
    if re.search("[\ud800-\udfff]", value):  # JSON can hold one, no tokenizer takes it
        raise DataError(
            f"{where}: half of a Unicode surrogate pair, which is not text; write the row again",
            site=site,
        )
    return value


def read_category(value: Any, where: str, site: str | None, what: str = "a value") -> str:
    """Return a label, or another value that groups records, as text.

    Raises
    ------
    DataError
        If it is neither a text nor a whole number nor true or false.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and value.is_integer():  # how a column of integers with gaps reads
        return str(int(value))
    if isinstance(value, str) and value.strip():
        return read_text(value, where, site).strip()
    raise DataError(
        f"{where}: expected {what} (text or a whole number), got {kind(value)}; "
        "correct or remove the row",
        site=site,
    )


def kind(value: Any) -> str:
    """Say what a value is without showing it."""
    if isinstance(value, np.ndarray):
        return "an array"
    if value is None or value != value or value == "":
        return "nothing"
    if isinstance(value, str):
        return "blanks" if not value.strip() else "text"
    return f"a {type(value).__name__}"
