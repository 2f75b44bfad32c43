"""The user's own records: named columns of a file become a `Table`."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from client_app.data.labels import described
from client_app.data.sources.formats import read_columns
from client_app.data.table import Table
from fedapp.config import DataSection
from fedapp.errors import DataError

LONGEST_SITE = 100

log = logging.getLogger(__name__)


def read_files(data: DataSection) -> Table:
    """Read ``data.source`` with the columns named in the settings.

    The site column is only needed, and only read, for ``data.partition = natural``.

    Raises
    ------
    DataError
        If the source cannot be read or a value is not usable; the row is named, never shown. Of
        the path it holds the last part, because it may leave the site; the rest is in the log.
    """
    path = Path(data.source).expanduser().absolute()
    try:
        return _read(path, data)
    except DataError:
        log.warning("the records are in %s", path)
        raise


def _read(path: Path, data: DataSection) -> Table:
    natural = data.partition == "natural"
    wanted = dict.fromkeys(
        [data.text_column, data.label_column, *([data.site_column] if natural else [])]
    )
    columns = read_columns(path, list(wanted))
    sites = None
    if natural:
        sites = [
            _site(value, f"{path.name}, column '{data.site_column}', row {row}")
            for row, value in enumerate(columns[data.site_column], start=1)
        ]
    texts, labels = [], []
    for row, (text, label) in enumerate(
        zip(columns[data.text_column], columns[data.label_column], strict=True), start=1
    ):
        site = sites[row - 1] if sites else None
        texts.append(_text(text, f"{path.name}, column '{data.text_column}', row {row}", site))
        labels.append(_label(label, f"{path.name}, column '{data.label_column}', row {row}", site))
    return Table(path.name, texts, labels, sites, data.label_column, data.site_column)


def _text(value: Any, where: str, site: str | None) -> str:
    if not isinstance(value, str):
        raise DataError(
            f"{where}: expected text, got {_kind(value)}; correct or remove the row", site=site
        )
    if not value.strip():
        raise DataError(f"{where}: expected text, got nothing; fill or remove the row", site=site)
    if re.search("[\ud800-\udfff]", value):  # JSON can hold one, no tokenizer takes it
        raise DataError(
            f"{where}: half of a Unicode surrogate pair, which is not text; write the row again",
            site=site,
        )
    return value


def _label(value: Any, where: str, site: str | None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and value.is_integer():  # how a column of integers with gaps reads
        return str(int(value))
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise DataError(
        f"{where}: expected a label (text or a whole number), got {_kind(value)}; "
        "correct or remove the row",
        site=site,
    )


def _site(value: Any, where: str) -> str:
    name = str(value).strip() if isinstance(value, str | int) else ""
    if not name or len(name) > LONGEST_SITE or not name.isprintable():
        got = described(name) if isinstance(value, str | int) else _kind(value)
        raise DataError(
            f"{where}: expected the name of a site (1 to {LONGEST_SITE} printable characters), "
            f"got {got}; correct the row, check data.site-column, or set data.partition"
        )
    return name


def _kind(value: Any) -> str:
    if value is None or value != value or value == "":
        return "nothing"
    if isinstance(value, str):
        return "blanks" if not value.strip() else "text"
    return f"a {type(value).__name__}"
