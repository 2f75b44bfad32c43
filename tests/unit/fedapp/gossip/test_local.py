"""Many nodes in one process: rounds, restarts, forwarding, and that a payload comes once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from bad_web import LAYOUT, QUICK

from fedapp.errors import ConfigError, GossipError
from fedapp.gossip.local import LocalNodes

SIZE = 200_000


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 60))


def payload(name: str, round_: int) -> bytes:
    return f"{name} {round_} ".encode().ljust(64, b".") * (SIZE // 64)


async def one_round(nodes: LocalNodes, round_: int, minimum: int) -> dict[str, list[str]]:
    for name, node in nodes.items():
        await node.publish(round_, payload(name, round_), layout_digest=LAYOUT)
    gathered = await asyncio.gather(
        *(node.gather(round_, deadline=20, minimum=minimum) for node in nodes.values())
    )
    for updates in gathered:
        assert all(u.payload == payload(u.envelope.origin, round_) for u in updates)
    return {
        name: [u.envelope.origin for u in updates]
        for name, updates in zip(nodes, gathered, strict=True)
    }


def test_neighbours_alone_are_heard_and_each_payload_comes_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalNodes(
            "ABCDEFGH", tmp_path, topology="k-regular", degree=3, settings=QUICK
        ) as nodes:
            for round_ in (1, 2):
                heard = await one_round(nodes, round_, minimum=3)
                assert heard == {name: list(nodes.graph[name]) for name in nodes}
                for node in nodes.values():
                    traffic = node.traffic.rounds[round_]
                    assert traffic.payload_received == 3 * len(payload("A", round_))
        assert len(nodes) == 0

    run(main())


def test_in_a_ring_everybody_is_heard_through_others_and_each_payload_comes_once(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with LocalNodes(
            "ABCDE", tmp_path, topology="ring", everybody=True, settings=QUICK
        ) as nodes:
            heard = await one_round(nodes, 1, minimum=4)
            assert heard == {name: sorted(set("ABCDE") - {name}) for name in nodes}
            for node in nodes.values():
                assert node.traffic.rounds[1].payload_received == 4 * len(payload("A", 1))
                assert node.refusals.count == 0

    run(main())


def test_a_node_leaves_and_comes_back_at_another_address(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalNodes("ABC", tmp_path, settings=QUICK) as nodes:
            await one_round(nodes, 1, minimum=2)
            address = nodes["B"].address
            await nodes.stop("B")
            heard = await one_round(nodes, 2, minimum=1)
            assert heard == {"A": ["C"], "C": ["A"]}
            node = await nodes.start("B")
            assert node.address != address
            assert node.published == 1
            heard = await one_round(nodes, 3, minimum=2)
            assert heard["A"] == ["B", "C"]

    run(main())


def test_nobody_waits_for_a_peer_that_went_on_to_a_later_round(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalNodes("ABC", tmp_path, settings=QUICK) as nodes:
            await nodes["B"].follow(5)  # it was away, and came back where it will go on
            await nodes["C"].publish(1, payload("C", 1), layout_digest=LAYOUT)
            await nodes["C"].follow(2)  # it is done with round 1, and has offered its update
            began = time.monotonic()
            updates = await nodes["A"].gather(1, deadline=40, minimum=1)
            assert [update.envelope.origin for update in updates] == ["C"]
            assert time.monotonic() - began < 20
            assert nodes["A"].alive()["B"]

    run(main())


def test_stores_and_certificates_are_apart(tmp_path: Path) -> None:
    nodes = LocalNodes("AB", tmp_path)

    assert nodes.identity("A").name == "A"
    assert nodes.identity("A").certificate != nodes.identity("B").certificate
    with pytest.raises(ConfigError, match="two members are called"):
        LocalNodes(["A", "A"], tmp_path)


def test_a_node_that_cannot_start_ends_those_that_run(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "node-2").write_text("in the way")
        nodes = LocalNodes("ABC", tmp_path, settings=QUICK)
        with pytest.raises(GossipError, match="node-2"):
            await nodes.__aenter__()
        assert len(nodes) == 0

    run(main())
