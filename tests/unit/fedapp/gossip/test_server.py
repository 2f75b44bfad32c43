"""A node answers what makes sense and is in bounds, and says what is wrong with the rest."""

import asyncio
import os
import time

import grpc
import grpc.aio
import pytest
from consortium import LAYOUT, RUN, Consortium, settings

from fedapp.gossip.calls import DIGEST, MAX_LIST, MAX_REQUEST, PULL
from fedapp.gossip.names import dns_name
from fedapp.gossip.proto import gossip_pb2
from fedapp.gossip.signed import parse

PAYLOAD = os.urandom(50_000)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


class Caller:
    """A member that calls node A as it likes."""

    def __init__(self, world, node, name="B"):
        self.channel = grpc.aio.secure_channel(
            node.address,
            world.identities[name].channel_credentials(),
            [("grpc.ssl_target_name_override", dns_name("A"))],
        )

    async def digest(self, data, timeout=5):
        if not isinstance(data, bytes):
            data = data.SerializeToString()
        answer = await self.channel.unary_unary(DIGEST)(data, timeout=timeout)
        return gossip_pb2.DigestReply.FromString(answer)

    async def pull(self, request):
        call = self.channel.unary_stream(PULL)(request.SerializeToString(), timeout=5)
        return [piece async for piece in call]


def scene(work, **changes):
    async def go(folder):
        async with Consortium(folder) as world:
            node = await world.start("A", **changes)
            caller = Caller(world, node)
            try:
                await work(node, caller, world)
            finally:
                await caller.channel.close()

    return go


async def code(awaitable):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value.code().name, caught.value.details()


def request(**changes):
    return gossip_pb2.DigestRequest(**{"run": RUN, "round": 1, "origins": ["A"], **changes})


