"""What a site holds: its records, dealt to the three splits."""

from __future__ import annotations

from dataclasses import dataclass, field

from client_app.data.schemas.base import Record

__all__ = ["SPLITS", "Record", "SiteData"]

SPLITS = ("train", "validation", "test")


@dataclass
class SiteData:
    """The records of one site.

    Attributes
    ----------
    site : str
        Name of the site.
    label_map : list of str
        Name of every label; a record's ``label`` is an index into it. Empty for a task without.
    splits : dict of str to list of Record
        Keys ``"train"``, ``"validation"``, ``"test"``; none is empty.
    notes : list of str
        What an operator should know, such as dropped duplicates; counts only, never content.
    task : str
        Value of ``model.task`` that the records are for; its schema says what they hold.
    """

    site: str
    label_map: list[str]
    splits: dict[str, list[Record]]
    notes: list[str] = field(default_factory=list)
    task: str = "sequence-classification"
