"""What a site can do wrong, by name: the product's client app, with one fault at one place.

Copied into the app of `faulty_app`; imports nothing but Flower, numpy and the product.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message

import client_app.local_round as round_module
from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import Packed, pack
from fedapp.exchange import Reply
from fedapp.wire import content_to_reply, reply_to_content

SECRET = "Jane Roe, 47"
"""Stands for what an exception may quote of a record."""

OUT_OF_MEMORY = "takes more memory than there is in "
"""The fault whose name ends with the path of a group of `cgroups.little_memory`."""

Answer = Callable[[Message, Context], Message]


def answer(fault: str, seconds: float, honest: Answer, message: Message, context: Context) -> Any:
    """Answer a training message with a fault; ``seconds`` is how long a site hangs."""
    if fault == "raises in its app":
        raise RuntimeError("cannot serve")
    if fault == "hangs":
        time.sleep(seconds)
    if fault.startswith(OUT_OF_MEMORY):
        during = _at_a_step(lambda: _take_memory(Path(fault.removeprefix(OUT_OF_MEMORY))))
    else:
        during = DURING[fault]() if fault in DURING else _as_usual()
    with during:
        replied = honest(message, context)
    if fault in REPLIES:
        changed = REPLIES[fault](content_to_reply(replied.content))
        return Message(reply_to_content(changed), reply_to=message)
    if fault == "dtype":
        record = replied.content["payload.adapter"]["flat"]
        array = Array("float32", record.shape, record.stype, record.data)
        replied.content["payload.adapter"] = ArrayRecord({"flat": array})
    return replied


# ---- while it trains ------------------------------------------------------------------------


@contextmanager
def _as_usual() -> Iterator[None]:
    yield


@contextmanager
def _at_a_step(strike: Callable[[], None]) -> Iterator[None]:
    """Let ``strike`` happen after the first optimiser step."""
    honest = round_module.train

    def train(*arguments: Any, **options: Any) -> Any:
        return honest(*arguments, **{**options, "report": lambda *step: strike()})

    round_module.train = train
    try:
        yield
    finally:
        round_module.train = honest


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _take_memory(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
    taken = [b"x" * 2**28 for _ in range(4)]
    raise AssertionError(f"the kernel has let {len(taken)} blocks pass")


def _raise() -> None:
    raise ValueError(f"cannot train on {SECRET}")


DURING = {
    "is killed": lambda: _at_a_step(_die),
    "raises in training": lambda: _at_a_step(_raise),
}

# ---- what it sends --------------------------------------------------------------------------


def _changed(change: Callable[[Adapter], Adapter]) -> Callable[[Reply], Reply]:
    def fault(reply: Reply) -> Reply:
        packed = pack(change(reply.payloads["adapter"].unpack()))
        return replace(reply, payloads={"adapter": packed})

    return fault


def _poisoned(value: float) -> Callable[[Reply], Reply]:
    def change(adapter: Adapter) -> Adapter:
        first = next(iter(adapter.pairs))

        def poison(name: str, array: Any) -> Any:
            array = array.copy()
            if name == f"{first}.lora_B":
                array[0, 0] = value
            return array

        return adapter.map(poison)

    return _changed(change)


def _reshaped(adapter: Adapter) -> Adapter:
    tensors = {
        name: np.zeros((3, *array.shape), np.float32) for name, array in adapter.tensors.items()
    }
    return Adapter(adapter.pairs, tensors)


def _reranked(adapter: Adapter) -> Adapter:
    return Adapter(
        {
            name: LoraPair(pair.b_mr[:, 1:].copy(), pair.a_rn[1:].copy(), pair.scaling)
            for name, pair in adapter.pairs.items()
        },
        adapter.tensors,
    )


def _swollen(adapter: Adapter) -> Adapter:
    return Adapter(adapter.pairs, {**adapter.tensors, "more": np.zeros(10**6, np.float32)})


def _flipped(reply: Reply) -> Reply:
    packed = reply.payloads["adapter"]
    array = packed.array.copy()
    array[5] ^= 1
    return replace(reply, payloads={"adapter": Packed(array, packed.layout)})


def _in_bf16(reply: Reply) -> Reply:
    return replace(reply, payloads={"adapter": pack(reply.payloads["adapter"].unpack(), "bf16")})


REPLIES: dict[str, Callable[[Reply], Reply]] = {
    "nan": _poisoned(float("nan")),
    "inf": _poisoned(float("-inf")),
    "too large": _poisoned(3e6),
    "shape": _changed(_reshaped),
    "rank": _changed(_reranked),
    "names": _changed(lambda adapter: Adapter(adapter.pairs)),
    "codec": _in_bf16,
    "digest": _flipped,
    "oversized": _changed(_swollen),
    "round": lambda reply: replace(reply, round=reply.round - 1),
    "zero weight": lambda reply: replace(reply, weight=0.0),
    "negative weight": lambda reply: replace(reply, weight=-1.0),
    "nan loss": lambda reply: replace(
        reply,
        metrics={key: {**table, "loss": float("nan")} for key, table in reply.metrics.items()},
    ),
    "nothing": lambda reply: replace(reply, payloads={}),
}
