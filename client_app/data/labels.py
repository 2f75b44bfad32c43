"""The label map: which labels exist, in which order."""

from __future__ import annotations

import re

from client_app.data.table import Table
from fedapp.errors import DataError

# The label map travels in the handshake. A text column named by mistake must not travel with it.
MOST_LABELS_FOUND = 100
LONGEST_LABEL_FOUND = 64


def resolve_label_map(table: Table, wanted: tuple[str, ...]) -> list[str]:
    """Return the labels in their order: as configured, as the source fixes them, or as found.

    Parameters
    ----------
    table : Table
    wanted : tuple of str
        Setting ``data.labels``; empty to use the source's or the sorted values found.

    Raises
    ------
    DataError
        If the column does not look like labels, or fewer than two labels exist.
    """
    labels = list(wanted or table.label_map or _sorted(set(table.labels)))
    where = f"{table.name}, column '{table.label_column}'"
    if len(labels) < 2:
        raise DataError(
            f"{where}: expected at least 2 different labels, got {len(labels)}; "
            "check data.label-column or name all labels in data.labels"
        )
    if len(set(labels)) < len(labels):
        raise DataError("setting 'data.labels' names a label twice; name each once")
    found = not wanted and not table.label_map
    if found and (len(labels) > MOST_LABELS_FOUND or max(map(len, labels)) > LONGEST_LABEL_FOUND):
        raise DataError(
            f"{where}: holds {len(labels)} different values, the longest of "
            f"{max(map(len, labels))} characters, which does not look like labels (expected at "
            f"most {MOST_LABELS_FOUND} of at most {LONGEST_LABEL_FOUND} characters); check "
            "data.label-column, or name the labels in data.labels"
        )
    return labels


def label_index(label: str, label_map: list[str], table: Table, row: int, site: str) -> int:
    """Return the index of ``label`` or raise a DataError naming site, column and row."""
    try:
        return label_map.index(label)
    except ValueError:
        raise DataError(
            f"{table.name}, column '{table.label_column}', row {row}: expected one of "
            f"{_listed(label_map)}, got {shown(label)}; correct the row or add the label to "
            "data.labels",
            site=site,
        ) from None


def shown(value: str) -> str:
    """Return a short code in quotes, or only the length of anything that could be content."""
    if not value:
        return "nothing"
    if re.fullmatch(r"[\w.+-]{1,20}", value):
        return f"'{value}'"
    return f"a value of {len(value)} characters"


def _listed(labels: list[str]) -> str:
    head = ", ".join(f"'{label}'" for label in labels[:10])
    return head if len(labels) <= 10 else f"{head} and {len(labels) - 10} more"


def _sorted(labels: set[str]) -> list[str]:
    if all(re.fullmatch(r"-?\d+", label) for label in labels):
        return sorted(labels, key=int)
    return sorted(labels)
