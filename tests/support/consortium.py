"""Gossip nodes on loopback with throw-away certificates, in one event loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedapp.config_gossip import GossipSection
from fedapp.gossip import GossipNode, Member
from fedapp.gossip.throwaway import Authority

RUN = "0123456789abcdef" * 2
LAYOUT = "ab" * 32
QUICK = {
    "chunk_kib": 16,
    "connect_timeout": 2.0,
    "answer_timeout": 2.0,
    "digest_wait": 2.0,
    "chunk_timeout": 2.0,
    "backoff_base": 0.05,
    "backoff_cap": 0.2,
    "dead_after": 1.0,
}
"""Settings for tests: everything that is waited for comes soon."""


def settings(**changes: Any) -> GossipSection:
    """Return `QUICK` with some changes."""
    return GossipSection(**{**QUICK, **changes})


class Consortium:
    """Some sites with one authority; nodes learn each other's address as they start.

    Parameters
    ----------
    folder : Path
        Where the nodes' stores are.
    names : str
        One letter a site.
    """

    def __init__(self, folder: Path, names: str = "ABC") -> None:
        self.folder, self.names = folder, list(names)
        self.authority = Authority.create()
        self.identities = {name: self.authority.issue(name) for name in self.names}
        self.addresses: dict[str, str] = {}
        self.nodes: dict[str, GossipNode] = {}

    async def __aenter__(self) -> Consortium:
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self.nodes.values():
            await node.close()

    def node(self, name: str, **changes: Any) -> GossipNode:
        """Make the node of a site; arguments of `GossipNode` can be changed."""
        members = [Member(n, self.addresses.get(n, "")) for n in self.names]
        arguments = {"identity": self.identities[name], "members": members, "run": RUN,
                     "store": self.folder / name, "settings": settings()}  # fmt: skip
        return GossipNode(**{**arguments, **changes})

    async def start(self, name: str, **changes: Any) -> GossipNode:
        """Start the node of a site, see `node`; it is closed with the consortium."""
        node = self.node(name, **changes)
        self.addresses[name] = await node.start()
        self.nodes[name] = node
        return node
