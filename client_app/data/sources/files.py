"""The user's own records: named columns of a file become a `Table`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from client_app.data.labels import described
from client_app.data.schemas import Schema
from client_app.data.schemas.values import kind
from client_app.data.sources.formats import read_columns
from client_app.data.table import Table
from fedapp.config import DataSection
from fedapp.errors import DataError
from fedapp.paths import user_path

LONGEST_SITE = 100

log = logging.getLogger(__name__)


def read_files(data: DataSection, schema: Schema) -> Table:
    """Read ``data.source`` with the columns named in the settings.

    The site column is only needed, and only read, for ``data.partition = natural`` and ``groups``.

    Raises
    ------
    ConfigError
        If the path begins with the name of no account.
    DataError
        If the source cannot be read or a value is not usable; the row is named, never shown. Of
        the path it holds the last part, because it may leave the site; the rest is in the log.
    """
    path = user_path(data.source).absolute()
    try:
        return _read(path, data, schema)
    except DataError:
        log.warning("the records are in %s", path)
        raise


def _read(path: Path, data: DataSection, schema: Schema) -> Table:
    natural = data.partition in ("natural", "groups")

    def wanted(names: Collection[str]) -> list[str]:
        return list(
            dict.fromkeys([*schema.columns(names), *([data.site_column] if natural else [])])
        )

    settings = [*schema.settings, *(["data.stratum-column"] if data.stratum_column else [])]
    alone = {
        data.site_column: "set data.partition to iid or dirichlet, which deal records to sites"
    }
    columns = read_columns(path, wanted, [*settings, "data.site-column"], alone if natural else {})

    def place(column: str, row: int) -> str:
        return f"{path.name}, column '{column}', row {row}"

    sites = None
    if natural:
        sites = [
            _site(value, place(data.site_column, row))
            for row, value in enumerate(columns[data.site_column], start=1)
        ]
    examples = [
        schema.parse(
            dict(zip(columns, values, strict=True)),
            functools.partial(place, row=row),
            sites[row - 1] if sites else None,
        )
        for row, values in enumerate(zip(*columns.values(), strict=True), start=1)
    ]
    return Table(path.name, examples, sites, data.label_column, data.site_column)


def _site(value: Any, where: str) -> str:
    name = str(value).strip() if isinstance(value, str | int) else ""
    if not name or len(name) > LONGEST_SITE or not name.isprintable():
        got = described(name) if isinstance(value, str | int) else kind(value)
        raise DataError(
            f"{where}: expected the name of a site (1 to {LONGEST_SITE} printable characters), "
            f"got {got}; correct the row, check data.site-column, or set data.partition"
        )
    return name
