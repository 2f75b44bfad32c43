"""Read named columns from CSV, JSONL, Parquet, or a folder that `datasets` saved.

Messages never hold the content of a record. Nor do they hold the names of the columns that are
there: the first line of a file without a header is a patient. Those go to this machine's log.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedapp.errors import DataError

Columns = dict[str, list[Any]]

log = logging.getLogger(__name__)


def read_columns(path: Path, columns: Sequence[str]) -> Columns:
    """Return the named columns of a file or folder, each of the same length.

    Raises
    ------
    DataError
        If the path is missing, of an unknown kind, malformed, not UTF-8, or lacks a column.
    """
    if path.is_dir():
        return _read_datasets_folder(path, columns)
    if not path.exists():
        raise DataError(
            f"data file not found: {path.name}; check data.source (an absolute path is safe)"
        )
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path.name}: expected a file ending in {', '.join(READERS)} or a folder saved by "
            f"`datasets`, got '{path.suffix}'; convert the file or rename it"
        )
    try:
        return reader(path, columns)
    except PermissionError:
        raise DataError(f"{path.name} cannot be read: permission denied; change its mode") from None


def _read_csv(path: Path, columns: Sequence[str]) -> Columns:
    csv.field_size_limit(2**31 - 1)  # the default of 128 kB is shorter than a long discharge letter
    text = _decode(path)
    delimiter = _delimiter(text, columns)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    records = _csv_records(path, lines)
    header = next(records, [])
    places = [_require(path, name, header) for name in columns]
    found: Columns = {name: [] for name in columns}
    for record in records:
        if len(record) != len(header):
            raise DataError(
                f"{path.name}, line {lines.line_num}: expected {len(header)} fields as in the "
                f"header, got {len(record)}; put fields that hold the separator {delimiter!r} or a "
                "line break in quotes"
            )
        for name, place in zip(columns, places, strict=True):
            found[name].append(record[place])
    return found


def _delimiter(text: str, columns: Sequence[str]) -> str:
    """Return the separator under which the header names the columns; spreadsheets use all three."""
    header = text.partition("\n")[0].rstrip("\r")
    for delimiter in ",;\t":
        if set(columns) <= set(next(csv.reader([header], delimiter=delimiter), [])):
            return delimiter
    return ","


def _csv_records(path: Path, lines: Any) -> Iterator[list[str]]:
    try:
        yield from (record for record in lines if record)
    except csv.Error:
        raise DataError(
            f"{path.name}, line {lines.line_num}: the quotes of a field do not match; "
            'write a quote inside a field as ""'
        ) from None


def _read_jsonl(path: Path, columns: Sequence[str]) -> Columns:
    found: Columns = {name: [] for name in columns}
    for number, line in enumerate(_decode(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # bad syntax, an absurd number, absurd nesting
            raise DataError(
                f"{path.name}, line {number}: not JSON; expected one complete object a line"
            ) from None
        if not isinstance(record, dict):
            raise DataError(
                f"{path.name}, line {number}: expected a JSON object, got {type(record).__name__}"
            )
        for name in columns:
            if name not in record:
                _require(path, name, list(record), f", line {number}")
            found[name].append(record[name])
    return found


def _read_parquet(path: Path, columns: Sequence[str]) -> Columns:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        names = pq.read_schema(path).names
        for name in columns:
            _require(path, name, names)
        table = pq.ParquetFile(path).read(columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        raise DataError(
            f"{path.name} is not a readable Parquet file ({type(error).__name__}); write it again"
        ) from None
    return {name: table.column(name).to_pylist() for name in columns}


def _read_datasets_folder(path: Path, columns: Sequence[str]) -> Columns:
    import pyarrow as pa
    from datasets import ClassLabel, Dataset, DatasetDict, load_from_disk

    try:
        loaded = load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise DataError(
            f"{path.name} is not a folder written by `datasets` save_to_disk "
            f"({type(error).__name__}); expected that or a file ending in {', '.join(READERS)}"
        ) from None
    # A saved DatasetDict has splits of its own; ours are drawn per site, so they are joined.
    parts: list[Dataset] = list(loaded.values()) if isinstance(loaded, DatasetDict) else [loaded]
    found: Columns = {name: [] for name in columns}
    for part in parts:
        for name in columns:
            _require(path, name, part.column_names)
            values, feature = list(part[name]), part.features[name]
            if isinstance(feature, ClassLabel) and feature.names:
                values = [_class_name(feature.names, value) for value in values]
            found[name] += values
    return found


def _class_name(names: list[str], value: Any) -> Any:
    """Name of a class number; -1 is how `datasets` marks an unknown class."""
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


READERS: dict[str, Callable[[Path, Sequence[str]], Columns]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def _decode(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path.name}, line {line}: expected UTF-8 text, byte {error.start} is in "
            "another encoding; save it as UTF-8, for instance with `iconv -f WINDOWS-1252 -t UTF-8`"
        ) from None


def _require(path: Path, name: str, names: Sequence[str], where: str = "") -> int:
    """Return the place of a column, or raise."""
    if names.count(name) == 1:
        return names.index(name)
    if name in names:
        raise DataError(
            f"{path.name}: the column '{name}' occurs {names.count(name)} times; keep one"
        )
    log.warning("%s has the columns %s", path, ", ".join(map(repr, names)) or "of no name")
    got = f"got {len(names)} columns of other names" if names else "got no columns"
    if any(_plain(each) == _plain(name) for each in names):
        got += ", one of which differs only in capitals, blanks or punctuation"
    raise DataError(
        f"{path.name}{where}: expected a column '{name}', {got}; "
        "name your columns in data.text-column, data.label-column and data.site-column"
    )


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))
