"""A context, several texts of which one goes with it, and which one that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from client_app.data.schemas.base import Example, Schema, Where, join_parts
from client_app.data.schemas.values import kind, read_text
from fedapp.errors import DataError

FEWEST, MOST = 2, 16


class MultipleChoiceSchema(Schema):
    """Columns ``data.context-column``, ``data.choices-column`` and ``data.answer-column``.

    The choices are a list of 2 to 16 texts. Where a format has no lists, as CSV,
    ``data.choices-column`` names one column a choice, with commas between; a row with fewer choices
    leaves the last ones empty. The answer is the text of a choice, or its number from 0.

    Context and choices identify the record: in another order it is the same question.
    """

    settings = ("data.context-column", "data.choices-column", "data.answer-column")

    def required(self) -> list[str]:
        """The columns, and the stratum if one is named."""
        data = self.data
        return [
            data.context_column,
            *self._choice_columns(),
            data.answer_column,
            *self._stratum_columns(),
        ]

    def parse(self, values: Mapping[str, Any], where: Where, site: str | None) -> Example:
        """Read one row, see `Schema`."""
        data, columns = self.data, self._choice_columns()
        context = read_text(values[data.context_column], where(data.context_column), site)
        place = where(columns[0])
        given = values[columns[0]]
        if len(columns) > 1:
            place = where(", ".join(columns))
            given = [values[column] for column in columns]
            while given and kind(given[-1]) in ("nothing", "blanks"):
                given.pop()
        choices = _choices(given, place, site)
        answer = _answer(values[data.answer_column], choices, where(data.answer_column), site)
        return question(context, choices, answer, self._stratum(values, where, site))

    def _choice_columns(self) -> list[str]:
        return [name.strip() for name in self.data.choices_column.split(",")]

    @staticmethod
    def content(record: Mapping[str, Any]) -> str:
        """Context and choices."""
        return join_parts(record["context"], *sorted(map(_plain, record["choices"])))

    @classmethod
    def marks(cls, record: Mapping[str, Any], label_map: Sequence[str]) -> list[str]:
        """Context, choices and the right choice."""
        return [cls.content(record), record["choices"][record["label"]]]


def question(context: str, choices: Sequence[str], answer: int, stratum: str = "") -> Example:
    """Return the example of a question; ``answer`` is the number of the right choice from 0."""
    fields = {"context": context, "choices": list(choices), "label": answer}
    return Example(MultipleChoiceSchema.content(fields), stratum, fields)


def _choices(value: Any, where: str, site: str | None) -> list[str]:
    if not isinstance(value, list | tuple):
        hint = (
            "; where a format has no lists, name one column a choice in data.choices-column"
            if isinstance(value, str)
            else ""
        )
        raise DataError(
            f"{where}: expected a list of {FEWEST} to {MOST} texts, got {kind(value)}{hint}",
            site=site,
        )
    if not FEWEST <= len(value) <= MOST:
        raise DataError(
            f"{where}: expected {FEWEST} to {MOST} choices, got {len(value)}; "
            "correct or remove the row",
            site=site,
        )
    choices = [read_text(text, f"{where}, choice {n}", site) for n, text in enumerate(value)]
    first: dict[str, int] = {}
    for number, text in enumerate(choices):
        other = first.setdefault(_plain(text), number)
        if other != number:
            raise DataError(
                f"{where}: expected {len(choices)} different choices, got the same text in "
                f"choices {other} and {number}; correct or remove the row",
                site=site,
            )
    return choices


def _answer(value: Any, choices: Sequence[str], where: str, site: str | None) -> int:
    """Return the number of the right choice; of a text that is one of the choices, that one's."""
    texts = [_plain(text) for text in choices]
    if isinstance(value, str) and _plain(value) in texts:
        return texts.index(_plain(value))
    number = _whole(value)
    if number is not None and 0 <= number < len(choices):
        return number
    got = "another number" if number is not None else kind(value)
    raise DataError(
        f"{where}: expected the text of a choice or its number from 0 to {len(choices) - 1}, got "
        f"{f'another text of {len(value)} characters' if got == 'text' else got}; "
        "correct the row, or check data.answer-column",
        site=site,
    )


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):  # how CSV has a number
        text = value.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    return int(value) if isinstance(value, int | float) and value == value // 1 else None


def _plain(text: str) -> str:
    return " ".join(text.split())
