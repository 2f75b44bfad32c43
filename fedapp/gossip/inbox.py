"""What neighbours offer of the present round: verified, received once, from whoever has it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedapp.errors import EnvelopeRefused, PeerError, StoreError
from fedapp.gossip.backoff import Backoff
from fedapp.gossip.client import Client
from fedapp.gossip.news import News
from fedapp.gossip.pull import pull
from fedapp.gossip.refusals import Refusals
from fedapp.gossip.replay import ReplayGuard
from fedapp.gossip.signed import Rules, Signed, parse, verify
from fedapp.gossip.store import Store
from fedapp.gossip.trust import Trust

if TYPE_CHECKING:
    from fedapp.config_gossip import GossipSection

_LOG = logging.getLogger(__name__)


@dataclass
class _Offer:
    """A verified envelope whose payload is on its way, and who has it."""

    signed: Signed
    sources: list[str]
    more: News = field(default_factory=News)  # another source has come
    hurry: float = 0.0  # seconds for a chunk while somebody else has it too
    task: asyncio.Task[None] | None = None


class Inbox:
    """The updates of one round, from the offers to the store.

    Parameters
    ----------
    own : str
        This node's name.
    origins : collection of str
        Whose updates are wanted.
    trust : Trust
    rules : Rules
    store : Store
    guard : ReplayGuard
    refusals : Refusals
    news : News
        Told when the store has another update.
    client : callable
        Returns the present `Client` of a neighbour, or None while it has none.
    settings : GossipSection
    """

    def __init__(
        self,
        own: str,
        origins: Collection[str],
        trust: Trust,
        rules: Rules,
        store: Store,
        guard: ReplayGuard,
        refusals: Refusals,
        news: News,
        client: Callable[[str], Client | None],
        settings: GossipSection,
    ) -> None:
        self.run, self.round = rules.run, 0
        # Its own name too, so that another node under it is noticed.
        self.origins = sorted({*origins, own})
        self._own, self._trust, self._rules = own, trust, rules
        self._store, self._guard, self._refusals = store, guard, refusals
        self._news, self._client, self._settings = news, client, settings
        self._offers: dict[bytes, _Offer] = {}
        self._given_up: dict[str, bytes] = {}  # by origin: what nobody gave as it was signed
        self._slots = asyncio.Semaphore(settings.max_pulls)
        self._busy: dict[str, asyncio.Lock] = {}
        self._closing = False

    def open_round(self, round: int) -> None:
        """Want the updates of ``round`` from now on, and no others."""
        if round == self.round:
            return
        self.round = round
        self._stop()

    async def close(self) -> None:
        """Stop receiving; what has come in stays in the store."""
        self._closing = True
        tasks = self._stop()
        await asyncio.gather(*tasks, return_exceptions=True)

    def held(self) -> set[bytes]:
        """Return the identities of this round's envelopes that are here."""
        return {entry.signed.id for entry in self._store.find(self.round, self.origins)}

    def sources(self, origin: str) -> set[str]:
        """Return who offers an update of ``origin`` that is on its way."""
        offers = [o for o in self._offers.values() if o.signed.envelope.origin == origin]
        return {source for offer in offers for source in offer.sources}

    def consider(self, peer: str, round: int, entry: bytes) -> tuple[bytes, bool]:
        """Take or refuse what ``peer`` offered when it was asked for ``round``.

        Returns
        -------
        bytes
            The envelope's identity; of what cannot be read, its digest.
        bool
            Whether it was acceptable.
        """
        try:
            message = parse(entry)
        except EnvelopeRefused as error:
            self._refuse(peer, error)
            return hashlib.sha256(entry).digest(), False
        identity = hashlib.sha256(message.envelope).digest()
        if round != self.round or self._store.get(identity) is not None:
            return identity, True
        if identity in self._offers:
            offer = self._offers[identity]
            if peer not in offer.sources:
                offer.sources.append(peer)
                offer.more.tell()
            return identity, True
        try:
            signed = verify(message, self._trust, self._rules, time.time())
            self._check_wanted(signed)
        except EnvelopeRefused as error:
            self._refuse(peer, error)
            return identity, False
        offer = _Offer(signed, [peer], hurry=self._settings.answer_timeout)
        self._offers[identity] = offer
        offer.task = asyncio.create_task(self._fetch(offer))
        return identity, True

    def _check_wanted(self, signed: Signed) -> None:
        envelope = signed.envelope

        def refuse(reason: str, sentence: str) -> EnvelopeRefused:
            return EnvelopeRefused(
                sentence, reason=reason, site=envelope.origin, round=envelope.round
            )

        if envelope.origin not in self.origins or envelope.round != self.round:
            raise refuse(
                "wrong-round",
                f"the update is of round {envelope.round}, asked for were those of round "
                f"{self.round} by {len(self.origins)} sites",
            )
        if envelope.origin == self._own:
            if self._store.find(self.round, [self._own]):
                raise refuse(
                    "own-name",
                    "another node signs updates with this site's name and key; stop one of them",
                )
            raise refuse(
                "second-update",
                "this site published an update in this round before, and does not know it any "
                "more; its peers have it",
            )
        self._guard.check(envelope)
        first = self._given_up.get(envelope.origin, signed.id)
        if self.sources(envelope.origin) or first != signed.id:
            raise refuse(
                "second-update",
                f"the origin signed two updates for round {envelope.round}, the first counts; two "
                "nodes may run under one name, stop one of them",
            )

    async def _fetch(self, offer: _Offer) -> None:
        backoff = Backoff(self._settings.backoff_base, self._settings.backoff_cap)
        envelope = offer.signed.envelope
        failed: set[str] = set()
        try:
            while offer.sources:
                seen = offer.more.count
                source = self._choose(offer, failed)
                try:
                    await self._pull_from(source, offer)
                    self._guard.admit(envelope)
                    self._news.tell()
                    return
                except EnvelopeRefused as error:
                    self._refuse(source, error)
                    offer.sources.remove(source)
                except (PeerError, StoreError) as error:
                    failed.add(source)
                    if failed >= set(offer.sources):
                        failed.clear()
                        offer.hurry *= 2  # all of them are slow: perhaps this node is
                        _LOG.warning("%s", error)
                        await offer.more.wait(seen, backoff.next())
            # The right chunks stay for whoever offers the rest; others of this origin do not come.
            self._given_up[envelope.origin] = offer.signed.id
        except asyncio.CancelledError:
            if not self._closing:
                self._store.abandon(offer.signed.id)
            raise
        finally:
            self._offers.pop(offer.signed.id, None)

    async def _pull_from(self, source: str, offer: _Offer) -> None:
        # One transfer from a peer at a time, so that a slow one holds no more than one place.
        async with self._busy.setdefault(source, asyncio.Lock()), self._slots:
            client = self._client(source)
            if client is None:
                raise PeerError("it is not connected", site=source)
            longest = self._settings.chunk_timeout

            def patience() -> float:
                return min(offer.hurry, longest) if len(offer.sources) > 1 else longest

            await pull(client, self._store, offer.signed, patience)

    def _choose(self, offer: _Offer, failed: set[str]) -> str:
        """Return who is asked next: not yet failed, idle, the origin itself, in this order."""
        origin = offer.signed.envelope.origin
        busy = {name for name, lock in self._busy.items() if lock.locked()}
        return min(offer.sources, key=lambda s: (s in failed, s in busy, s != origin))

    def _refuse(self, peer: str, error: EnvelopeRefused) -> None:
        refusal = self._refusals.add(peer, self.round, error)
        _LOG.warning("refused from %s (%s): %s", peer, refusal.reason, error)

    def _stop(self) -> list[asyncio.Task[None]]:
        tasks = [offer.task for offer in self._offers.values() if offer.task is not None]
        for task in tasks:
            task.cancel()
        self._offers.clear()
        for identity in self._given_up.values() if not self._closing else ():
            self._store.abandon(identity)
        self._given_up.clear()
        return tasks
