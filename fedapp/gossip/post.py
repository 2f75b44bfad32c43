"""The nodes of a simulation's sites, in a thread of this process: they carry what mailboxes hold.

They are a hospital's nodes (`fedapp.gossip.local`): every update is signed, crosses loopback over
mutual TLS, and is verified by whoever gets it. Nothing here looks into one.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fedapp.config import RunConfig
from fedapp.config_gossip import GossipSection
from fedapp.errors import GossipError
from fedapp.gossip.local import LocalNodes
from fedapp.gossip.node import Update
from fedapp.gossip.threads import in_thread
from fedapp.mailbox import Delivery, Letter, Mailbox

T = TypeVar("T")
_LIFETIME = timedelta(days=7)  # as long as their authority's


@dataclass(frozen=True)
class Carried:
    """What an exchange moved: bytes of updates by site, out and in."""

    sent: Mapping[str, int]
    received: Mapping[str, int]


class Post:
    """Nodes of all sites; use it with ``with``.

    Parameters
    ----------
    sites : collection of str
    run : str
        Identity of the run.
    folder : Path
        For the nodes' stores. What an earlier process left there goes: it was signed with
        certificates that nobody can check any more, and rounds are repeated from their beginning.
    mailbox : callable
        The mailbox of a site.
    config : RunConfig
        ``p2p``, ``federation.max_payload_mb`` and ``seed``.

    Raises
    ------
    ConfigError
        If there is no such topology of so many sites.
    """

    def __init__(
        self,
        sites: Collection[str],
        run: str,
        folder: Path,
        mailbox: Callable[[str], Mailbox],
        config: RunConfig,
    ) -> None:
        self._folder, self._mailbox = folder, mailbox
        self._timeout = config.p2p.gather_timeout
        settings = GossipSection(
            max_payload_mb=config.federation.max_payload_mb,
            keep_rounds=2,
            gather_mb=0,  # of every node at once; what they hold is on this machine's disk
            # On one machine silence means that it has much to do, not that somebody has gone.
            dead_after=min(86400.0, self._timeout),
        )
        self._nodes = LocalNodes(
            sites,
            folder,
            topology=config.p2p.topology,
            degree=config.p2p.degree,
            seed=config.seed,
            settings=settings,
            run=run,
            lifetime=_LIFETIME,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gossip", daemon=True)

    def __enter__(self) -> Self:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._thread.start()
        try:
            self._do(self._nodes.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._do(self._nodes.__aexit__(None, None, None))
        finally:
            self._end()

    def exchange(self, round: int, published: Collection[str]) -> Carried:
        """Publish what the mailboxes of ``published`` hold, and deliver what each of them gets.

        Raises
        ------
        GossipError
            If a mailbox holds nothing for this round, or a node fails.
        """
        return self._do(self._exchange(round, sorted(published)))

    async def _exchange(self, round: int, published: list[str]) -> Carried:
        letters = {site: await in_thread(self._outgoing, site, round) for site in published}
        envelopes = {
            site: await self._nodes[site].publish(
                round, letter.payload, layout_digest=letter.terms, codec=letter.codec
            )
            for site, letter in letters.items()
        }
        for site in self._nodes.graph.keys() - set(published):
            await self._nodes[site].follow(round)
        gathered = await asyncio.gather(
            *(
                self._nodes[site].gather(round, deadline=self._timeout, awaited=published)
                for site in published
            )
        )
        sent = dict.fromkeys(published, 0)
        received = dict.fromkeys(published, 0)
        for site, updates in zip(published, gathered, strict=True):
            for update in updates:
                sent[update.envelope.origin] += update.envelope.size
                received[site] += update.envelope.size
            delivery = self._delivery(site, round, updates, envelopes[site].payload_digest)
            await in_thread(self._mailbox(site).deliver, round, delivery)
        return Carried(sent, received)

    def _outgoing(self, site: str, round: int) -> Letter:
        letter = self._mailbox(site).outgoing(round)
        if letter is None:
            raise GossipError(
                "the site said that its model is in its mailbox, but nothing is there; let it "
                "write to its state folder",
                site=site,
                round=round,
            )
        return letter

    def _delivery(
        self, site: str, round: int, updates: Collection[Update], own_digest: str
    ) -> Delivery:
        node, graph = self._nodes[site], self._nodes.graph
        traffic = node.traffic.rounds.get(round)
        delivery = deliver(updates, node.origins, own_digest)
        degrees = {name: len(sources) for name, sources in graph.items()}
        return replace(
            delivery,
            degrees=degrees,
            traffic=replace(traffic) if traffic else delivery.traffic,
        )

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # of this thread, too: told to end, it leaves no work behind
            future.cancel()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def deliver(updates: Collection[Update], origins: Collection[str], own_digest: str) -> Delivery:
    """Return what a node has gathered as its site takes it."""
    letters = tuple(
        Letter(
            update.envelope.origin,
            update.payload,
            update.envelope.layout_digest,
            update.envelope.codec,
            update.envelope.payload_digest,
        )
        for update in sorted(updates, key=lambda one: one.envelope.origin)
    )
    came = {letter.origin for letter in letters}
    return Delivery(letters, tuple(sorted(set(origins) - came)), own_digest)