@pytest.mark.parametrize(
    ("data", "expected", "finding"),
    [
        (b"\xff\xff\xff", "INVALID_ARGUMENT", "cannot be read"),
        (request(run="f" * 32), "FAILED_PRECONDITION", "takes part in run"),
        (request(run="Zürich"), "FAILED_PRECONDITION", "takes part in run"),
        (request(origins=["Z"]), "INVALID_ARGUMENT", "members of the consortium"),
        (request(origins=["A"] * (MAX_LIST + 1)), "INVALID_ARGUMENT", "members of the consortium"),
        (request(have=[b"short"]), "INVALID_ARGUMENT", "identities of 32 bytes"),
        (request(have=[b"\0" * 32] * (MAX_LIST + 1)), "INVALID_ARGUMENT", "of each at most"),
        (b"\0" * (MAX_REQUEST + 1), "RESOURCE_EXHAUSTED", ""),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_a_sentence(
    tmp_path, data, expected, finding
):
    async def work(_, caller, __):
        name, details = await code(caller.digest(data))
        assert name == expected
        assert finding in details
        assert (await caller.digest(request())).entries == []  # the node goes on

    run(scene(work)(tmp_path))


def test_an_answer_waits_for_news_and_no_longer_than_both_sides_allow(tmp_path):
    async def work(node, caller, _):
        start = time.monotonic()
        assert (await caller.digest(request(wait=200))).entries == []
        assert 0.15 < time.monotonic() - start < 1.5
        assert (await caller.digest(request(wait=2**32 - 1))).entries == []
        assert time.monotonic() - start < 2.5  # digest_wait is 0.5 s

        asked = asyncio.create_task(caller.digest(request(wait=500)))
        await asyncio.sleep(0.1)
        envelope = await node.publish(1, PAYLOAD, layout_digest=LAYOUT)
        [entry] = (await asked).entries
        assert parse(entry).envelope == envelope.to_bytes()
        assert (await caller.digest(request(have=[envelope.id]))).entries == []
        assert (await caller.digest(request(round=2))).entries == []
        assert (await caller.digest(request(origins=["B"]))).entries == []

    run(scene(work, settings=settings(digest_wait=0.5))(tmp_path))


def test_a_reply_tells_the_clock(tmp_path):
    async def work(_, caller, __):
        assert abs((await caller.digest(request())).clock / 1000 - time.time()) < 5

    run(scene(work)(tmp_path))


def test_a_caller_tells_where_it_listens_and_which_round_it_is_in(tmp_path):
    async def work(node, caller, _):
        await caller.digest(request(address="b.example:77", round=9))
        assert (node.membership["B"].address, node.membership["B"].round) == ("b.example:77", 9)
        for bad in ("unix:/etc/passwd", "b.example", "b.example:0", "a b:1"):
            await caller.digest(request(address=bad))
        assert node.membership["B"].address == "b.example:77"
        assert node.membership["C"].address == ""

    run(scene(work)(tmp_path))


def test_a_pull_gives_the_manifest_and_the_chunks_from_the_offset_on(tmp_path):
    async def work(node, caller, _):
        envelope = await node.publish(1, PAYLOAD, layout_digest=LAYOUT)
        for offset in (0, 16384, 49152, 50_000):
            pieces = await caller.pull(
                gossip_pb2.PullRequest(run=RUN, envelope=envelope.id, offset=offset)
            )
            assert len(pieces[0]) == 4 * 32
            assert b"".join(pieces[1:]) == PAYLOAD[offset:]

    run(scene(work)(tmp_path))


@pytest.mark.parametrize("offset", [1, 16383, 50_001, 2**63])
def test_an_offset_within_a_chunk_or_beyond_the_end_is_refused(tmp_path, offset):
    async def work(node, caller, _):
        envelope = await node.publish(1, PAYLOAD, layout_digest=LAYOUT)
        name, _ = await code(
            caller.pull(gossip_pb2.PullRequest(run=RUN, envelope=envelope.id, offset=offset))
        )
        assert name == "OUT_OF_RANGE"

    run(scene(work)(tmp_path))


def test_an_update_that_is_not_here_or_of_another_run_is_told(tmp_path):
    async def work(node, caller, _):
        name, _ = await code(caller.pull(gossip_pb2.PullRequest(run=RUN, envelope=b"\0" * 32)))
        assert name == "NOT_FOUND"
        envelope = await node.publish(1, PAYLOAD, layout_digest=LAYOUT)
        name, _ = await code(caller.pull(gossip_pb2.PullRequest(run="x", envelope=envelope.id)))
        assert name == "FAILED_PRECONDITION"
        next((node._store.folder).glob("*.payload")).unlink()
        name, _ = await code(caller.pull(gossip_pb2.PullRequest(run=RUN, envelope=envelope.id)))
        assert name == "NOT_FOUND"

    run(scene(work)(tmp_path))


def test_a_peer_with_too_many_calls_at_a_time_is_refused_and_the_others_are_not(tmp_path):
    async def work(node, caller, world):
        others = [Caller(world, node) for _ in range(3)]  # connections of their own
        waiting = [asyncio.create_task(c.digest(request(wait=2000))) for c in [caller, *others[:1]]]
        await asyncio.sleep(0.3)
        name, details = await code(others[1].digest(request()))
        assert (name, details) == ("RESOURCE_EXHAUSTED", "a peer may have 2 calls at a time")
        assert (await Caller(world, node, "C").digest(request())).entries == []
        await node.publish(1, PAYLOAD, layout_digest=LAYOUT)
        await asyncio.gather(*waiting)
        assert len((await others[1].digest(request())).entries) == 1  # both places are free again
        for other in others:
            await other.channel.close()

    run(scene(work, settings=settings(calls_per_peer=2))(tmp_path))


def test_a_peer_that_does_not_take_what_it_asked_for_is_cut_off(tmp_path):
    async def work(node, caller, _):
        envelope = await node.publish(1, os.urandom(20_000_000), layout_digest=LAYOUT)
        pull = gossip_pb2.PullRequest(run=RUN, envelope=envelope.id).SerializeToString()
        call = caller.channel.unary_stream(PULL)(pull, timeout=10)
        await call.read()
        await asyncio.sleep(1.0)

        async def rest():
            while await call.read() is not grpc.aio.EOF:
                pass

        name, details = await code(rest())
        assert name == "DEADLINE_EXCEEDED"
        assert "was not taken for 0.3 s" in details
        assert node._server._door.calls["B"] == 0

    run(scene(work, settings=settings(chunk_timeout=0.3))(tmp_path))


def test_a_node_that_closes_says_so(tmp_path):
    async def work(node, caller, world):
        asked = asyncio.create_task(caller.digest(request(wait=2000)))
        await asyncio.sleep(0.2)
        start = time.monotonic()
        await node.close()
        assert time.monotonic() - start < 1.5
        assert (await asked).entries == []
        name, _ = await code(caller.digest(request()))
        assert name == "UNAVAILABLE"

    run(scene(work)(tmp_path))
