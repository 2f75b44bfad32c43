"""Records as every source delivers them, before they are dealt to sites."""

from __future__ import annotations

from dataclasses import dataclass, field

from client_app.data.schemas.base import Example


@dataclass(frozen=True)
class Table:
    """Examples and their sites, of equal length; record i is row i + 1 in messages.

    Attributes
    ----------
    name : str
        The source, as it appears in messages.
    examples : list of Example
    sites : list of str or None
        Natural site of each record, if the source knows it.
    label_column, site_column : str
        What the columns are called, for messages.
    label_map : tuple of str
        Labels in their order where the source fixes it; empty: the values found, sorted.
    notes : list of str
        Remarks for every site.
    """

    name: str
    examples: list[Example]
    sites: list[str] | None
    label_column: str = "label"
    site_column: str = "site"
    label_map: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def contents(self) -> list[str]:
        """What identifies each record."""
        return [example.content for example in self.examples]

    @property
    def strata(self) -> list[str]:
        """What each record is dealt by: its label, for classification."""
        return [example.stratum for example in self.examples]
