"""The label map: which labels exist, in which order."""

from __future__ import annotations

import re
import unicodedata

from client_app.data.table import Table
from fedapp.errors import ConfigError, DataError
from fedapp.text import clean

# The label map travels in the handshake. A text column named by mistake must not travel with it.
MOST_LABELS_FOUND = 100
LONGEST_LABEL_FOUND = 64


def resolve_label_map(table: Table, wanted: tuple[str, ...], *, may_find: bool = True) -> list[str]:
    """Return the labels in their order: as configured, as the source fixes them, or as found.

    Parameters
    ----------
    table : Table
    wanted : tuple of str
        Setting ``data.labels``; empty to use the source's or the sorted values found.
    may_find : bool
        Whether the values found may be used. The map leaves a deployed site, so there it must be
        known before anyone looks at the records.

    Raises
    ------
    ConfigError
        If the labels would have to be found, and may not be.
    DataError
        If the column does not look like labels, or fewer than two labels exist.
    """
    found = not wanted and not table.label_map
    if found and not may_find:
        raise ConfigError(
            "data.labels is empty: a deployed site does not send labels that it finds in its "
            "records, so name all labels in data.labels, in one order for all sites"
        )
    labels = list(wanted or table.label_map or _sorted(set(table.strata)))
    where = f"{table.name}, column '{table.label_column}'"
    if len(labels) < 2:
        raise DataError(
            f"{where}: expected at least 2 different labels, got {len(labels)}; "
            "check data.label-column or name all labels in data.labels"
        )
    if len(set(labels)) < len(labels):
        raise DataError("setting 'data.labels' names a label twice; name each once")
    if found and (len(labels) > MOST_LABELS_FOUND or max(map(len, labels)) > LONGEST_LABEL_FOUND):
        raise DataError(
            f"{where}: holds {len(labels)} different values, the longest of "
            f"{max(map(len, labels))} characters, which does not look like labels (expected at "
            f"most {MOST_LABELS_FOUND} of at most {LONGEST_LABEL_FOUND} characters); check "
            "data.label-column, or name the labels in data.labels"
        )
    if any(clean(label, len(label)) != label for label in labels):
        raise DataError(
            f"{where}: a label holds a line break or another character that cannot be seen; "
            "correct it, in data.labels too"
        )
    if found and len(set(map(_folded, labels))) < len(labels):
        raise DataError(
            f"{where}: two labels differ only in capitals, spaces or the Unicode form of a letter, "
            "which is most often a slip of the pen; correct them, or name the labels in data.labels"
        )
    return labels


def resolve_class_names(table: Table, wanted: tuple[str, ...]) -> list[str]:
    """Return the names of a mask's classes: as configured, or as the source fixes them.

    Raises
    ------
    ConfigError
        If nobody names them: that a class occurs in no mask of a site says nothing.
    DataError
        If there are fewer than two, or one is named twice.
    """
    if not wanted and not table.label_map:
        raise ConfigError(
            "data.labels is empty: name the classes of the masks in the order of their numbers, "
            "the background first, such as data.labels=background,tumour"
        )
    return resolve_label_map(table, wanted)


def not_in_map(label: str, table: Table, row: int, site: str | None) -> DataError:
    """Return the error of a label that ``data.labels`` does not name, without the label itself."""
    comma = " (it holds a comma, which no label named there can)" if "," in label else ""
    return DataError(
        f"{table.name}, column '{table.label_column}', row {row}: {described(label)} is not in "
        f"data.labels{comma}; correct the row, add the label there, or check data.label-column",
        site=site,
    )


def described(value: str) -> str:
    """Return the length of a value in words: the value itself may be a name or a patient number."""
    return f"a value of {len(value)} characters" if value else "nothing"


def _folded(label: str) -> str:
    """What two spellings of one label have in common."""
    plain = unicodedata.normalize("NFKC", label).casefold()
    return " ".join(unicodedata.normalize("NFKC", plain).split())


def _sorted(labels: set[str]) -> list[str]:
    if all(re.fullmatch(r"-?\d{1,18}", label) for label in labels):
        # Ties such as 1 and 01 must not depend on the process.
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)
