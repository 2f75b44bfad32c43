from __future__ import annotations

import json
import time

import numpy as np
import pytest
from fake_federation import FakeSite, initial_adapter
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from memory import peak

from fedapp.codec import pack
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, FedappError, WireError
from fedapp.exchange import Action, Failure, Instruction, Reply
from fedapp.wire import (
    MAX_HEADER_BYTES,
    MESSAGE_TYPES,
    PayloadCache,
    content_to_describe,
    content_to_descriptions,
    content_to_instruction,
    content_to_reply,
    describe_to_content,
    descriptions_to_content,
    instruction_to_content,
    reply_to_content,
)

CONFIG = RunConfig.from_flat({"method": "fedavg", "federation.held-out": "A,B"})
ADAPTER = initial_adapter(CONFIG)


def _instruction() -> Instruction:
    return Instruction(
        action=Action.TRAIN,
        site="VA Long Beach",
        config=CONFIG,
        round=3,
        payloads={"adapter": pack(ADAPTER), "basis": pack(ADAPTER, "int8")},
        settings={"mu": 0.1, "flag": True, "count": 2, "word": "a\nb é"},
        splits=("validation",),
        personal_splits=("validation", "test"),
        progress_file="/tmp/p.jsonl",
        run="0123456789abcdef" * 2,
        state_folder="/tmp/sites",
    )


def _reply() -> Reply:
    return Reply(
        site="Hungary",
        round=2,
        action=Action.TRAIN,
        payloads={"adapter": pack(ADAPTER, "bf16")},
        metrics={"personal/test": {"accuracy": 1 / 3, "examples": 61.0}},
        weight=59.0,
        numbers={"train_loss": 0.1 + 0.2, "seconds": 1e-9},
    )


