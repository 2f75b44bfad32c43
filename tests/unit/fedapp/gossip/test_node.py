"""Nodes on loopback with real TLS: what one publishes, the others gather, verified."""

import asyncio

import pytest
from consortium import LAYOUT, RUN, Consortium

from fedapp.errors import ConfigError, GossipError, MissingReplies
from fedapp.gossip import GossipNode, Member


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_three_nodes_exchange_two_rounds(tmp_path):
    async def go():
        async with Consortium(tmp_path) as world:
            nodes = [await world.start(name) for name in "ABC"]
            for number in (1, 2):
                for node in nodes:
                    payload = f"{node.name}{number}".encode() * 20_000
                    await node.publish(number, payload, layout_digest=LAYOUT, codec="int8")
                gathered = [await n.gather(number, deadline=10, minimum=2) for n in nodes]
                for node, updates in zip(nodes, gathered, strict=True):
                    others = sorted(set("ABC") - {node.name})
                    assert [envelope.origin for envelope, _ in updates] == others
                    for envelope, payload in updates:
                        assert payload == f"{envelope.origin}{number}".encode() * 20_000
                        assert (envelope.round, envelope.run) == (number, RUN)
                        assert (envelope.layout_digest, envelope.codec) == (LAYOUT, "int8")
            for node in nodes:
                assert not node.refusals.all()
                traffic = node.traffic.rounds[1]
                assert traffic.payload_received == traffic.payload_sent == 2 * 40_000

    run(go())


def test_too_few_updates_at_the_deadline_are_told_by_name(tmp_path):
    async def go():
        async with Consortium(tmp_path) as world:
            node = await world.start("A")
            await node.publish(1, b"x", layout_digest=LAYOUT)
            with pytest.raises(MissingReplies, match=r"at least 1 are needed; missing: B.*C"):
                await node.gather(1, deadline=0.5, minimum=1)

    run(go())


def test_a_node_waits_no_longer_for_peers_that_it_does_not_hear(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A")
            loop = asyncio.get_running_loop()
            start = loop.time()
            assert await node.gather(1, deadline=20) == []
            assert 0.5 < loop.time() - start < 5  # dead after one second

    run(go())


def test_another_payload_for_a_published_round_is_refused_and_the_same_one_is_not(tmp_path):
    async def go():
        async with Consortium(tmp_path, "AB") as world:
            node = await world.start("A")
            first = await node.publish(1, b"x", layout_digest=LAYOUT)
            assert await node.publish(1, b"x", layout_digest=LAYOUT) == first
            with pytest.raises(GossipError, match="another update was published"):
                await node.publish(1, b"y", layout_digest=LAYOUT)
            with pytest.raises(GossipError, match="must have 1 to"):
                await node.publish(2, b"", layout_digest=LAYOUT)
            await node.publish(2, b"z", layout_digest=LAYOUT)
            with pytest.raises(GossipError, match="rounds only go up"):
                await node.gather(1, deadline=1)
            assert node.published == 2

    run(go())


@pytest.mark.parametrize(
    ("members", "changes", "finding"),
    [
        ("BC", {}, "has no site 'A'"),
        ("AAB", {}, "two peers with the name 'A'"),
        ("AB", {"neighbours": ["X"]}, "'X' is no other site"),
        ("AB", {"origins": ["A"]}, "'A' is no other site"),
        ("AB", {"listen": "unix:/tmp/x"}, "must be HOST:PORT"),
        ("AB", {"advertise": "dns:///x"}, "must be HOST:PORT"),
        ("AB", {"listen": "0.0.0.0:0"}, "no address that a peer could call"),
        ("AB", {"listeners": ["X"]}, "'X' is no other site"),
    ],
)
def test_names_and_addresses_that_do_not_fit_are_refused(tmp_path, members, changes, finding):
    world = Consortium(tmp_path, "A")

    with pytest.raises(ConfigError, match=finding):
        GossipNode(
            world.identities["A"], [Member(name) for name in members], RUN, tmp_path, **changes
        )
