"""A word to a peer that this node does not ask: where it listens.

In a directed topology such a peer asks this node, and would look for it at its old address after a
restart elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedapp.errors import PeerError
from fedapp.gossip.backoff import Backoff
from fedapp.gossip.client import Client
from fedapp.gossip.membership import Standing

if TYPE_CHECKING:
    from fedapp.config_gossip import GossipSection

_LOG = logging.getLogger(__name__)


async def announce(
    peer: Standing,
    run: str,
    address: str,
    connect: Callable[[str, str], Client],
    settings: GossipSection,
) -> None:
    """Tell ``peer`` that this node listens at ``address``, until cancelled.

    Again and again: it may restart, and know the address of the consortium file alone.
    """
    backoff = Backoff(settings.backoff_base, settings.backoff_cap)
    while True:
        wait = backoff.next()
        if peer.address:
            client = connect(peer.name, peer.address)
            try:
                await client.digest(run, 0, (), (), address, 0.0)
                backoff.reset()
                wait = settings.dead_after
            except PeerError as error:
                _LOG.debug("%s", error)
            finally:
                await client.close()
        await asyncio.sleep(wait)
