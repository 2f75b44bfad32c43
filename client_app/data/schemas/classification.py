"""One label for a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from client_app.data.schemas.base import Example, Schema, Where
from client_app.data.schemas.values import read_category, read_text


class ClassificationSchema(Schema):
    """Columns ``data.text-column`` and ``data.label-column``; the text identifies the record."""

    labelled = True
    settings = ("data.text-column", "data.label-column")

    def required(self) -> list[str]:
        """The two columns."""
        return [self.data.text_column, self.data.label_column]

    def parse(self, values: Mapping[str, Any], where: Where, site: str | None) -> Example:
        """Read one row, see `Schema`."""
        column, label_column = self.required()
        text = read_text(values[column], where(column), site)
        label = read_category(values[label_column], where(label_column), site, "a label")
        return Example(text, label, {"text": text})

    @staticmethod
    def content(record: Mapping[str, Any]) -> str:
        """The text: with another label it is the same record."""
        return str(record["text"])

    @classmethod
    def marks(cls, record: Mapping[str, Any], label_map: Sequence[str]) -> list[str]:
        """Text and label."""
        return [record["text"], label_map[record["label"]]]


def labelled_texts(texts: Iterable[str], labels: Iterable[str]) -> list[Example]:
    """Return the examples of a source that has texts and labels."""
    return [Example(text, label, {"text": text}) for text, label in zip(texts, labels, strict=True)]
