"""A conversation and the response that a language model is to learn."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from client_app.data.schemas.base import Example, Schema, Where, join_parts
from client_app.data.schemas.values import kind, read_text
from fedapp.errors import DataError

ROLES = ("system", "user", "assistant")


class InstructionSchema(Schema):
    """Either a prompt and a response, or the messages of a chat that the assistant ends.

    A source that has the columns ``data.prompt-column`` and ``data.response-column`` is read by
    them; one that lacks either and has ``data.messages-column`` by that one. A prompt and its
    response are what a chat of one message by the user and one by the assistant is. An empty
    prompt or response is no error; without a response token a record has no part in the loss.

    The whole conversation identifies the record: the same question may have two answers.
    """

    settings = ("data.prompt-column", "data.response-column (or data.messages-column)")

    def required(self) -> list[str]:
        """Prompt and response, and the stratum if one is named."""
        return [self.data.prompt_column, self.data.response_column, *self._stratum_columns()]

    def columns(self, names: Collection[str]) -> list[str]:
        """Return the columns to read: the messages in place of prompt and response if need be."""
        pair = {self.data.prompt_column, self.data.response_column}
        if self.data.messages_column in names and not pair <= set(names):
            return [self.data.messages_column, *self._stratum_columns()]
        return self.required()

    def parse(self, values: Mapping[str, Any], where: Where, site: str | None) -> Example:
        """Read one row, see `Schema`."""
        prompt, response = self.data.prompt_column, self.data.response_column
        if prompt in values:
            question = read_text(values[prompt], where(prompt), site, empty=True)
            messages = [{"role": "user", "content": question}]
            answer = read_text(values[response], where(response), site, empty=True)
        else:
            column = self.data.messages_column
            *messages, last = _messages(values[column], where(column), site)
            answer = last["content"]
        return instruction(messages, answer, self._stratum(values, where, site))

    @staticmethod
    def content(record: Mapping[str, Any]) -> str:
        """Every role and text of the conversation."""
        turns = [part for turn in record["messages"] for part in (turn["role"], turn["content"])]
        return join_parts(*turns, record["response"])


def instruction(messages: list[dict[str, str]], response: str, stratum: str = "") -> Example:
    """Return the example of a conversation without its last turn, and that turn's text."""
    fields = {"messages": messages, "response": response}
    return Example(InstructionSchema.content(fields), stratum, fields)


def _messages(value: Any, where: str, site: str | None) -> list[dict[str, str]]:
    if not isinstance(value, list | tuple):
        hint = "; CSV cannot hold it, use JSONL or Parquet" if isinstance(value, str) else ""
        raise DataError(
            f"{where}: expected a list of messages with role and content, got {kind(value)}{hint}",
            site=site,
        )
    turns = [_turn(turn, f"{where}, message {n}", site) for n, turn in enumerate(value, start=1)]
    if len(turns) < 2 or turns[-1]["role"] != "assistant":
        ends = f"{len(turns)} that the {turns[-1]['role']} ends" if turns else "none"
        raise DataError(
            f"{where}: expected at least 2 messages, the last one of the assistant, got {ends}; "
            "correct or remove the row",
            site=site,
        )
    return turns


def _turn(turn: Any, where: str, site: str | None) -> dict[str, str]:
    if not isinstance(turn, Mapping) or not {"role", "content"} <= set(turn):
        raise DataError(
            f"{where}: expected an object with role and content, got "
            f"{'one without them' if isinstance(turn, Mapping) else kind(turn)}",
            site=site,
        )
    if turn["role"] not in ROLES:
        raise DataError(
            f"{where}: expected a role of {', '.join(ROLES)}, got {_other(turn['role'])}",
            site=site,
        )
    content = read_text(turn["content"], f"{where}, content", site, empty=True)
    return {"role": str(turn["role"]), "content": content}


def _other(role: Any) -> str:
    return "another one" if isinstance(role, str) and role else kind(role)
