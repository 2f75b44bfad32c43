"""Partitions and outages in the middle of a transfer: nobody hangs, little is sent twice."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from bad_web import LAYOUT, QUICK, BadWeb

from fedapp.config_gossip import GossipSection
from fedapp.gossip.local import LocalNodes

pytestmark = pytest.mark.slow

LEFT, RIGHT = ("A", "B", "C", "D"), ("E", "F", "G", "H")
DEADLINE = 15.0


async def one_round(nodes: LocalNodes, round_: int, minimum: int) -> dict[str, set[str]]:
    """Everybody publishes and gathers; return whom each node heard, each payload compared."""
    payloads = {name: f"{name} {round_} ".encode() * 5000 for name in nodes}
    for name, node in nodes.items():
        await node.publish(round_, payloads[name], layout_digest=LAYOUT)
    gathered = await asyncio.gather(
        *(node.gather(round_, deadline=DEADLINE, minimum=minimum) for node in nodes.values())
    )
    for updates in gathered:
        for update in updates:
            assert update.envelope.round == round_
            assert update.payload == payloads[update.envelope.origin]
    return {
        name: {update.envelope.origin for update in updates}
        for name, updates in zip(nodes, gathered, strict=True)
    }


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_a_partition_for_three_rounds_and_its_end(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        async with (
            LocalNodes([*LEFT, *RIGHT], tmp_path, settings=QUICK) as nodes,
            BadWeb(nodes) as web,
        ):
            everybody = set(nodes)
            heard = await one_round(nodes, 1, minimum=7)
            assert all(heard[name] == everybody - {name} for name in nodes)
            torn = web.between(LEFT, RIGHT)
            for link in torn:
                getattr(link, how)()
            for round_ in (2, 3, 4):
                began = time.monotonic()
                heard = await one_round(nodes, round_, minimum=3)
                assert time.monotonic() - began < DEADLINE / 2
                for half in (LEFT, RIGHT):
                    assert all(heard[name] == set(half) - {name} for name in half)
            assert not any(nodes["A"].alive()[name] for name in RIGHT)
            for link in torn:
                link.mend()
            async with asyncio.timeout(20):
                while not all(all(node.alive().values()) for node in nodes.values()):
                    await asyncio.sleep(0.1)
            heard = await one_round(nodes, 5, minimum=7)
            assert all(heard[name] == everybody - {name} for name in nodes)
            assert all(node.refusals.count == 0 for node in nodes.values())

    asyncio.run(asyncio.wait_for(main(), 120))


async def outage(
    folder: Path, settings: GossipSection, size: int, seconds: float, how: str
) -> None:
    """Let a link of 4 Mbit/s fail in the middle of a payload, and count what crosses it."""
    payload = os.urandom(size)
    async with (
        LocalNodes("AB", folder, settings=settings) as nodes,
        BadWeb(nodes, megabits=4) as web,
    ):
        link = web.links["B", "A"]
        await nodes["A"].publish(1, payload, layout_digest=LAYOUT)
        gathering = asyncio.create_task(
            nodes["B"].gather(1, deadline=seconds + 120 + size * 8 / 4e6, minimum=1)
        )
        await link.passed(size * 2 // 5)
        getattr(link, how)()
        await asyncio.sleep(seconds)
        assert not gathering.done()
        before = link.down
        link.mend()
        (update,) = await gathering

        assert update.payload == payload
        # Bytes of the link itself, whatever the nodes count: TLS, HTTP/2 and questions are less
        # than 2 %, and a chunk that had begun comes again.
        chunk = settings.chunk
        assert link.down < size * 1.02 + chunk + 100_000
        assert link.down - before < size * 3 / 5 * 1.02 + chunk + 100_000
        assert nodes["B"].traffic.total().resent <= chunk
        assert nodes["B"].refusals.count == 0


@pytest.mark.parametrize("how", ["cut", "silence"])
def test_an_outage_in_the_middle_of_a_transfer_costs_a_chunk_at_most(
    tmp_path: Path, how: str
) -> None:
    asyncio.run(asyncio.wait_for(outage(tmp_path, QUICK, 1_500_000, 3.0, how), 90))


@pytest.mark.chaos
def test_an_outage_of_a_minute_with_the_settings_of_a_hospital(tmp_path: Path) -> None:
    asyncio.run(
        asyncio.wait_for(outage(tmp_path, GossipSection(), 6_000_000, 60.0, "silence"), 300)
    )
