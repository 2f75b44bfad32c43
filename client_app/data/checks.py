"""Checks that stand between a data source and a training run.

Messages name columns, rows and numbers of records. They never hold the content of a record, nor a
label, nor a value of the site column, because they may leave the building.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

from client_app.data.schemas import schema_class
from client_app.data.site_data import SiteData
from client_app.data.table import Table
from fedapp.errors import DataError


def content_digest(text: str) -> bytes:
    """SHA-256 of a text; spacing and Unicode composition do not matter."""
    normal = " ".join(unicodedata.normalize("NFC", text).split())
    return hashlib.sha256(normal.encode("utf-8", "surrogatepass")).digest()


def find_duplicates(texts: Sequence[str]) -> dict[int, int]:
    """Map the index of every repeated content to the index of its first occurrence."""
    first: dict[bytes, int] = {}
    repeated: dict[int, int] = {}
    for index, text in enumerate(texts):
        earlier = first.setdefault(content_digest(text), index)
        if earlier != index:
            repeated[index] = earlier
    return repeated


def check_disjoint(groups: Mapping[str, Iterable[str]], kind: str, site: str | None = None) -> None:
    """Check by content that no text is in two groups.

    Parameters
    ----------
    groups : mapping of str to iterable of str
        Texts by site or by split.
    kind : str
        ``"sites"`` or ``"splits"``, for the message.
    site : str, optional
        The site whose splits these are.

    Raises
    ------
    DataError
        With the number of shared records and, of splits, the two names.
    """
    owner: dict[bytes, str] = {}
    shared: dict[tuple[str, str], int] = {}
    for group, texts in groups.items():
        for digest in {content_digest(text) for text in texts}:
            other = owner.setdefault(digest, group)
            if other != group:
                shared[(other, group)] = shared.get((other, group), 0) + 1
    if shared:
        (one, two), count = next(iter(shared.items()))
        where = f"in both '{one}' and '{two}'" if kind == "splits" else "in two of them"
        raise DataError(
            f"expected that no record is in two {kind}, got {count} {where}; "
            "remove the repeated records or set data.duplicates to drop",
            site=site,
        )


def check_site(data: SiteData, *, one_class: str) -> None:
    """Check that a site can train and be measured.

    Parameters
    ----------
    data : SiteData
    one_class : {"refuse", "allow"}
        Setting ``data.one-class``.

    Raises
    ------
    DataError
        For an empty split, a record in two splits, or, where there are labels, a training split
        with one of them.
    """
    total = sum(map(len, data.splits.values()))
    for name, records in data.splits.items():
        if not records:
            raise DataError(
                f"the {name} split is empty: expected at least 1 record, got 0 of the site's "
                f"{total}; add records or change data.validation-fraction and data.test-fraction",
                site=data.site,
            )
    schema = schema_class(data.task)
    content = schema.content
    check_disjoint(
        {name: list(map(content, records)) for name, records in data.splits.items()},
        "splits",
        data.site,
    )
    if not schema.labelled or one_class == "allow":
        return
    if len({record["label"] for record in data.splits["train"]}) < 2:
        raise DataError(
            "the training records all carry one label: expected at least 2 labels; leave the site "
            "out, or set data.one-class to allow",
            site=data.site,
        )


def check_held_out(table: Table, held_out: Collection[str]) -> None:
    """Check that ``federation.held-out`` does not try to name a site with a comma in its name.

    Parameters
    ----------
    table : Table
    held_out : collection of str
        The setting, which was split at its commas.

    Raises
    ------
    DataError
        Naming the row of the site.
    """
    for row, site in enumerate(table.sites or (), start=1):
        parts = {part.strip() for part in site.split(",")}
        if len(parts) > 1 and parts <= set(held_out):
            raise DataError(
                f"{table.name}, column '{table.site_column}', row {row}: the name of this site "
                "holds a comma, so federation.held-out cannot name it; write it without one"
            )
