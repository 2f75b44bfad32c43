"""Instructions and replies as Flower records: headers as JSON, each payload as one flat array.

A payload travels as one ``Array`` of raw bytes (Flower is slow and fragile with many small ones),
its layout beside it in the header. Everything received is checked before it is used.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from fedapp.codec import Layout, Packed
from fedapp.config import RunConfig, Scalar
from fedapp.errors import WireError
from fedapp.exchange import Action, Failure, Instruction, Reply, RunIdentity, SiteName
from fedapp.text import clean, shown

MESSAGE_TYPES: dict[Action, str] = {
    Action.DESCRIBE: "query",
    Action.INITIAL: "query.initial",
    Action.BASES: "query.bases",
    Action.TRAIN: "train",
    Action.LOCAL_ONLY: "train.local_only",
    Action.EVALUATE: "evaluate",
}
WIRE_VERSION = 1
MAX_HEADER_BYTES = 2**20
"""A node that describes 64 sites needs 0.2 MB, a layout of 700 pairs less than 0.1 MB."""
MAX_ENTRIES = 4096
"""Most entries of one object or list of a header."""
MAX_VALUES = 65536
"""Most values of a header altogether."""
MAX_MESSAGE = 2000
"""Most characters of a site's own sentence."""
MAX_PAYLOADS = 64

_HEADER = "header"
_PAYLOAD = "payload."
_FLAT = "flat"
_STYPE = "fedapp.flat"


class _Model(BaseModel):
    # Strict: "1" and true are no numbers.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# What JSON has no word for.
_Action = Annotated[Action, Field(strict=False)]
_Splits = Annotated[tuple[str, ...], Field(strict=False)]


class _InstructionHeader(_Model):
    wire: int
    action: _Action
    site: SiteName
    config: dict[str, Scalar]
    round: int
    layouts: dict[str, str]
    settings: dict[str, Scalar]
    splits: _Splits
    personal_splits: _Splits
    progress_file: str
    run: RunIdentity
    state_folder: str


class _FailureHeader(_Model):
    kind: str
    message: str


class _ReplyHeader(_Model):
    wire: int
    action: _Action
    site: SiteName
    round: int
    layouts: dict[str, str]
    metrics: dict[str, dict[str, float]]
    weight: float
    numbers: dict[str, float]
    description: dict[str, Any]
    failure: _FailureHeader | None


class _DescribeHeader(_Model):
    wire: int
    config: dict[str, Scalar]


class _DescriptionsHeader(_Model):
    wire: int
    # A report of all that is wrong in thousands of replies would be a thousand times as long.
    replies: Annotated[list[_ReplyHeader], FailFast()]


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
    header = {
        "wire": WIRE_VERSION,
        "action": instruction.action.value,
        "site": instruction.site,
        "config": instruction.config.to_flat(),
        "round": instruction.round,
        "layouts": _layouts(instruction.payloads),
        "settings": dict(instruction.settings),
        "splits": list(instruction.splits),
        "personal_splits": list(instruction.personal_splits),
        "progress_file": instruction.progress_file,
        "run": instruction.run,
        "state_folder": instruction.state_folder,
    }
    return _content(header, instruction.payloads, cache or PayloadCache())


def content_to_instruction(content: RecordDict) -> Instruction:
    """Read an instruction.

    Raises
    ------
    WireError
        If the message does not have the agreed form.
    ConfigError
        If a setting is unknown or out of range.
    UpdateRefused
        If a payload's layout is malformed.
    """
    header = _header(content, _InstructionHeader)
    return Instruction(
        action=header.action,
        site=header.site,
        config=RunConfig.from_flat(header.config),
        round=header.round,
        payloads=_payloads(content, header.layouts),
        settings=header.settings,
        splits=header.splits,
        personal_splits=header.personal_splits,
        progress_file=header.progress_file,
        run=header.run,
        state_folder=header.state_folder,
    )


def reply_to_content(reply: Reply) -> RecordDict:
    """Write a reply as a Flower record dict."""
    return _content(_reply_header(reply), reply.payloads, PayloadCache())


def content_to_reply(content: RecordDict) -> Reply:
    """Read a reply.

    Raises
    ------
    WireError
        If the message does not have the agreed form.
    UpdateRefused
        If a payload's layout is malformed.
    """
    header = _header(content, _ReplyHeader)
    return _reply(header, _payloads(content, header.layouts))


def payload_bytes(content: RecordDict) -> int:
    """Return the bytes of all arrays of a message, whatever their form."""
    records = content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())


def describe_to_content(config: RunConfig) -> RecordDict:
    """Write the first request, which goes to a node since its sites are not known yet."""
    return _content({"wire": WIRE_VERSION, "config": config.to_flat()}, {}, PayloadCache())


def content_to_describe(content: RecordDict) -> RunConfig:
    """Read `describe_to_content`; raises WireError or ConfigError."""
    return RunConfig.from_flat(_header(content, _DescribeHeader).config)


def descriptions_to_content(replies: list[Reply]) -> RecordDict:
    """Write a node's answer to DESCRIBE: one reply (description or failure) per hosted site."""
    header = {"wire": WIRE_VERSION, "replies": [_reply_header(reply) for reply in replies]}
    return _content(header, {}, PayloadCache())


