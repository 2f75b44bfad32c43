"""A node alone: the relay follows the others' rounds, and the status line tells what it knows."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bad_web import LAYOUT, QUICK

from fedapp.gossip.local import LocalNodes
from fedapp.gossip.peer import Relay, status


def test_a_relay_goes_where_the_others_are_and_passes_on_what_they_make(tmp_path: Path) -> None:
    async def main() -> None:
        # A and C know each other through the relays B and D alone.
        nodes = LocalNodes("ABCD", tmp_path, topology="ring", everybody=True, settings=QUICK)
        async with nodes:
            relays = [asyncio.create_task(Relay().run(nodes[name])) for name in "BD"]
            for round_ in (5, 6):  # the relays come late: rounds 1 to 4 are over
                for name in "AC":
                    await nodes[name].publish(
                        round_, f"{name}{round_}".encode(), layout_digest=LAYOUT
                    )
                gathered = await asyncio.gather(
                    *(nodes[name].gather(round_, deadline=2, minimum=1) for name in "AC")
                )
                heard = [[(u.envelope.origin, u.payload) for u in updates] for updates in gathered]
                assert heard == [[("C", f"C{round_}".encode())], [("A", f"A{round_}".encode())]]
            assert not any(relay.done() for relay in relays)
            for relay in relays:
                relay.cancel()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_one_peer_alone_does_not_lead_a_relay_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with LocalNodes("ABCD", tmp_path, settings=QUICK) as nodes:
            relay = asyncio.create_task(Relay().run(nodes["A"]))
            await nodes["B"].follow(1_000_000)
            await nodes["C"].follow(3)
            async with asyncio.timeout(20):
                while nodes["A"].membership["B"].round < 1_000_000:
                    await asyncio.sleep(0.05)
                while nodes["A"].round != 3:
                    assert nodes["A"].round in (0, 1, 3)
                    await asyncio.sleep(0.05)
            relay.cancel()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_status_line_names_who_is_alive_and_clocks_that_differ(tmp_path: Path) -> None:
    async def main() -> None:
        nodes = LocalNodes("ABC", tmp_path, settings=QUICK)
        await nodes.start("A")
        await nodes.start("B")
        async with asyncio.timeout(10):
            while nodes["A"].membership["B"].clock_offset is None:
                await asyncio.sleep(0.02)
        assert status(nodes["A"]).startswith("round 0; alive: B; silent: C; sent ")
        nodes["A"].membership["B"].clock_offset = -90.0
        assert "alive: B (clock -90 s); silent: C" in status(nodes["A"])
        await nodes.stop("A")
        await nodes.stop("B")

    asyncio.run(asyncio.wait_for(main(), 60))
