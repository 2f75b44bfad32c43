"""Real peers: a relay killed in the middle of a transfer, two peers with one name, a full disk."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bad_web import LAYOUT, QUICK
from desk import wait_for_line
from disks import tmpfs
from engine_peer import expected
from peers import PeerProcesses, free_port, terminate
from slow_link import SlowLink

from fedapp.errors import MissingReplies
from fedapp.gossip.ledger import read_ledger
from fedapp.gossip.local import LocalNodes

pytestmark = [pytest.mark.slow, pytest.mark.chaos]


async def wait_for(found: Callable[[], bool], patience: float = 60.0) -> None:
    async with asyncio.timeout(patience):
        while not found():
            await asyncio.sleep(0.02)


def test_a_relay_that_is_killed_in_the_middle_goes_on_from_what_its_disk_has(
    tmp_path: Path,
) -> None:
    """A and C know each other through the relay B alone; D, the other way round, is not there."""
    size = 3_000_000
    trainer = ("--size", str(size), "--rounds", "1", "--deadline", "300")

    async def story() -> None:
        port = free_port()
        async with SlowLink(f"127.0.0.1:{port}", megabits=8) as link:
            with PeerProcesses(
                tmp_path, "ABCD", topology="ring", addresses={"A": link.address}, relays="BD"
            ) as sites:
                sites.ports["A"] = port
                sites.write_site("A")
                sites.trainer("A", *trainer)
                relay = sites.peer("B")
                await link.passed(size // 2)
                assert list(sites.store("B").glob("*.part"))
                relay.send_signal(signal.SIGKILL)
                await asyncio.to_thread(relay.wait, 10)
                last, relay = sites.trainer("C", *trainer), sites.peer("B")

                await asyncio.to_thread(wait_for_line, last, '"heard": ["A"]')
                ends = await asyncio.to_thread(terminate, sites.processes[0], relay, last)

                assert [(code, errors) for code, _, errors in ends] == [(0, "")] * 3
                got = {path.read_bytes() for path in sites.store("C").glob("*.payload")}
                assert got == {expected("A", 1, size), expected("C", 1, size)}
                assert link.down < size * 1.02 + 64 * 1024 + 150_000

    asyncio.run(asyncio.wait_for(story(), 150))


def test_two_peers_with_one_name_are_noticed_and_count_once(tmp_path: Path) -> None:
    with PeerProcesses(tmp_path, "ABC") as sites:
        rounds = ("--size", "100000", "--rounds", "4", "--pace", "0.5")
        honest = [sites.trainer(name, *rounds) for name in "ABC"]
        twin = sites.double("B", *rounds)
        asyncio.run(
            wait_for(
                lambda: all(
                    (sites.folder(name) / "ledger.jsonl").exists()
                    and len(read_ledger(sites.folder(name) / "ledger.jsonl")) == 4
                    for name in "ABC"
                )
            )
        )
        ends = terminate(*honest, twin)

        assert [(code, errors) for code, _, errors in ends] == [(0, "")] * 4
        said = "".join(output for _, output, _ in ends)
        assert "another node signs updates with this site's name" in said
        for name in "AC":
            for entry in read_ledger(sites.folder(name) / "ledger.jsonl"):
                assert [heard.origin for heard in entry.heard].count("B") <= 1
                assert {heard.origin for heard in entry.heard} >= set("AC") - {name}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB in memory, where node B has its store; needs the right to mount."""
    with tmpfs(tmp_path / "node-1") as place:
        yield place


def test_a_full_disk_is_one_nodes_trouble_and_ends_when_there_is_room(
    tmp_path: Path, small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large, small = bytes(3_000_000), b"s" * 100_000

    async def story() -> None:
        async with LocalNodes("ABC", tmp_path, settings=QUICK) as nodes:
            for name, payload in zip("ABC", (large, small, small[1:]), strict=True):
                await nodes[name].publish(1, payload, layout_digest=LAYOUT)
            began = time.monotonic()
            full = asyncio.create_task(nodes["B"].gather(1, deadline=2, minimum=2))
            for name in "AC":
                assert len(await nodes[name].gather(1, deadline=20, minimum=2)) == 2
            with pytest.raises(MissingReplies, match=r"site B, round 1: 1 updates of others"):
                await full
            assert time.monotonic() - began < 20
            assert "No space left on device" in caplog.text
            resize = ["mount", "-o", "remount,size=16m", str(small_disk)]
            await asyncio.to_thread(subprocess.run, resize, check=True)

            updates = await nodes["B"].gather(1, deadline=20, minimum=2)
            assert [u.payload for u in updates] == [large, small[1:]]

    asyncio.run(asyncio.wait_for(story(), 90))
