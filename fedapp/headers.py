"""Instructions and replies as JSON headers beside their payloads, whatever carries the two.

Everything received is checked before it is used.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from fedapp.codec import Layout, Packed
from fedapp.config import RunConfig, Scalar
from fedapp.errors import WireError
from fedapp.exchange import Action, Failure, Instruction, Reply, RunIdentity, SiteName
from fedapp.text import clean, shown

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
    reason: str = ""


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


Bytes = NDArray[np.uint8]
"""A payload as it travels."""
Fetch = Callable[[str], Bytes]
"""Returns the payload of a name, or raises `WireError`."""


def write_instruction(instruction: Instruction) -> str:
    """Return the header of an instruction.

    Of the settings it has those that differ from their defaults, which are the receiver's too: the
    handshake refuses a site that has others. They would be most of a small message.
    """
    return json.dumps(
        {
            "wire": WIRE_VERSION,
            "action": instruction.action.value,
            "site": instruction.site,
            "config": instruction.config.changed(),
            "round": instruction.round,
            "layouts": _layouts(instruction.payloads),
            "settings": dict(instruction.settings),
            "splits": list(instruction.splits),
            "personal_splits": list(instruction.personal_splits),
            "progress_file": instruction.progress_file,
            "run": instruction.run,
            "state_folder": instruction.state_folder,
        }
    )


def read_instruction(text: str, sent: Iterable[str], fetch: Fetch) -> Instruction:
    """Read an instruction.

    Parameters
    ----------
    text : str
    sent : iterable of str
        Names of the payloads that came with it.
    fetch : callable

    Raises
    ------
    WireError
        If the message does not have the agreed form.
    ConfigError
        If a setting is unknown or out of range.
    UpdateRefused
        If a payload's layout is malformed.
    """
    header = _read(text, _InstructionHeader)
    return Instruction(
        action=header.action,
        site=header.site,
        config=RunConfig.from_flat(header.config),
        round=header.round,
        payloads=_payloads(header.layouts, sent, fetch),
        settings=header.settings,
        splits=header.splits,
        personal_splits=header.personal_splits,
        progress_file=header.progress_file,
        run=header.run,
        state_folder=header.state_folder,
    )


def write_reply(reply: Reply) -> str:
    """Return the header of a reply."""
    return json.dumps(_reply_header(reply))


def read_reply(text: str, sent: Iterable[str], fetch: Fetch) -> Reply:
    """Read a reply; raises WireError, or UpdateRefused for a malformed layout."""
    header = _read(text, _ReplyHeader)
    return _reply(header, _payloads(header.layouts, sent, fetch))


def write_describe(config: RunConfig) -> str:
    """Return the header of the first request, which names no site."""
    return json.dumps({"wire": WIRE_VERSION, "config": config.to_flat()})


def read_describe(text: str) -> RunConfig:
    """Read `write_describe`; raises WireError or ConfigError."""
    return RunConfig.from_flat(_read(text, _DescribeHeader).config)


def write_descriptions(replies: Iterable[Reply]) -> str:
    """Return the header of an answer to DESCRIBE: one reply without payloads per site."""
    return json.dumps({"wire": WIRE_VERSION, "replies": list(map(_reply_header, replies))})


def read_descriptions(text: str) -> list[Reply]:
    """Read `write_descriptions`; raises WireError."""
    return [_reply(reply, {}) for reply in _read(text, _DescriptionsHeader).replies]


def names(found: Iterable[str]) -> str:
    """Return the first few of some foreign names, for a sentence."""
    return clean(", ".join(f"'{clean(name)}'" for name in sorted(found)[:3]) or "none", 200)


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
        "failure": failure and vars(failure),
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
    return Failure(clean(header.kind), clean(header.message, MAX_MESSAGE), clean(header.reason))


def _floats(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _layouts(payloads: Mapping[str, Packed]) -> dict[str, str]:
    return {name: packed.layout.to_json() for name, packed in payloads.items()}


_H = TypeVar("_H", bound=_Model)


def _read(text: str, model: type[_H]) -> _H:
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


def _payloads(layouts: Mapping[str, str], sent: Iterable[str], fetch: Fetch) -> dict[str, Packed]:
    found = set(sent)
    if found != set(layouts) or len(found) > MAX_PAYLOADS:
        raise WireError(
            f"payloads {names(found)} do not match the layouts {names(layouts)}, "
            f"or are more than {MAX_PAYLOADS}"
        )
    return {name: Packed(fetch(name), Layout.from_json(text)) for name, text in layouts.items()}
