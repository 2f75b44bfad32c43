"""Read named columns from CSV, JSONL, Parquet, numpy's npz, or a folder that `datasets` saved.

Messages never hold the content of a record. Nor do they hold the names of the columns that are
there: the first line of a file without a header is a patient. Those go to this machine's log.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client_app.data.sources.arrays import read_npz
from fedapp.errors import DataError

Columns = dict[str, list[Any]]
Choose = Callable[[Collection[str]], list[str]]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Wanted:
    """Which columns to read of a source with these columns, and the settings that name them."""

    columns: Choose
    settings: Sequence[str]
    without: Mapping[str, str] = field(default_factory=dict)
    """What else can be done where a column is not there, by its name."""


def read_columns(
    path: Path,
    columns: Choose,
    settings: Sequence[str],
    without: Mapping[str, str] | None = None,
) -> Columns:
    """Return the wanted columns of a file or folder, each of the same length.

    Parameters
    ----------
    path : Path
    columns : callable
        Takes the names of the columns that are there, of JSONL those of the first object, and
        returns the names of those to read.
    settings : sequence of str
        The settings that name them, for messages.
    without : mapping of str to str, optional
        What else can be done where a column is not there, by its name.

    Raises
    ------
    DataError
        If the path is missing, of an unknown kind, malformed, not UTF-8, or lacks a column.
    """
    wanted = _Wanted(columns, settings, without or {})
    if path.is_dir():
        return _read_datasets_folder(path, wanted)
    if not path.exists():
        raise DataError(
            f"data file not found: {path.name}; check data.source (an absolute path is safe)"
        )
    if not path.is_file():  # reading a pipe or a device may never end
        raise DataError(
            f"{path.name} is neither a file nor a folder; expected one, not a pipe or a device"
        )
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path.name}: expected a file ending in {', '.join(READERS)} or a folder saved by "
            f"`datasets`, got '{path.suffix}'; convert the file or rename it"
        )
    try:
        return reader(path, wanted)
    except PermissionError:
        raise DataError(f"{path.name} cannot be read: permission denied; change its mode") from None


def _read_csv(path: Path, wanted: _Wanted) -> Columns:
    csv.field_size_limit(2**31 - 1)  # the default of 128 kB is shorter than a long discharge letter
    text = _decode(path)
    delimiter = _delimiter(text, wanted)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    records = _csv_records(path, lines)
    header = next(records, [])
    columns = wanted.columns(header)
    places = [_require(path, name, header, wanted) for name in columns]
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


def _delimiter(text: str, wanted: _Wanted) -> str:
    """Return the separator under which the header names the columns; spreadsheets use all three."""
    header = re.split("[\r\n]", text, maxsplit=1)[0]
    for delimiter in ",;\t":
        names = next(csv.reader([header], delimiter=delimiter), [])
        if set(wanted.columns(names)) <= set(names):
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


def _read_jsonl(path: Path, wanted: _Wanted) -> Columns:
    found: Columns = {}
    for number, line in enumerate(_decode(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_once)
        except _Twice:
            raise DataError(
                f"{path.name}, line {number}: a key occurs twice in one object, so that it is not "
                "known which value counts; keep one"
            ) from None
        except (ValueError, RecursionError):  # bad syntax, an absurd number, absurd nesting
            raise DataError(
                f"{path.name}, line {number}: not JSON; expected one complete object a line"
            ) from None
        if not isinstance(record, dict):
            raise DataError(
                f"{path.name}, line {number}: expected a JSON object, got {type(record).__name__}"
            )
        if not found:
            found = {name: [] for name in wanted.columns(record)}
        for name, values in found.items():
            if name not in record:
                _require(path, name, list(record), wanted, f", line {number}")
            values.append(record[name])
    return found or {name: [] for name in wanted.columns(())}


class _Twice(Exception):
    """A JSON object has two values of one key; most readers silently take the last."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _read_parquet(path: Path, wanted: _Wanted) -> Columns:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    try:
        names = pq.read_schema(path).names
        columns = wanted.columns(names)
        for name in columns:
            _require(path, name, names, wanted)
        table = pq.ParquetFile(path).read(columns=columns)
        return {name: table.column(name).to_pylist() for name in columns}
    except UnicodeDecodeError:
        raise _not_utf8(path) from None
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        raise DataError(
            f"{path.name} is not a readable Parquet file ({type(error).__name__}); write it again"
        ) from None


def _read_datasets_folder(path: Path, wanted: _Wanted) -> Columns:
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
    columns = wanted.columns(parts[0].column_names if parts else ())
    found: Columns = {name: [] for name in columns}
    for part in parts:
        for name in columns:
            _require(path, name, part.column_names, wanted)
            try:
                values, feature = list(part[name]), part.features[name]
            except UnicodeDecodeError:
                raise _not_utf8(path) from None
            except OSError as error:
                raise DataError(
                    f"{path.name}, column '{name}': a picture cannot be read "
                    f"({type(error).__name__}); write the folder again without it"
                ) from None
            if isinstance(feature, ClassLabel) and feature.names:
                values = [_class_name(feature.names, value) for value in values]
            found[name] += values
    return found


def _read_npz(path: Path, wanted: _Wanted) -> Columns:
    return read_npz(path, wanted.columns, lambda name, names: _require(path, name, names, wanted))


def _class_name(names: list[str], value: Any) -> Any:
    """Name of a class number; -1 is how `datasets` marks an unknown class."""
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


READERS: dict[str, Callable[[Path, _Wanted], Columns]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".npz": _read_npz,
}


def _decode(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        encoding = "UTF-16" if content[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "WINDOWS-1252"
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path.name}, line {line}: expected UTF-8 text, byte {error.start} is in "
            f"another encoding; save it as UTF-8, for instance with `iconv -f {encoding} -t UTF-8`"
        ) from None


def _not_utf8(path: Path) -> DataError:
    return DataError(
        f"{path.name}: a text column holds bytes that are not UTF-8; write the file again as UTF-8"
    )


def _require(path: Path, name: str, names: Sequence[str], wanted: _Wanted, where: str = "") -> int:
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
    *settings, last = wanted.settings
    without = wanted.without.get(name)
    raise DataError(
        f"{path.name}{where}: expected a column '{name}', {got}; "
        f"name your columns in {', '.join(settings)} and {last}"
        + (f", or {without}" if without else "")
    )


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))
