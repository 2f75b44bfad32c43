"""Sixty-four nodes in one process: a round is completed, and bytes grow with neighbours alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bad_web import LAYOUT

from fedapp.gossip.local import LocalNodes

pytestmark = pytest.mark.slow

SIZE = 50_000


async def bytes_of_a_node(folder: Path, count: int, degree: int) -> float:
    """Run one round and return the bytes that a node received, on average."""
    names = [f"site {number}" for number in range(count)]
    async with LocalNodes(names, folder, topology="k-regular", degree=degree) as nodes:
        for place, node in enumerate(nodes.values()):
            await node.publish(1, bytes([place]) * SIZE, layout_digest=LAYOUT)
        gathered = await asyncio.gather(
            *(node.gather(1, deadline=120, minimum=degree) for node in nodes.values())
        )
        for name, updates in zip(nodes, gathered, strict=True):
            assert tuple(update.envelope.origin for update in updates) == nodes.graph[name]
        received = [node.traffic.rounds[1] for node in nodes.values()]
        assert {one.payload_received for one in received} == {degree * SIZE}
        return sum(one.received_bytes for one in received) / count


def test_bytes_of_a_node_grow_with_its_neighbours_and_not_with_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        small = await bytes_of_a_node(tmp_path / "small", 8, 4)
        large = await bytes_of_a_node(tmp_path / "large", 64, 4)
        dense = await bytes_of_a_node(tmp_path / "dense", 16, 8)
        assert large == pytest.approx(small, rel=0.25)  # questions and answers vary with the time
        assert dense == pytest.approx(2 * small, rel=0.25)

    asyncio.run(asyncio.wait_for(main(), 400))
