"""Where records come from: embedded sets and the user's own files, behind one `Table`."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from client_app.data.sources.heart import read_heart
from client_app.data.sources.sentiment import read_sentiment
from client_app.data.table import Table
from fedapp.config import DataSection
from fedapp.errors import ConfigError

EMBEDDED: dict[str, Callable[[], Table]] = {"heart": read_heart, "sentiment": read_sentiment}


def read_table(data: DataSection) -> Table:
    """Read all records of ``data.source``.

    Raises
    ------
    ConfigError
        For an embedded name that does not exist.
    DataError
        If the source is missing or malformed.
    """
    prefix, colon, name = data.source.partition(":")
    if prefix == "embedded" and colon:
        if name not in EMBEDDED:
            near = difflib.get_close_matches(name, EMBEDDED, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"unknown data source '{data.source}'; did you mean 'embedded:{near}'?"
            )
        return EMBEDDED[name]()
    from client_app.data.sources.files import read_files

    return read_files(data)
