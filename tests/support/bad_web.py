"""Nodes in one process with a bad link between every two of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from slow_link import SlowLink

from fedapp.config_gossip import GossipSection
from fedapp.gossip.local import LocalNodes

LAYOUT = "ab" * 32
QUICK = GossipSection(
    chunk_kib=64,
    connect_timeout=1.0,
    digest_wait=0.5,
    answer_timeout=1.0,
    chunk_timeout=1.0,
    keepalive=1.0,
    backoff_base=0.05,
    backoff_cap=0.3,
    dead_after=2.0,
)


class BadWeb:
    """A `SlowLink` for each node and each of those that it pulls from.

    Parameters
    ----------
    nodes : LocalNodes
        Started already.
    megabits : float, optional
        Of every link.
    """

    def __init__(self, nodes: LocalNodes, megabits: float | None = None) -> None:
        self._nodes, self._megabits = nodes, megabits
        self._stack = AsyncExitStack()
        self.links: dict[tuple[str, str], SlowLink] = {}

    async def __aenter__(self) -> BadWeb:
        for name in self._nodes:
            for other in self._nodes.graph[name]:
                link = SlowLink(self._nodes[other].address, self._megabits)
                self.links[name, other] = await self._stack.enter_async_context(link)
        # Nothing may run in between: what a peer tells of its address would lead past the link.
        for (name, other), link in self.links.items():
            self._nodes[name].meet(other, link.address)
        for node in self._nodes.values():
            node.membership.move = lambda *_: False  # type: ignore[method-assign]
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._stack.aclose()

    def between(self, one: Iterable[str], other: Iterable[str]) -> list[SlowLink]:
        """Return the links from one group to the other, both ways."""
        one, other = set(one), set(other)
        return [
            link
            for (a, b), link in self.links.items()
            if (a in one and b in other) or (a in other and b in one)
        ]
