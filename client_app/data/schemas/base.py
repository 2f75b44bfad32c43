"""The schema seam: which columns a task reads, and how a row becomes an `Example`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client_app.data.schemas.values import read_category
from fedapp.config import DataSection

Record = dict[str, Any]
Where = Callable[[str], str]


@dataclass(frozen=True)
class Example:
    """One row of a source, read.

    Attributes
    ----------
    content : str
        Identifies the record: two with the same content are one record twice.
    stratum : str
        What ``data.partition = dirichlet`` and the splits go by; the label for classification.
    fields : dict
        The record as the task's ``prepare`` gets it. A classification label is added later, as an
        index into the label map.
    """

    content: str
    stratum: str
    fields: Record


class Schema(ABC):
    """The columns of one task, and what a row of them must hold.

    Parameters
    ----------
    data : DataSection
        Names the columns.
    """

    labelled = False
    """Whether ``stratum`` is a label, so that there is a label map."""
    names_classes = False
    """Whether there is a label map though no record has one label: the classes of a mask."""
    settings: tuple[str, ...]
    """The settings that name the columns, for messages."""

    def __init__(self, data: DataSection) -> None:
        self.data = data

    @abstractmethod
    def required(self) -> list[str]:
        """Columns that the source must have."""

    def optional(self) -> list[str]:
        """Columns that are read if the source has them."""
        return []

    def columns(self, names: Collection[str]) -> list[str]:
        """Return the columns to read of a source that has those of ``names``."""
        return [*self.required(), *(name for name in self.optional() if name in names)]

    @abstractmethod
    def parse(self, values: Mapping[str, Any], where: Where, site: str | None) -> Example:
        """Read one row.

        Parameters
        ----------
        values : mapping
            What the row has in each column that is read, by the column's name.
        where : callable
            Turns the name of a column into the place, for messages.
        site : str or None
            Site of the row, for messages.

        Raises
        ------
        DataError
            Naming row and column, what was expected and what kind of thing came; never content.
        """

    @staticmethod
    @abstractmethod
    def content(record: Mapping[str, Any]) -> str:
        """Return what identifies a record, as in `Example`."""

    @classmethod
    def check(
        cls, examples: Sequence[Example], label_map: Sequence[str]
    ) -> Iterator[tuple[int, str]]:
        """Find what a row alone does not show: beside the others, or beside the label map.

        Parameters
        ----------
        examples : sequence of Example
            All of a source, at least one.
        label_map : sequence of str

        Yields
        ------
        (int, str)
            Index of a row, and what is wrong with it as a sentence.
        """
        yield from ()

    @classmethod
    def marks(cls, record: Mapping[str, Any], label_map: Sequence[str]) -> list[str]:
        """Return everything a record says, as texts, for the digest of the site's data."""
        return [cls.content(record)]

    def _stratum_columns(self) -> list[str]:
        return [self.data.stratum_column] if self.data.stratum_column else []

    def _stratum(self, values: Mapping[str, Any], where: Where, site: str | None) -> str:
        column = self.data.stratum_column
        return read_category(values[column], where(column), site) if column else ""


def join_parts(*parts: str) -> str:
    """Join the texts of a record to its content; spacing does not matter, their order does."""
    return "\0".join(" ".join(part.split()) for part in parts)
