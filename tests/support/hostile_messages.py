"""Messages as a damaged line, another version or a hostile peer would send them, from a seed.

Each begins as an honest one. It is damaged at one level (bytes of a payload, fields or text of its
layout, fields or text of the header, Flower's records), or is well-formed but wrong (another shape,
rank, codec, number). Half of the damage is sealed again: digests and sizes are made to fit, so that
what lies behind the first check is reached too.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from fake_federation import FakeSite, initial_adapter
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from mutations import dump, mutate_bytes, mutate_text, mutate_value, nested, twice

from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import CODECS, pack
from fedapp.config import RunConfig
from fedapp.exchange import Action, Failure, Instruction, Reply
from fedapp.wire import (
    describe_to_content,
    descriptions_to_content,
    instruction_to_content,
    reply_to_content,
)

ROUND, SITE, RECORDS = 3, "Hungary", 59
CONFIG = RunConfig.from_flat(
    {"method": "fedavg", "lora.rank": 2, "federation.max-payload-mb": 0.002}
)
SITES = ("Cleveland", SITE)
HEAD = "classifier.weight"

Content = tuple[str, dict[str, bytes]]  # the header's text, the payloads by name
Kinds = list[tuple[float, Callable[[Content], RecordDict]]]


def model() -> Adapter:
    """The model of the round."""
    rng = np.random.default_rng(0)
    return initial_adapter(CONFIG).map(
        lambda _, array: rng.normal(size=array.shape).astype(np.float32)
    )


MODEL = model()


def honest_reply(codec: Any = "fp32", adapter: Adapter | None = None) -> Reply:
    """What the site would send."""
    return Reply(
        site=SITE,
        round=ROUND,
        action=Action.TRAIN,
        payloads={"adapter": pack(adapter or MODEL, codec)},
        metrics={
            "received/validation": {"accuracy": 0.75, "loss": 0.4, "auc": 0.8, "examples": 12.0},
            "personal/validation": {"accuracy": 0.8, "loss": 0.3, "f1": 0.7, "examples": 12.0},
        },
        weight=float(RECORDS),
        numbers={"train_loss": 0.3, "steps": 8.0, "training_seconds": 0.2, "seconds": 0.3},
    )


def honest_instruction(codec: Any = "fp32", action: Action = Action.TRAIN) -> Instruction:
    """What the coordinator would ask."""
    return Instruction(
        action=action,
        site=SITE,
        config=CONFIG,
        round=ROUND,
        payloads={"adapter": pack(MODEL, codec), "basis": pack(MODEL, codec)},
        settings={"mu": 0.1, "flag": True, "word": "a"},
        personal_splits=("test",),
        progress_file="/tmp/progress.jsonl",
    )


def honest_descriptions() -> list[Reply]:
    """What a node with two sites would say of them."""
    replies = []
    for number, site in enumerate(SITES):
        description = FakeSite(site, RECORDS - number)._describe(CONFIG)
        replies.append(Reply(site, 0, Action.DESCRIBE, description=description))
    return replies


class Sender:
    """Draws messages of one kind.

    Parameters
    ----------
    contents : list of RecordDict
        Honest ones.
    rng : random.Random

    Attributes
    ----------
    damage_share : float
        Share of the messages that are damaged.
    """

    def __init__(self, contents: list[RecordDict], rng: random.Random) -> None:
        self._honest = [_taken_apart(content) for content in contents]
        self._rng = rng
        self.damage_share = 0.99
        self._outside: Kinds = [
            (0.30, self._header_fields),
            (0.15, self._header_text),
            (0.08, self._records),
            (0.01, self._bulk),
        ]
        self._all: Kinds = [
            *self._outside,
            (0.20, self._payload_bytes),
            (0.25, self._layout_fields),
            (0.10, self._layout_text),
            (0.10, self._floats),
        ]

    def draw(self) -> RecordDict:
        """Return the next message."""
        content = self._rng.choice(self._honest)
        if self._rng.random() >= self.damage_share:
            return _content(*content)
        weights, kinds = zip(
            *(self._all if any(content[1].values()) else self._outside), strict=True
        )
        (kind,) = self._rng.choices(kinds, weights)
        return kind(content)

    # ---- damage, from the inside to the outside ---------------------------------------------

    def _floats(self, content: Content) -> RecordDict:
        """Bit patterns of numbers, with digests that fit: NaN, Inf, tiny, huge."""
        header, payloads, name = self._open(content)
        data = bytearray(payloads[name])
        for _ in range(self._rng.choice([1, 2, 20])):
            start = 4 * self._rng.randrange(len(data) // 4)
            data[start : start + 4] = self._rng.choice(
                [b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"\xff" * 4, b"\1\0\0\0", b"\0" * 4,
                 np.float32(self._rng.choice([1e6, 1.1e6, -1e7, 3e38, 1e-40])).tobytes(),
                 self._rng.randbytes(4)]
            )  # fmt: skip
        payloads[name] = bytes(data)
        return _content(*_sealed(header, payloads, name))

    def _payload_bytes(self, content: Content) -> RecordDict:
        header, payloads, name = self._open(content)
        payloads[name] = mutate_bytes(self._rng, payloads[name])
        if self._rng.random() < 0.5:
            header, payloads = _sealed(header, payloads, name)
        return _content(header, payloads)

    def _layout_fields(self, content: Content) -> RecordDict:
        header, payloads, name = self._open(content)
        layout: Any = json.loads(header["layouts"][name])
        for _ in range(self._rng.choice([1, 1, 1, 2, 4])):
            layout = mutate_value(self._rng, layout)
        header["layouts"][name] = dump(layout)
        if self._rng.random() < 0.6:
            if self._rng.random() < 0.5:  # as many bytes as the damaged layout asks for
                payloads[name] = self._rng.randbytes(_size(layout, 4096))
            header, payloads = _sealed(header, payloads, name)
        return _content(header, payloads)

    def _layout_text(self, content: Content) -> RecordDict:
        header, payloads, name = self._open(content)
        change = self._rng.choice([twice, mutate_text])
        header["layouts"][name] = change(self._rng, header["layouts"][name])
        return _content(header, payloads)

    def _header_fields(self, content: Content) -> RecordDict:
        header = json.loads(content[0])
        for _ in range(self._rng.choice([1, 1, 1, 2, 4])):
            header = mutate_value(self._rng, header)
        if isinstance(header, dict) and self._rng.random() < 0.8:
            header["wire"] = 1
        return _content(header, content[1])

    def _header_text(self, content: Content) -> RecordDict:
        change = self._rng.choice([twice, mutate_text])
        return _content(change(self._rng, content[0]), content[1])

    def _records(self, content: Content) -> RecordDict:
        """Flower's records of another kind, form or number."""
        made, rng = _content(*content), self._rng
        flat = Array("uint8", (4,), "fedapp.flat", b"1234")
        odd = rng.choice(
            [flat, Array(np.ones(3, np.float32)), Array("uint8", (-1,), "fedapp.flat", b""),
             Array("object", (2,), "numpy.ndarray", b"\x93NUMPY\1\0"),
             Array("uint8", (2**40,), "fedapp.flat", b"12"), Array("", (), "", b"")]
        )  # fmt: skip
        key = rng.choice(
            [*made, "header", "payload.", "payload.adapter", "payload.x\x1b", "zz", "p" * 5000]
        )
        made[key] = rng.choice(
            [
                ArrayRecord({rng.choice(["flat", "", "other"]): odd}),
                ArrayRecord({"flat": odd, "more": flat}),
                ArrayRecord(),
                MetricRecord({"json": 1.0, "flat": [1, 2]}),
                ConfigRecord(),
                ConfigRecord({"json": rng.choice([b"{}", 3, ["{}", "{}"], True, "{}", "\x00"])}),
                ConfigRecord({"json": content[0], "flat": "more"}),
            ]
        )
        if rng.random() < 0.2:
            del made[rng.choice(list(made))]
        return made

    def _bulk(self, content: Content) -> RecordDict:
        """Much of something."""
        header, rng = json.loads(content[0]), self._rng
        many = rng.choice([70, 70, 500, 5000, 40_000])
        key = rng.choice(list(header))
        header[key] = rng.choice(
            [
                nested(900),
                [[]] * many,
                {str(number): {} for number in range(many)},
                {str(number): 1.0 for number in range(many)},
                "x" * (10 * many),
                "\x1b" * (many // 10),
                (header.get("replies") or [{}])[:1] * min(many, 500),
            ]
        )
        payloads = {f"{number}": b"" for number in range(many)} if many == 70 else content[1]
        if key == "layouts" and isinstance(header[key], str):
            header[key] = {"adapter": header[key]}
        return _content(header, payloads)

    def _open(self, content: Content) -> tuple[dict[str, Any], dict[str, bytes], str]:
        header, payloads = json.loads(content[0]), dict(content[1])
        return header, payloads, self._rng.choice(list(payloads))


def reply_sender(rng: random.Random, codec: Any = "fp32") -> Sender:
    """A sender of TRAIN replies: honest ones, and some that are well-formed but wrong."""
    pairs, heads = MODEL.pairs, MODEL.tensors
    other_rank = {n: LoraPair(p.b_mr[:, :1], p.a_rn[:1], p.scaling) for n, p in pairs.items()}
    other_scaling = {n: LoraPair(p.b_mr, p.a_rn, 2 * p.scaling) for n, p in pairs.items()}
    taller = {n: LoraPair(np.vstack([p.b_mr] * 2), p.a_rn, p.scaling) for n, p in pairs.items()}
    adapters = [
        *(Adapter(changed, heads) for changed in (other_rank, other_scaling, taller)),
        Adapter(pairs, {}), Adapter({}, heads), Adapter({}), Adapter(pairs, {"zz": heads[HEAD]}),
        Adapter(pairs, {**heads, "zz": np.ones(500, np.float32)}),
        MODEL.map(lambda _, array: np.float32(1e5) * array),
        MODEL.map(lambda _, array: np.float32(1e-30) * array),
    ]  # fmt: skip
    replies = [honest_reply(codec)] * 30
    replies += [*map(honest_reply, CODECS), *(honest_reply(codec, other) for other in adapters)]
    base = replies[0]
    replies += [
        replace(base, payloads={}),
        replace(base, payloads={}, failure=Failure("DataError", "site Hungary: no records")),
        replace(base, payloads={**base.payloads, "more": pack(MODEL)}),
        replace(base, weight=0.5), replace(base, weight=60.0), replace(base, weight=-1.0),
        replace(base, round=ROUND - 1), replace(base, action=Action.EVALUATE),
    ]  # fmt: skip
    return Sender([reply_to_content(reply) for reply in replies], rng)


def instruction_sender(rng: random.Random) -> Sender:
    """A sender of EVALUATE instructions."""
    instructions = [honest_instruction(codec, Action.EVALUATE) for codec in CODECS]
    instructions.append(replace(instructions[0], payloads={}))
    return Sender([instruction_to_content(instruction) for instruction in instructions], rng)


def description_sender(rng: random.Random) -> Sender:
    """A sender of a node's answers to DESCRIBE."""
    replies = honest_descriptions()
    failed = replace(replies[1], description={}, failure=Failure("DataError", "no records"))
    contents = [replies, replies, [replies[0]], [replies[0], failed], []]
    return Sender([descriptions_to_content(content) for content in contents], rng)


def query_sender(rng: random.Random) -> Sender:
    """A sender of DESCRIBE requests."""
    return Sender([describe_to_content(CONFIG)], rng)


# ---- taking apart and putting together -------------------------------------------------------


def _taken_apart(content: RecordDict) -> Content:
    text = str(content["header"]["json"])  # type: ignore[index]
    payloads = {
        key.removeprefix("payload."): record["flat"].data
        for key, record in content.array_records.items()
    }
    return text, payloads


def _content(header: Any, payloads: dict[str, bytes]) -> RecordDict:
    text = header if isinstance(header, str) else dump(header)
    content = RecordDict({"header": ConfigRecord({"json": text})})
    for name, data in payloads.items():
        array = Array("uint8", (len(data),), "fedapp.flat", data)
        content[f"payload.{name}"] = ArrayRecord({"flat": array})
    return content


def _sealed(
    header: dict[str, Any], payloads: dict[str, bytes], name: str
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Make digests and sizes fit, as far as the layout can be understood."""
    try:
        layout = json.loads(header["layouts"][name])
    except RecursionError:
        return header, payloads
    if isinstance(layout, dict):
        described = {"pairs": layout.get("pairs"), "tensors": layout.get("tensors")}
        layout["nbytes"] = _size(layout, 2**70)
        layout["layout_digest"] = hashlib.sha256(dump(described).encode()).hexdigest()
        layout["digest"] = hashlib.sha256(payloads[name]).hexdigest()
        header["layouts"][name] = dump(layout)
    return header, payloads


def _size(layout: Any, most: int) -> int:
    """Bytes that a layout asks for; 0 where that cannot be told."""
    try:
        shapes = [shape for pair in layout["pairs"].values() for shape in pair[:2]]
        shapes += layout["tensors"].values()
        if any(type(size) is not int or size > 2**40 for shape in shapes for size in shape):
            return 0  # a text times a number is a long text
        counts = [math.prod(shape) for shape in shapes]
        if layout["codec"] == "int8":
            rows = [shape[0] if len(shape) > 1 else 1 for shape in shapes]
            size = sum(counts) + 4 * sum(rows)
        else:
            size = sum(counts) * {"fp32": 4, "bf16": 2}[layout["codec"]]
        return size if type(size) is int and 0 <= size <= most else 0
    except (TypeError, KeyError, AttributeError, IndexError, ValueError, OverflowError):
        return 0