def content_to_descriptions(content: RecordDict) -> list[Reply]:
    """Read `descriptions_to_content`; raises WireError."""
    return [_reply(reply, {}) for reply in _header(content, _DescriptionsHeader).replies]


def _reply_header(reply: Reply) -> dict[str, Any]:
    failure = reply.failure
    return {
        "wire": WIRE_VERSION,
        "action": reply.action.value,
        "site": reply.site,
        "round": reply.round,
        "layouts": _layouts(reply.payloads),
        "metrics": {name: _floats(values) for name, values in reply.metrics.items()},
        "weight": float(reply.weight),
        "numbers": _floats(reply.numbers),
        "description": dict(reply.description),
        "failure": failure and {"kind": failure.kind, "message": failure.message},
    }


def _reply(header: _ReplyHeader, payloads: dict[str, Packed]) -> Reply:
    return Reply(
        site=header.site,
        round=header.round,
        action=header.action,
        payloads=payloads,
        metrics=header.metrics,
        weight=header.weight,
        numbers=header.numbers,
        description=header.description,
        failure=_failure(header.failure),
    )


def _failure(header: _FailureHeader | None) -> Failure | None:
    if header is None:
        return None
    return Failure(clean(header.kind), clean(header.message, MAX_MESSAGE))


def _floats(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _layouts(payloads: Mapping[str, Packed]) -> dict[str, str]:
    return {name: packed.layout.to_json() for name, packed in payloads.items()}


def _pack(packed: Packed) -> ArrayRecord:
    # Flower accepts only `bytes` here; this is the one copy on the sending side.
    data = np.ascontiguousarray(packed.array).tobytes()
    return ArrayRecord({_FLAT: Array("uint8", (len(data),), _STYPE, data)})


def _content(
    header: dict[str, Any], payloads: Mapping[str, Packed], cache: PayloadCache
) -> RecordDict:
    content = RecordDict({_HEADER: ConfigRecord({"json": json.dumps(header)})})
    for name, packed in payloads.items():
        content[f"{_PAYLOAD}{name}"] = cache.record(packed)
    return content


_H = TypeVar("_H", bound=_Model)


def _header(content: RecordDict, model: type[_H]) -> _H:
    record = content.get(_HEADER)
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str):
        raise WireError("the message has no fedapp header; run the same fedapp version everywhere")
    if len(text) > MAX_HEADER_BYTES:
        raise WireError(
            f"the header has {len(text)} characters, at most {MAX_HEADER_BYTES} allowed"
        )
    data = _json(text)
    version = data.get("wire") if isinstance(data, dict) else None
    if version != WIRE_VERSION:
        raise WireError(
            f"the message has format {shown(version)}, expected {WIRE_VERSION}; "
            "run the same fedapp version everywhere"
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = clean(".".join(map(str, first["loc"])))
        raise WireError(
            f"field '{field}' of the header: {clean(first['msg'], 300)}; "
            "run the same fedapp version everywhere"
        ) from None


def _json(text: str) -> Any:
    """Read JSON that another machine wrote.

    Raises
    ------
    WireError
        If it is malformed, has a key twice, too many entries or text that is not Unicode.
    """
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise WireError(f"the header is not valid JSON: {error}") from None
    except RecursionError:
        raise WireError("the header is not valid JSON: it is nested too deeply") from None
    except ValueError:  # Python reads no number of thousands of digits
        raise WireError("the header is not valid JSON: a number has too many digits") from None
    _check_values(data)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise WireError(f"the header has the key '{clean(twice)}' twice")
    return entries


def _check_values(data: Any) -> None:
    # Before pydantic, which makes a report of every single value that does not fit.
    waiting, count = [data], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise WireError(
                    f"the header holds text that is not Unicode: '{clean(value)}'"
                ) from None
        elif isinstance(value, dict | list):
            count += len(value)
            if len(value) > MAX_ENTRIES or count > MAX_VALUES:
                raise WireError(
                    f"the header has {count} entries or more, at most {MAX_ENTRIES} in one object "
                    f"and {MAX_VALUES} altogether are allowed"
                )
            waiting.extend(value)
            if isinstance(value, dict):
                waiting.extend(value.values())


def _payloads(content: RecordDict, layouts: Mapping[str, str]) -> dict[str, Packed]:
    sent = {key.removeprefix(_PAYLOAD) for key in content if key.startswith(_PAYLOAD)}
    if sent != set(layouts) or len(sent) > MAX_PAYLOADS:
        raise WireError(
            f"payloads {_names(sent)} do not match the layouts {_names(layouts)}, "
            f"or are more than {MAX_PAYLOADS}"
        )
    return {name: _unpack(content, name, text) for name, text in layouts.items()}


def _names(names: Iterable[str]) -> str:
    return clean(", ".join(f"'{clean(name)}'" for name in sorted(names)[:3]) or "none", 200)


def _unpack(content: RecordDict, name: str, layout: str) -> Packed:
    record = content[f"{_PAYLOAD}{name}"]
    array = record.get(_FLAT) if isinstance(record, ArrayRecord) else None
    if array is None or array.stype != _STYPE or array.dtype != "uint8":
        raise WireError(f"payload '{clean(name)}' is not one flat array of bytes")
    return Packed(np.frombuffer(array.data, dtype=np.uint8), Layout.from_json(layout))
