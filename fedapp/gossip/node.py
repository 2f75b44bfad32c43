"""One peer of the consortium: publishes its updates, gathers those of others, passes them on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from fedapp.errors import ConfigError, GossipError, MissingReplies, StoreError
from fedapp.gossip import chunks
from fedapp.gossip.announce import announce
from fedapp.gossip.client import Client
from fedapp.gossip.counters import Counters
from fedapp.gossip.envelope import Envelope
from fedapp.gossip.identity import Identity
from fedapp.gossip.inbox import Inbox
from fedapp.gossip.link import Link
from fedapp.gossip.membership import Member, Membership, is_address
from fedapp.gossip.news import News
from fedapp.gossip.publication import publication
from fedapp.gossip.refusals import Refusals
from fedapp.gossip.replay import ReplayGuard
from fedapp.gossip.server import Server
from fedapp.gossip.signed import Rules, Signed, verify
from fedapp.gossip.store import Store
from fedapp.gossip.store_files import Entry
from fedapp.gossip.threads import in_thread
from fedapp.text import clean

if TYPE_CHECKING:
    from fedapp.config_gossip import GossipSection

_LOG = logging.getLogger(__name__)
_REPLAY_FILE = "accepted.json"
_ANY_HOST = ("0.0.0.0", "[::]")  # noqa: S104  # what is refused
_LOOK_AGAIN = 0.5  # seconds; how often a gathering looks who has fallen silent


class Update(NamedTuple):
    """A verified update of another site; what it decodes to is still to be validated."""

    envelope: Envelope
    payload: bytes


class GossipNode:
    """A peer on the network: mutual TLS, signed updates, no server.

    Use it as ``async with GossipNode(...) as node``, or call `start` and `close`. All methods
    belong to one event loop; many nodes may share it.

    Parameters
    ----------
    identity : Identity
    members : iterable of Member
        Every site of the consortium, this one included (its address is ignored).
    run : str
        Identity of the run, 32 hexadecimal digits, the same at every peer.
    store : Path
        Folder for updates and for what was accepted; this node's alone.
    listen : str
        HOST:PORT; port 0 takes any free one.
    advertise : str
        HOST:PORT that peers are told; empty: ``listen`` with the port that was opened.
    neighbours : collection of str, optional
        Peers that are asked for updates; by default all.
    origins : collection of str, optional
        Sites whose updates are wanted, from whichever neighbour; by default the neighbours.
    listeners : collection of str
        Peers that ask this node without being asked, in a directed topology: they are told once
        where it listens.
    settings : GossipSection, optional

    Raises
    ------
    ConfigError
        If the names do not fit together.
    """

    def __init__(
        self,
        identity: Identity,
        members: Iterable[Member],
        run: str,
        store: Path,
        *,
        listen: str = "127.0.0.1:0",
        advertise: str = "",
        neighbours: Collection[str] | None = None,
        origins: Collection[str] | None = None,
        listeners: Collection[str] = (),
        settings: GossipSection | None = None,
    ) -> None:
        if settings is None:
            from fedapp.config_gossip import GossipSection

            settings = GossipSection()
        self.identity, self.name, self.run = identity, identity.name, run
        self.membership = Membership(identity.name, members, settings.dead_after)
        others = self.membership.names - {self.name}
        self.neighbours = frozenset(others if neighbours is None else neighbours)
        self.origins = frozenset(self.neighbours if origins is None else origins)
        self._listeners = frozenset(listeners) - self.neighbours
        strangers = sorted((self.neighbours | self.origins | self._listeners) - others)
        if strangers:
            raise ConfigError(
                f"'{clean(strangers[0])}' is no other site of the consortium, as neighbours, "
                "origins and listeners must be"
            )
        for text, what in ((listen, "listen"), (advertise, "advertise")):
            if text and not is_address(text, least_port=0):
                raise ConfigError(f"{what} must be HOST:PORT, got '{clean(text)}'")
        if not advertise and listen.rpartition(":")[0] in _ANY_HOST:
            raise ConfigError(
                f"advertise is empty, and {listen} is no address that a peer could call; set it to "
                "this machine's name and port"
            )
        self.refusals, self.traffic = Refusals(), Counters()
        self._listen, self._advertise, self._settings = listen, advertise, settings
        self._rules = Rules(run, self.membership.names, settings.max_payload, settings.clock_skew)
        self._store = Store(
            store, settings.store_bytes, settings.store_age, settings.keep_rounds,
            settings.gather_bytes,
        )  # fmt: skip
        self._guard = ReplayGuard(run, store / _REPLAY_FILE)
        self._news = News()
        self._inbox = Inbox(
            self.name, self.origins, identity.trust, self._rules, self._store, self._guard,
            self.refusals, self._news, self._client, settings,
        )  # fmt: skip
        self._server = Server(
            identity, run, self.membership, self._store, self._news, settings, self.traffic,
            self._moved,
        )  # fmt: skip
        self._links = {
            name: Link(
                name, self.membership, self._inbox, self._connect, settings, lambda: self.address
            )
            for name in sorted(self.neighbours)
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._tidying: asyncio.Task[None] | None = None
        self.address = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def round(self) -> int:
        """The round whose updates are received at present; 0 before the first."""
        return self._inbox.round

    @property
    def published(self) -> int:
        """The newest round in which this site has published; 0: none."""
        return max((signed.envelope.round for signed in self._own()), default=0)

    def alive(self) -> dict[str, bool]:
        """Return which neighbours this node hears, by its own judgement."""
        return {name: self.membership.alive(name) for name in sorted(self.neighbours)}

    def meet(self, name: str, address: str) -> None:
        """Look for a peer at another address, as the consortium file says now."""
        if self.membership.move(name, address):
            self._moved(name)

    async def start(self) -> str:
        """Open the store and the port, begin to ask the neighbours, and return the address.

        Raises
        ------
        StoreError
            If the folder cannot be used.
        GossipError
            If the port cannot be opened.
        """
        try:
            await in_thread(self._open_store)
            port = await self._server.start(self._listen)
        except BaseException:
            await self.close()
            raise
        host = self._listen.rpartition(":")[0]
        self.address = self._advertise or f"{host}:{port}"
        self.membership.begin()
        works = [link.run() for link in self._links.values()]
        works += [
            announce(self.membership[name], self.run, self.address, self._connect, self._settings)
            for name in sorted(self._listeners)
        ]
        self._tasks = [asyncio.create_task(work) for work in works]
        return self.address

    async def publish(
        self, round: int, payload: chunks.Buffer, *, layout_digest: str, codec: str = "fp32"
    ) -> Envelope:
        """Sign this site's update and offer it to whoever asks.

        The same payload may be published again, after a restart for instance, and keeps its
        envelope. From now on the updates of ``round`` are received.

        Parameters
        ----------
        round : int
            From 1; no earlier one than the last.
        payload : bytes
        layout_digest : str
            SHA-256 of the adapter's layout, in hexadecimal.
        codec : str
            Number format of the payload.

        Raises
        ------
        GossipError
            If another update was published for the round, or it is too large.
        IdentityError
            If this site's certificate has expired meanwhile.
        StoreError
            If the store cannot take it.
        """
        self._check_round(round)
        await self._settled()
        self.identity.trust.verify(self.identity.certificate, time.time())
        size = memoryview(payload).nbytes
        if not 0 < size <= self._settings.max_payload:
            raise GossipError(
                f"an update must have 1 to {self._settings.max_payload} bytes, got {size}; raise "
                "gossip.max-payload-mb at every peer",
                site=self.name,
                round=round,
            )
        signed, manifest = await in_thread(
            publication, self.identity, self.run, round, payload, layout_digest, codec,
            self._settings,
        )  # fmt: skip
        for earlier in self._own():
            if earlier.envelope.round == round:
                if earlier.envelope.payload_digest == signed.envelope.payload_digest:
                    self._open_round(round)
                    return earlier.envelope
                raise GossipError(
                    "another update was published for this round, and peers may have it; publish "
                    "for the next round",
                    site=self.name,
                    round=round,
                )
        await in_thread(self._store.add, signed, payload, manifest)
        self._news.tell()
        self._open_round(round)
        return signed.envelope

    async def gather(
        self,
        round: int,
        *,
        deadline: float,
        minimum: int = 0,
        awaited: Collection[str] | None = None,
    ) -> list[Update]:
        """Wait for the updates of ``round`` and return them, sorted by origin.

        It ends when every origin's update is here; when those that are missing are of peers that
        this node does not hear any more, or that went on to a later round without publishing for
        this one, and ``minimum`` are here; or at the deadline. After that the next round is open.

        Parameters
        ----------
        round : int
        deadline : float
            Longest wait in seconds.
        minimum : int
            Fewest updates of others.
        awaited : collection of str, optional
            Sites that are known to publish in this round: nobody else is waited for. By default
            all origins.

        Raises
        ------
        MissingReplies
            If fewer came, naming whose are missing; the round stays open.
        """
        self._open_round(round)
        end = asyncio.get_running_loop().time() + deadline
        wanted = self.origins if awaited is None else self.origins & frozenset(awaited)
        with self._store.handover.gathering():
            found, missing = await self._collect(round, end, minimum, wanted)
        if len(found) < minimum:
            raise MissingReplies(
                f"{len(found)} updates of others came within {deadline:g} s, at least {minimum} "
                f"are needed; missing: {self._describe(missing)}",
                site=self.name,
                round=round,
            )
        self._open_round(round + 1)
        await self._settled()
        self._tidying = asyncio.create_task(in_thread(self._tidy))
        return found

    async def rewind(self, round: int) -> None:
        """Begin anew at ``round``, as a run does that continues from an earlier checkpoint.

        What this site published and accepted for ``round`` and later is forgotten, here alone:
        every peer must do the same, else it refuses the new updates as second ones. The old ones
        stay refused, whoever still offers them.

        Raises
        ------
        StoreError
            If that cannot be written.
        """
        await self._settled()
        self._inbox.open_round(0)
        for entry in self._store:
            if entry.signed.envelope.round >= round:
                self._store.drop(entry)
        self._guard.rewind(round)
        await in_thread(self._guard.save)
        self._open_round(round)

    async def follow(self, round: int) -> None:
        """Receive the updates of ``round`` and pass them on, without taking them.

        For a node that trains nothing: it waits for nobody and reads no payload into memory.

        Raises
        ------
        GossipError
            If the node is in a later round.
        """
        await self._settled()
        self._open_round(round)
        await in_thread(self._tidy)

    async def close(self) -> None:
        """Stop asking and answering; what was received stays in the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._inbox.close()
        await self._server.close()
        if self._store.opened:
            try:
                await self._settled()
                await in_thread(self._tidy)
            finally:
                self._store.close()

    async def _collect(
        self, round: int, end: float, minimum: int, wanted: Collection[str]
    ) -> tuple[list[Update], Collection[str]]:
        """Wait as `gather` says; return what is here, and whose updates are not."""
        loop = asyncio.get_running_loop()
        found: dict[str, Update] = {}
        while True:
            seen = self._news.count
            for entry in self._valid(round):
                origin = entry.signed.envelope.origin
                if origin not in found and (update := await self._read(entry)):
                    found[origin] = update
            missing = set(wanted) - found.keys()
            left = end - loop.time()
            done = len(found) >= minimum and not any(self._may_come(name) for name in missing)
            if done or left <= 0:
                return [found[name] for name in sorted(found)], missing
            await self._news.wait(seen, min(left, _LOOK_AGAIN))

    def _open_store(self) -> None:
        now = time.time()
        self._store.open(lambda message: verify(message, self.identity.trust, self._rules, now))
        self._guard.load()
        for entry in self._store:
            self._guard.note(entry.signed.envelope)

    def _own(self) -> list[Signed]:
        return [e.signed for e in self._store if e.signed.envelope.origin == self.name]

    def _check_round(self, round: int) -> None:
        if round < self._inbox.round:
            raise GossipError(
                f"rounds only go up: this node is in round {self._inbox.round}",
                site=self.name,
                round=round,
            )

    def _open_round(self, round: int) -> None:
        self._check_round(round)
        if round != self._inbox.round:
            self._inbox.open_round(round)
            self.traffic.round = round
            for link in self._links.values():
                link.wake()

    def _valid(self, round: int) -> list[Entry]:
        """Return the updates of others that are here and have not expired since they came."""
        limit = (time.time() - self._settings.clock_skew) * 1000
        found = self._store.find(round, self.origins)
        return [entry for entry in found if entry.signed.envelope.expiry >= limit]

    async def _settled(self) -> None:
        """Return when what the last gathering accepted is on the disk."""
        if self._tidying is not None:
            await asyncio.shield(self._tidying)
            self._tidying = None

    def _tidy(self) -> None:
        now = time.time()
        self._guard.forget_expired(now, self._settings.clock_skew)
        works: list[Callable[[], None]] = [partial(self._store.drop_old, now), self._guard.save]
        for work in works:
            try:
                work()
            except (OSError, StoreError) as error:
                _LOG.warning("%s", error)  # the store remembers the newest updates too

    def _may_come(self, origin: str) -> bool:
        """Whether an update that is missing is worth waiting for."""
        # From whom it can come: who offers it, or else the origin. Who is not asked is not judged.
        sources = self._inbox.sources(origin)
        if not sources:
            patience = self._settings.answer_timeout  # what it has, it would have offered by then
            if self.membership.beyond(origin, self._inbox.round, patience):
                return False
            sources = {origin}
        return any(name not in self._links or self.membership.alive(name) for name in sources)

    async def _read(self, entry: Entry) -> Update | None:
        kept = self._store.handover.take(entry.signed.id)
        if kept is not None:
            return Update(entry.signed.envelope, kept)
        sharing = self._store.sharing(entry)
        try:
            payload = await in_thread(self._store.read, entry)
        except StoreError as error:
            # It is pulled again, as if it had never come.
            _LOG.warning("%s", error)
            for other in sharing:
                self._guard.withdraw(other.signed.envelope)
            for link in self._links.values():
                link.ask_anew()
            return None
        return Update(entry.signed.envelope, payload)

    def _describe(self, names: Collection[str]) -> str:
        told = []
        for name in sorted(names):
            problem = self.membership[name].problem
            told.append(f"{name} ({problem})" if problem else name)
        return "; ".join(told) or "none"

    def _client(self, name: str) -> Client | None:
        link = self._links.get(name)
        return link.client if link else None

    def _connect(self, name: str, address: str) -> Client:
        return Client(self.identity, name, address, self._settings, self.traffic)

    def _moved(self, name: str) -> None:
        _LOG.info("site %s listens at %s now", name, self.membership[name].address)
        if name in self._links:
            self._links[name].wake()