def _far(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


def test_an_instruction_survives_the_wire() -> None:
    sent = _instruction()

    got = content_to_instruction(_far(instruction_to_content(sent)))

    assert (got.action, got.site, got.config, got.round) == (
        sent.action,
        sent.site,
        sent.config,
        sent.round,
    )
    assert got.settings == sent.settings
    assert [type(v) for v in got.settings.values()] == [float, bool, int, str]
    assert (got.splits, got.progress_file) == (sent.splits, sent.progress_file)
    assert got.personal_splits == sent.personal_splits
    assert (got.run, got.state_folder) == (sent.run, sent.state_folder)
    assert got.payloads["adapter"].unpack().digest() == ADAPTER.digest()
    assert got.payloads["basis"].layout == sent.payloads["basis"].layout


def test_a_reply_survives_the_wire() -> None:
    sent = _reply()

    got = content_to_reply(_far(reply_to_content(sent)))

    assert got.metrics == sent.metrics
    assert got.numbers == sent.numbers
    assert (got.site, got.round, got.action, got.weight) == ("Hungary", 2, Action.TRAIN, 59.0)
    assert np.array_equal(got.payloads["adapter"].array, sent.payloads["adapter"].array)
    assert got.failure is None


def test_descriptions_and_failures_survive_the_wire() -> None:
    replies = [
        Reply("A", 0, Action.DESCRIBE, description={"rank": 8, "label_map": ["x", "y"]}),
        Reply("B", 0, Action.DESCRIBE, failure=Failure("DataError", "site B: no records")),
    ]

    assert content_to_descriptions(_far(descriptions_to_content(replies))) == replies
    assert content_to_describe(_far(describe_to_content(CONFIG))) == CONFIG


def test_one_payload_is_one_flat_array_and_is_not_copied_on_arrival() -> None:
    content = _far(instruction_to_content(_instruction()))

    arrays = [a for record in content.array_records.values() for a in record.values()]
    assert len(arrays) == 2
    packed = content_to_instruction(content).payloads["adapter"]
    assert packed.array.dtype == np.uint8
    assert packed.array.ndim == 1
    assert not packed.array.flags.owndata
    assert not packed.array.flags.writeable


def test_a_cache_shares_the_record_of_one_payload() -> None:
    cache, packed = PayloadCache(), pack(ADAPTER)
    contents = [
        instruction_to_content(
            Instruction(Action.TRAIN, site, CONFIG, 1, {"adapter": packed}), cache
        )
        for site in ("A", "B")
    ]

    assert contents[0]["payload.adapter"] is contents[1]["payload.adapter"]


def test_settings_travel_where_they_differ_from_their_defaults() -> None:
    content = instruction_to_content(_instruction())
    header = json.loads(str(content["header"]["json"]))  # type: ignore[index]

    assert header["config"] == {"method": "fedavg", "federation.held-out": "A,B"}
    assert content_to_instruction(content).config == CONFIG


def test_every_action_has_a_message_type() -> None:
    assert set(MESSAGE_TYPES) == set(Action)
    assert len(set(MESSAGE_TYPES.values())) == len(Action)


def _header(content: RecordDict, **changes: object) -> RecordDict:
    header = json.loads(str(content["header"]["json"]))  # type: ignore[index]
    header.update(changes)
    content["header"] = ConfigRecord({"json": json.dumps(header)})
    return content


def _raw(text: str) -> RecordDict:
    return RecordDict({"header": ConfigRecord({"json": text})})


def _with_array(array: Array) -> RecordDict:
    content = reply_to_content(_reply())
    content["payload.adapter"] = ArrayRecord({"flat": array})
    return content


MALFORMED = {
    "nothing": RecordDict(),
    "no json": RecordDict({"header": ConfigRecord({"json": "{"})}),
    "not an object": RecordDict({"header": ConfigRecord({"json": "[1]"})}),
    "not text": RecordDict({"header": ConfigRecord({"json": 5})}),
    "deep": RecordDict({"header": ConfigRecord({"json": "[" * 100_000})}),
    "metrics only": RecordDict({"header": MetricRecord({"a": 1.0})}),
    "another version": _header(reply_to_content(_reply()), wire=2),
    "unknown key": _header(reply_to_content(_reply()), evil=1),
    "wrong type": _header(reply_to_content(_reply()), round="two"),
    "unknown action": _header(reply_to_content(_reply()), action="delete"),
    "text as metric": _header(reply_to_content(_reply()), metrics={"a/b": {"c": "d"}}),
    "no layout": _header(reply_to_content(_reply()), layouts={}),
    "layout without payload": _header(reply_to_content(_reply()), layouts={"a": "{}", "b": "{}"}),
    "broken layout": _header(reply_to_content(_reply()), layouts={"adapter": "{}"}),
    "numpy array": _with_array(Array(np.zeros(4, np.uint8))),
    "thousands of digits": _raw('{"wire": %s}' % ("9" * 5000)),
    "a key twice": _raw('{"wire": 1, "wire": 1}'),
    "no Unicode": _header(reply_to_content(_reply()), numbers={"\ud800": 1.0}),
    "no Unicode inside": _header(reply_to_content(_reply()), description={"a": [["\udfff"]]}),
    "long version": _header(reply_to_content(_reply()), wire="9" * 100_000),
    "version as a list": _header(reply_to_content(_reply()), wire=["9" * 100_000]),
    "long unknown key": _header(reply_to_content(_reply()), **{"\x1b[0m" * 10_000: 1}),
    "long payload name": _header(reply_to_content(_reply()), layouts={"\n" * 10_000: "{}"}),
    "many entries": _header(reply_to_content(_reply()), numbers={str(i): "x" for i in range(5000)}),
    "many small tables": _header(
        reply_to_content(_reply()), metrics={"a": {}, "b": [[0] * 4000] * 20}
    ),
    "name with a control character": _header(reply_to_content(_reply()), site="a\x1b[0m"),
    "text as weight": _header(reply_to_content(_reply()), weight="59"),
    "true as round": _header(reply_to_content(_reply()), round=True),
    "true as metric": _header(reply_to_content(_reply()), metrics={"a/b": {"c": True}}),
    "no name": _header(reply_to_content(_reply()), site=""),
    "long name": _header(reply_to_content(_reply()), site="x" * 101),
    "two arrays": _with_array(Array("float32", (1,), "fedapp.flat", b"1234")),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_reply_is_a_sentence(name: str) -> None:
    with pytest.raises(FedappError) as caught:
        content_to_reply(MALFORMED[name])
    assert caught.value.exit_code == 4
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_a_site_validates_the_settings_again() -> None:
    flat = {**CONFIG.to_flat(), "lora.rank": 0}

    with pytest.raises(ConfigError, match=r"lora\.rank"):
        content_to_instruction(_header(instruction_to_content(_instruction()), config=flat))
    with pytest.raises(ConfigError, match=r"unknown setting 'lora.rang'"):
        content_to_describe(_header(describe_to_content(CONFIG), config={"lora.rang": 1}))


@pytest.mark.parametrize("site", ["", "a\x1b[0m", "x" * 101, 3])
def test_an_instruction_for_no_name_is_refused_in_a_plain_sentence(site: object) -> None:
    with pytest.raises(WireError, match="field 'site' of the header") as caught:
        content_to_instruction(_header(instruction_to_content(_instruction()), site=site))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400


def test_thousands_of_empty_replies_are_not_reported_one_by_one() -> None:
    content = _header(descriptions_to_content([]), replies=[{}] * 4000)

    def attempt() -> None:
        with pytest.raises(WireError, match=r"field 'replies\.0\.wire' of the header"):
            content_to_descriptions(content)

    attempt()
    assert peak(attempt) < 2**20


def test_a_huge_header_is_refused_unread() -> None:
    content = RecordDict({"header": ConfigRecord({"json": " " * (2**20 + 1)})})

    with pytest.raises(WireError, match="at most 1048576 allowed"):
        content_to_reply(content)


def test_a_node_with_many_sites_fits_with_room() -> None:
    description = FakeSite("x" * 100, 60)._describe(CONFIG) | {
        "notes": ["3 duplicate records were dropped; 14 texts longer than 128 tokens were cut"] * 5,
        "peft_config": {f"some_setting_{number}": "some value" for number in range(45)},
        "label_map": [f"label {number}" for number in range(20)],
    }
    replies = [
        Reply(f"site {number}", 0, Action.DESCRIBE, description=description) for number in range(64)
    ]

    content = descriptions_to_content(replies)

    assert len(str(content["header"]["json"])) < MAX_HEADER_BYTES / 3  # type: ignore[index]
    assert content_to_descriptions(content) == replies


def test_a_refusal_of_thousands_of_wrong_values_is_quick() -> None:
    content = _header(reply_to_content(_reply()), numbers={str(i): "x" for i in range(60_000)})

    started = time.process_time()
    with pytest.raises(WireError, match=r"at most 4096 in one object and 65536 altogether"):
        content_to_reply(content)
    assert time.process_time() - started < 2


def test_a_failure_from_a_site_is_one_line_of_bounded_length() -> None:
    failure = Failure("Error" * 100, "line\n" * 10_000)

    got = content_to_reply(reply_to_content(Reply("A", 1, Action.TRAIN, failure=failure))).failure

    assert got is not None
    assert len(got.kind) == 80
    assert got.message.startswith(r"line\nline\n")
    assert len(got.message) == 2000
