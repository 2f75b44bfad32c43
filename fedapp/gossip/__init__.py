"""The gossip layer: hospitals exchange signed updates directly, over mutual TLS, with no server."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedapp.gossip.envelope import Envelope
    from fedapp.gossip.ledger import Ledger
    from fedapp.gossip.membership import Member
    from fedapp.gossip.node import GossipNode, Update

__all__ = ["Envelope", "GossipNode", "Ledger", "Member", "Update"]

_HOMES = {
    "Envelope": "envelope",
    "GossipNode": "node",
    "Ledger": "ledger",
    "Member": "membership",
    "Update": "node",
}


def __getattr__(name: str) -> Any:
    # A report reads a ledger and needs no gRPC.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
