"""Many nodes in one process, for simulations and tests: loopback, and certificates for the day.

They are the nodes that a hospital runs, with all that they verify; only the machine is shared.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from fedapp.config_gossip import GossipSection
from fedapp.gossip.identity import Identity
from fedapp.gossip.membership import Member
from fedapp.gossip.node import GossipNode
from fedapp.gossip.throwaway import Authority
from fedapp.gossip.topology import Graph, Topology, neighbours


class LocalNodes(Mapping[str, GossipNode]):
    """Nodes by name, connected as a topology says; use it as ``async with``.

    Parameters
    ----------
    names : collection of str
    folder : Path
        Each node gets a store of its own below it.
    topology, degree, seed
        See `fedapp.gossip.topology.neighbours`.
    everybody : bool
        Whether a node wants everybody's updates, forwarded by its neighbours, or theirs alone.
    settings : GossipSection, optional
    run : str, optional
        By default a new one.
    lifetime : timedelta
        Of the certificates.

    Raises
    ------
    ConfigError
        If there is no such topology of so many nodes.
    """

    def __init__(
        self,
        names: Collection[str],
        folder: Path,
        *,
        topology: Topology = "full",
        degree: int = 4,
        seed: int = 0,
        everybody: bool = False,
        settings: GossipSection | None = None,
        run: str | None = None,
        lifetime: timedelta = timedelta(days=1),
    ) -> None:
        self.graph: Graph = neighbours(topology, names, degree=degree, seed=seed)
        self.run = run or secrets.token_hex(16)
        self._everybody, self._settings = everybody, settings or GossipSection()
        self._folders = {
            name: folder / f"node-{place}" for place, name in enumerate(sorted(self.graph))
        }
        authority = Authority.create()
        self._identities = {name: authority.issue(name, lifetime) for name in self.graph}
        self._nodes: dict[str, GossipNode] = {}

    def __getitem__(self, name: str) -> GossipNode:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def identity(self, name: str) -> Identity:
        """Return the certificate and key of a node, whether it runs or not."""
        return self._identities[name]

    async def __aenter__(self) -> Self:
        try:
            for name in sorted(self.graph):
                await self.start(name)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(self.stop(name) for name in list(self._nodes)))

    async def start(self, name: str) -> GossipNode:
        """Start a node, at a new address if it ran before, and introduce it to the others."""
        others = self.graph.keys() - {name}
        node = GossipNode(
            self._identities[name],
            [Member(other, self._address(other)) for other in self.graph],
            self.run,
            self._folders[name],
            neighbours=self.graph[name],
            origins=others if self._everybody else self.graph[name],
            settings=self._settings,
        )
        address = await node.start()
        self._nodes[name] = node
        for other in others & self._nodes.keys():
            self._nodes[other].meet(name, address)
        return node

    async def stop(self, name: str) -> None:
        """Close a node; its store stays for when it is started again."""
        await self._nodes.pop(name).close()

    def _address(self, name: str) -> str:
        return self._nodes[name].address if name in self._nodes else ""
