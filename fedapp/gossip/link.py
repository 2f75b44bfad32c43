"""The standing connection to one neighbour: is it well, what does it have, again and again.

A node asks; nobody pushes. The neighbour keeps its answer back until it has news, so that waiting
costs next to nothing and news comes at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedapp.errors import PeerError
from fedapp.gossip.backoff import Backoff
from fedapp.gossip.calls import MAX_ENTRIES, MAX_LIST
from fedapp.gossip.client import Answer, Client
from fedapp.gossip.inbox import Inbox
from fedapp.gossip.membership import Membership
from fedapp.gossip.news import News

if TYPE_CHECKING:
    from fedapp.config_gossip import GossipSection

_LOG = logging.getLogger(__name__)


class Link:
    """What one neighbour is asked, and by whom: `run` until it is cancelled.

    Parameters
    ----------
    name : str
        The neighbour.
    membership : Membership
    inbox : Inbox
        Takes what the neighbour offers.
    connect : callable
        Makes a `Client` for a name and an address.
    settings : GossipSection
    address : callable
        Returns where this node listens, which the neighbour is told.
    """

    def __init__(
        self,
        name: str,
        membership: Membership,
        inbox: Inbox,
        connect: Callable[[str, str], Client],
        settings: GossipSection,
        address: Callable[[], str],
    ) -> None:
        self.name = name
        self.client: Client | None = None
        self._membership, self._inbox, self._connect = membership, inbox, connect
        self._settings, self._address = settings, address
        self._wake = News()
        self._backoff = Backoff(settings.backoff_base, settings.backoff_cap)
        self._round = 0
        self._told: set[bytes] = set()  # what this neighbour has offered in this round

    def wake(self) -> None:
        """The round or the neighbour's address has changed."""
        self._wake.tell()

    def ask_anew(self) -> None:
        """Something that this neighbour offered is lost: let it offer everything again."""
        self._told.clear()
        self._wake.tell()

    async def run(self) -> None:
        """Keep asking."""
        try:
            while True:
                seen = self._wake.count
                try:
                    await self._talk()
                except PeerError as error:
                    self._note(error)
                    await self._wake.wait(seen, self._backoff.next())
                except Exception as error:
                    # A mistake of this code, which must not cost the neighbour for good.
                    _LOG.exception("the link to %s failed", self.name)
                    self._membership.failed(self.name, f"unexpected {type(error).__name__}")
                    await self._wake.wait(seen, self._backoff.next())
        finally:
            await self._hang_up()

    async def _talk(self) -> None:
        peer = self._membership[self.name]
        if not peer.address:
            raise PeerError("its address is not known until it calls", site=self.name)
        if self.client is None or self.client.address != peer.address:
            await self._hang_up()
            self.client = self._connect(self.name, peer.address)
        await self.client.check_health()
        self._membership.heard(self.name)
        while self.client.address == peer.address:
            asked = time.monotonic()
            answer = await self._ask(self.client)
            if answer is None:
                continue
            self._membership.heard(self.name)
            self._watch_clock(answer.clock_offset)
            patient = time.monotonic() - asked > self._settings.digest_wait / 2
            if self._offer(answer) or patient:
                self._backoff.reset()
            else:  # nothing new, nothing good, or at once: not as fast as the peer would like
                await asyncio.sleep(self._backoff.next())
            if not answer.entries:
                await self.client.check_health()

    async def _ask(self, client: Client) -> Answer | None:
        """Return the neighbour's answer; None if the question has changed meanwhile."""
        seen = self._wake.count
        if self._round != self._inbox.round or len(self._told) > MAX_LIST - MAX_ENTRIES:
            self._round = self._inbox.round
            self._told.clear()
        have = self._told | self._inbox.held()
        call = asyncio.ensure_future(
            client.digest(
                self._inbox.run,
                self._round,
                self._inbox.origins,
                have,
                self._address(),
                self._settings.digest_wait,
            )
        )
        woken = asyncio.ensure_future(self._wake.wait(seen))
        both: set[asyncio.Future[Any]] = {call, woken}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return call.result() if call.done() else None
        finally:
            for future in both:
                future.cancel()

    def _offer(self, answer: Answer) -> bool:
        """Give the inbox what came; return whether it was new and all of it acceptable."""
        told = len(self._told)
        for entry in answer.entries:
            identity, accepted = self._inbox.consider(self.name, self._round, entry)
            self._told.add(identity)
            if not accepted:
                return False  # the rest comes again, after a pause
        return len(self._told) > told

    def _watch_clock(self, offset: float) -> None:
        peer, tolerance = self._membership[self.name], self._settings.clock_skew
        before, peer.clock_offset = peer.clock_offset, offset
        if abs(offset) > tolerance >= abs(before or 0.0):
            _LOG.warning(
                "the clock of %s is %+.0f s from this node's, %.0f s are tolerated: updates will "
                "be refused; set one of the clocks",
                self.name,
                offset,
                tolerance,
            )

    def _note(self, error: PeerError) -> None:
        first = not self._membership[self.name].failures
        self._membership.failed(self.name, error.message)
        known = bool(self._membership[self.name].address)
        _LOG.log(logging.WARNING if first and known else logging.DEBUG, "%s", error)

    async def _hang_up(self) -> None:
        if self.client is not None:
            client, self.client = self.client, None
            await client.close()
