"""What a gathering waits for stays in memory, whole and within a budget, and nothing else does."""

import asyncio
import os
from contextlib import ExitStack

import pytest
from consortium import LAYOUT, Consortium, settings
from memory import peak

from fedapp.gossip.handover import Handover

from .test_node import run

DATA = os.urandom(100)


@pytest.fixture
def waiting():
    handover = Handover(250)
    with handover.gathering():
        yield handover


def bring(handover, identity=b"x", data=DATA, piece=30):
    handover.begin(identity, len(data))
    for start in range(0, len(data), piece):
        handover.add(identity, data[start : start + piece])
    handover.finish(identity)


def test_a_whole_payload_is_given_once(waiting):
    bring(waiting)

    assert waiting.take(b"x") == DATA
    assert waiting.take(b"x") is None


def test_nothing_is_kept_while_nobody_gathers():
    handover = Handover(250)
    bring(handover)

    assert handover.take(b"x") is None


def test_what_lacks_a_part_is_not_given(waiting):
    waiting.begin(b"x", 100)
    waiting.add(b"x", DATA[:99])
    assert waiting.take(b"x") is None
    waiting.finish(b"x")
    assert waiting.take(b"x") is None


def test_beyond_the_budget_nothing_is_kept_until_something_is_taken(waiting):
    bring(waiting, b"x")
    bring(waiting, b"y")
    bring(waiting, b"z")
    assert waiting.take(b"z") is None

    assert waiting.take(b"x") == DATA
    bring(waiting, b"z")
    assert waiting.take(b"z") == DATA


def test_the_last_gathering_takes_what_is_left_with_it():
    handover = Handover(250)
    with ExitStack() as both:
        both.enter_context(handover.gathering())
        with handover.gathering():
            bring(handover, b"x")
        handover.begin(b"y", 100)
        handover.add(b"y", DATA[:50])
    with handover.gathering():
        handover.add(b"y", DATA[50:])  # a transfer that began before
        handover.finish(b"y")
        assert (handover.take(b"x"), handover.take(b"y")) == (None, None)
        bring(handover, b"z", bytes(250))  # all of the budget is free again
        assert handover.take(b"z") == bytes(250)


def test_a_payload_is_in_memory_once():
    handover = Handover(10**8)
    piece, size = bytes(10**6), 5 * 10**7

    def bring_and_take():
        handover.begin(b"x", size)
        for _ in range(50):
            handover.add(b"x", piece)
        handover.finish(b"x")
        handover.take(b"x")

    with handover.gathering():
        assert size <= peak(bring_and_take) < 1.1 * size


@pytest.mark.parametrize(("megabytes", "reads"), [(1, 0), (0.01, 1), (0, 1)])
def test_what_a_gathering_waited_for_is_not_read_again(tmp_path, monkeypatch, megabytes, reads):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            a = await world.start("A", settings=settings(gather_mb=megabytes))
            b = await world.start("B")
            read, entries = a._store.read, []
            monkeypatch.setattr(a._store, "read", lambda e: entries.append(e) or read(e))
            data = os.urandom(70_000)
            task = asyncio.create_task(a.gather(1, deadline=10, minimum=1))
            await asyncio.sleep(0.2)  # it waits
            await b.publish(1, data, layout_digest=LAYOUT)
            ((envelope, payload),) = await task
            assert payload == data
            assert type(payload) is bytes
            assert len(entries) == reads
            assert a._store.get(envelope.id).path.read_bytes() == data

    run(go())
