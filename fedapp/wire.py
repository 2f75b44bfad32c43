"""Instructions and replies as Flower records: headers as JSON, each payload as one flat array.

A payload travels as one ``Array`` of raw bytes (Flower is slow and fragile with many small ones),
its layout beside it in the header. Everything received is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedapp import headers
from fedapp.codec import Packed
from fedapp.config import RunConfig
from fedapp.errors import WireError
from fedapp.exchange import Action, Instruction, Reply
from fedapp.headers import MAX_HEADER_BYTES, Bytes
from fedapp.text import clean

__all__ = ["MAX_HEADER_BYTES", "MESSAGE_TYPES", "PayloadCache"]

MESSAGE_TYPES: dict[Action, str] = {
    Action.DESCRIBE: "query",
    Action.INITIAL: "query.initial",
    Action.BASES: "query.bases",
    Action.PUBLISH: "train.publish",
    Action.MIX: "train.mix",
    Action.TRAIN: "train",
    Action.LOCAL_ONLY: "train.local_only",
    Action.EVALUATE: "evaluate",
}

_HEADER = "header"
_PAYLOAD = "payload."
_FLAT = "flat"
_STYPE = "fedapp.flat"


class PayloadCache:
    """Flower records of payloads that go to several sites, so that each is built and hashed once.

    Keep one per batch of messages: it holds the payloads alive.
    """

    def __init__(self) -> None:
        self._records: dict[int, tuple[Packed, ArrayRecord]] = {}

    def record(self, packed: Packed) -> ArrayRecord:
        """Return the record of ``packed``, always the same one for the same object."""
        if id(packed) not in self._records:
            self._records[id(packed)] = (packed, _pack(packed))
        return self._records[id(packed)][1]


def instruction_to_content(
    instruction: Instruction, cache: PayloadCache | None = None
) -> RecordDict:
    """Write an instruction as a Flower record dict; ``cache`` shares equal payloads."""
    text = headers.write_instruction(instruction)
    return _content(text, instruction.payloads, cache or PayloadCache())


def content_to_instruction(content: RecordDict) -> Instruction:
    """Read an instruction, see `fedapp.headers.read_instruction`."""
    return headers.read_instruction(
        _header(content), _sent(content), lambda name: _bytes(content, name)
    )


def reply_to_content(reply: Reply) -> RecordDict:
    """Write a reply as a Flower record dict."""
    return _content(headers.write_reply(reply), reply.payloads, PayloadCache())


def content_to_reply(content: RecordDict) -> Reply:
    """Read a reply; raises WireError, or UpdateRefused for a malformed layout."""
    return headers.read_reply(_header(content), _sent(content), lambda name: _bytes(content, name))


def payload_bytes(content: RecordDict) -> int:
    """Return the bytes of all arrays of a message, whatever their form."""
    records = content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())


def describe_to_content(config: RunConfig) -> RecordDict:
    """Write the first request, which goes to a node since its sites are not known yet."""
    return _content(headers.write_describe(config), {}, PayloadCache())


def content_to_describe(content: RecordDict) -> RunConfig:
    """Read `describe_to_content`; raises WireError or ConfigError."""
    return headers.read_describe(_header(content))


def descriptions_to_content(replies: list[Reply]) -> RecordDict:
    """Write a node's answer to DESCRIBE: one reply (description or failure) per hosted site."""
    return _content(headers.write_descriptions(replies), {}, PayloadCache())


def content_to_descriptions(content: RecordDict) -> list[Reply]:
    """Read `descriptions_to_content`; raises WireError."""
    return headers.read_descriptions(_header(content))


def _pack(packed: Packed) -> ArrayRecord:
    # Flower accepts only `bytes` here; this is the one copy on the sending side.
    data = np.ascontiguousarray(packed.array).tobytes()
    return ArrayRecord({_FLAT: Array("uint8", (len(data),), _STYPE, data)})


def _content(text: str, payloads: Mapping[str, Packed], cache: PayloadCache) -> RecordDict:
    content = RecordDict({_HEADER: ConfigRecord({"json": text})})
    for name, packed in payloads.items():
        content[f"{_PAYLOAD}{name}"] = cache.record(packed)
    return content


def _header(content: RecordDict) -> str:
    record = content.get(_HEADER)
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str):
        raise WireError("the message has no fedapp header; run the same fedapp version everywhere")
    return text


def _sent(content: RecordDict) -> set[str]:
    return {key.removeprefix(_PAYLOAD) for key in content if key.startswith(_PAYLOAD)}


def _bytes(content: RecordDict, name: str) -> Bytes:
    record = content[f"{_PAYLOAD}{name}"]
    array = record.get(_FLAT) if isinstance(record, ArrayRecord) else None
    if array is None or array.stype != _STYPE or array.dtype != "uint8":
        raise WireError(f"payload '{clean(name)}' is not one flat array of bytes")
    return np.frombuffer(array.data, dtype=np.uint8)
