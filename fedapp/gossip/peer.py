"""A node that runs by itself until it is told to end: `fedapp peer`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol

from fedapp.errors import GossipError
from fedapp.gossip.identity import Identity
from fedapp.gossip.membership import Standing
from fedapp.gossip.node import GossipNode
from fedapp.gossip.start import Start

Say = Callable[[str], None]
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_CLOSE = 8.0  # seconds; whoever stops a service waits 10
_NOTABLE = 1.0  # seconds by which another site's clock differs
_LOOK = 1.0  # seconds between two looks at the round that the others are in


class Engine(Protocol):
    """What a node does besides answering its peers: it ends when there is nothing left to do."""

    async def run(self, node: GossipNode) -> None:
        """Publish and gather; cancelled when the process is told to end."""


class Relay:
    """Publishes nothing: keeps every site's updates and passes them on.

    It goes to the round in which half of its peers are, or a later one; a single peer that names
    a round far away does not lead it there.
    """

    async def run(self, node: GossipNode) -> None:
        """Follow the others from round to round, for ever."""
        while True:
            alive = (peer for peer in node.membership if node.membership.alive(peer.name))
            asked = sorted(peer.round for peer in alive if peer.round)
            newest = asked[(len(asked) - 1) // 2] if asked else 1
            if newest > node.round:
                await node.follow(newest)
            await asyncio.sleep(_LOOK)


async def run_peer(start: Start, engine: Engine | None = None, say: Say = print) -> None:
    """Run a site's node until its engine has done its work, SIGTERM or SIGINT.

    Parameters
    ----------
    start : Start
        From `fedapp.config_peer.load_peer`.
    engine : Engine, optional
        By default a `Relay`.
    say : callable
        Takes a line at a time.

    Raises
    ------
    IdentityError
        If a certificate is missing, expired or another's.
    GossipError
        If the port or the store cannot be used.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    await run_node(start, engine or Relay(), stop, say)


def load_identity(start: Start) -> Identity:
    """Return who the node is; raises IdentityError."""
    files = (start.path(what) for what in ("certificate", "key", "authority"))
    return Identity.load(*files, name=start.name)


async def run_node(start: Start, engine: Engine, stop: asyncio.Event, say: Say) -> None:
    """Run a site's node until its engine has done its work, or it is told to ``stop``.

    See `run_peer`; a caller that is cancelled has closed the node.
    """
    node = _node(start, load_identity(start))
    address = await node.start()
    work: list[asyncio.Task[object]] = []
    try:
        count = len(node.neighbours)
        say(
            f"{start.name} listens on {address}; {count} neighbour{'' if count == 1 else 's'}; "
            f"{start.store}"
        )
        work = [
            asyncio.create_task(engine.run(node)),
            asyncio.create_task(_report(node, start.status_interval, say)),
            asyncio.create_task(stop.wait()),
        ]
        await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        for task in work:
            if task.done():
                task.result()
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await _close(node)
    say(f"{start.name} has ended: {node.traffic.total().sentence()}")


def status(node: GossipNode) -> str:
    """Return one line: the round, who is alive and who is not, and what the round has cost."""
    peers = sorted((p for p in node.membership if p.name in node.neighbours), key=lambda p: p.name)
    alive = [p for p in peers if p.heard is not None and node.membership.alive(p.name)]
    silent = [p.name for p in peers if p not in alive]
    parts = [
        f"round {node.round}",
        f"alive: {', '.join(map(_with_clock, alive)) or 'nobody'}",
        *([f"silent: {', '.join(silent)}"] if silent else []),
        node.traffic.now.sentence(),
    ]
    return "; ".join(parts)


def _with_clock(peer: Standing) -> str:
    offset = peer.clock_offset or 0.0
    return f"{peer.name} (clock {offset:+.0f} s)" if abs(offset) >= _NOTABLE else peer.name


def _node(start: Start, identity: Identity) -> GossipNode:
    return GossipNode(
        identity,
        start.members,
        start.run,
        start.path("store"),
        listen=start.listen,
        advertise=start.announce,
        listeners=start.listeners,
        neighbours=start.neighbours,
        origins=start.origins,
        settings=start.settings,
    )


async def _report(node: GossipNode, interval: float, say: Say) -> None:
    while True:
        await asyncio.sleep(interval)
        say(status(node))


async def _close(node: GossipNode) -> None:
    try:
        async with asyncio.timeout(_CLOSE):
            await node.close()
    except TimeoutError:
        raise GossipError(
            f"the node did not close within {_CLOSE:g} s; what it had received is kept",
            site=node.name,
        ) from None
