"""What a node answers its peers: what it has, and pieces of it.

Every call is by a member of the consortium, known by its certificate alone. A peer that asks for
too much at a time, or does not take what it asked for, is cut off.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from fedapp.errors import GossipError
from fedapp.gossip.callers import Context, abort
from fedapp.gossip.calls import (
    HEALTH,
    MAX_ENTRIES,
    MAX_LIST,
    MAX_REPLY,
    MAX_REQUEST,
    SERVICE,
    common_options,
)
from fedapp.gossip.chunks import DIGEST_BYTES
from fedapp.gossip.counters import Counters
from fedapp.gossip.door import Door, Requests
from fedapp.gossip.engine import hold_engine
from fedapp.gossip.envelope import MAX_ROUND
from fedapp.gossip.identity import Identity
from fedapp.gossip.membership import Membership
from fedapp.gossip.news import News
from fedapp.gossip.proto import gossip_pb2
from fedapp.gossip.store import Store
from fedapp.gossip.store_files import Entry

if TYPE_CHECKING:
    from fedapp.config_gossip import GossipSection

_GRACE = 1.0  # seconds for calls in progress when the node closes
_MAX_CALLS = 1024
_HEALTH_PLACES = 2  # calls of a peer for its health, on top of the others


class Server:
    """The port of a node.

    Parameters
    ----------
    identity : Identity
    run : str
    membership : Membership
    store : Store
    news : News
        Tells when the store has something new.
    settings : GossipSection
    counters : Counters
    moved : callable
        Takes the name of a peer that listens elsewhere now.
    """

    def __init__(
        self,
        identity: Identity,
        run: str,
        membership: Membership,
        store: Store,
        news: News,
        settings: GossipSection,
        counters: Counters,
        moved: Callable[[str], None],
    ) -> None:
        self._identity, self._run, self._membership = identity, run, membership
        self._store, self._news = store, news
        self._settings, self._counters, self._moved = settings, counters, moved
        self._door = Door(
            identity.trust, membership.names - {membership.own}, settings.calls_per_peer,
            settings.answer_timeout, counters,
        )  # fmt: skip
        self._closing = False
        self._server: grpc.aio.Server | None = None

    async def start(self, listen: str) -> int:
        """Open the port ``listen`` (HOST:PORT; port 0: any) and return its number.

        Raises
        ------
        GossipError
            If it cannot be opened.
        """
        hold_engine()
        self._server = grpc.aio.server(
            options=_options(self._settings, len(self._membership.names)),
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        # Streams, so that a call is seen before its request has come; the same on the wire.
        services = {
            SERVICE: {
                "Digest": grpc.stream_unary_rpc_method_handler(self._digest),
                "Pull": grpc.stream_stream_rpc_method_handler(self._pull),
            },
            HEALTH: {"Check": grpc.stream_unary_rpc_method_handler(self._check)},
        }
        self._server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(*service) for service in services.items())
        )
        try:
            port = int(self._server.add_secure_port(listen, self._identity.server_credentials()))
        except RuntimeError:
            port = 0
        if not port:
            raise GossipError(
                f"the port {listen} cannot be opened; another program may have it, or the host "
                "name is not this machine's",
                site=self._identity.name,
            )
        await self._server.start()
        return port

    async def close(self) -> None:
        """Take no more calls and end those in progress."""
        self._closing = True
        self._news.tell()
        if self._server is not None:
            await self._server.stop(_GRACE)

    async def _check(self, requests: Requests, context: Context) -> bytes:
        """Answer gRPC's health check (its ``Watch`` would be one more stream to be held open)."""
        places = self._settings.calls_per_peer + _HEALTH_PLACES
        async with self._door.call(requests, context, places) as (_, data):
            request = await self._parse(health_pb2.HealthCheckRequest, data, context)
            if request.service not in ("", SERVICE):
                await abort(context, grpc.StatusCode.NOT_FOUND, "there is no such service here")
            kinds = health_pb2.HealthCheckResponse
            status = kinds.NOT_SERVING if self._closing else kinds.SERVING
            return bytes(kinds(status=status).SerializeToString())

    async def _digest(self, requests: Requests, context: Context) -> bytes:
        async with self._door.call(requests, context) as (peer, data):
            request = await self._parse(gossip_pb2.DigestRequest, data, context)
            await self._check_run(request.run, context)
            origins, have = set(request.origins), set(request.have)
            if (
                max(len(request.origins), len(request.have)) > MAX_LIST
                or not origins <= self._membership.names
                or any(len(identity) != DIGEST_BYTES for identity in have)
            ):
                await abort(
                    context,
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "a request names members of the consortium and identities of 32 bytes, "
                    f"{MAX_LIST} of each at most",
                )
            self._membership.asked(peer, min(request.round, MAX_ROUND))
            if request.address and self._membership.move(peer, request.address):
                self._moved(peer)
            entries = await self._wait_for_news(
                request.round, origins, have, min(request.wait / 1000, self._settings.digest_wait)
            )
            reply = gossip_pb2.DigestReply(
                entries=[entry.signed.to_bytes() for entry in entries],
                clock=int(time.time() * 1000),
            ).SerializeToString()
            self._counters.sent(len(reply))
            return bytes(reply)

    async def _wait_for_news(
        self, round: int, origins: set[str], have: set[bytes], wait: float
    ) -> list[Entry]:
        end = time.monotonic() + wait
        while True:
            seen = self._news.count
            now = time.time() * 1000
            found = [
                entry
                for entry in self._store.find(round, origins)
                if entry.signed.id not in have and entry.signed.envelope.expiry > now
            ]
            left = end - time.monotonic()
            if found or left <= 0 or self._closing:
                return found[:MAX_ENTRIES]
            await self._news.wait(seen, left)

    async def _pull(self, requests: Requests, context: Context) -> None:
        async with self._door.call(requests, context) as (_, data):
            request = await self._parse(gossip_pb2.PullRequest, data, context)
            await self._check_run(request.run, context)
            entry = self._store.get(request.envelope)
            if entry is None:
                await abort(
                    context,
                    grpc.StatusCode.NOT_FOUND,
                    "this node does not have the update any more",
                )
            envelope, offset = entry.signed.envelope, request.offset
            if offset > envelope.size or (offset % envelope.chunk and offset != envelope.size):
                await abort(
                    context,
                    grpc.StatusCode.OUT_OF_RANGE,
                    f"the offset must be the beginning of a chunk of {envelope.chunk} bytes, or "
                    f"the size {envelope.size}, got {offset}",
                )
            # Open before the first wait: the store may drop the file meanwhile.
            try:
                handle = os.open(entry.path, os.O_RDONLY)
            except OSError:
                await abort(
                    context, grpc.StatusCode.NOT_FOUND, "this node cannot read the update any more"
                )
            try:
                await self._write(entry.manifest, context)
                self._counters.sent(len(entry.manifest))
                while offset < envelope.size:
                    length = envelope.grid.length(offset)
                    # From the page cache as a rule, which takes less than a change of threads.
                    piece = os.pread(handle, length, offset)
                    os.posix_fadvise(handle, offset + length, length, os.POSIX_FADV_WILLNEED)
                    await self._write(piece, context)
                    self._counters.sent(length, length)
                    offset += length
            except grpc.aio.InternalError:
                return  # the caller has gone: it has all, or enough of it
            finally:
                os.close(handle)

    async def _write(self, data: bytes, context: Context) -> None:
        try:
            async with asyncio.timeout(self._settings.chunk_timeout):
                await context.write(data)
        except TimeoutError:
            await abort(
                context,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"a chunk was not taken for {self._settings.chunk_timeout:g} s",
            )

    async def _check_run(self, run: str, context: Context) -> None:
        if run != self._run:
            await abort(
                context,
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this node takes part in run {self._run}, the call is for another",
            )

    async def _parse(self, kind: Any, data: bytes, context: Context) -> Any:
        try:
            return kind.FromString(data)
        except Exception:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be read")


def _options(settings: GossipSection, members: int) -> list[tuple[str, int | str]]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = 256 + 4 * members
    if files != resource.RLIM_INFINITY:
        # The rest of the files that a process may open is for the store and this node's own calls.
        connections = min(connections, max(1, files // 2))
    return [
        ("grpc.max_allowed_incoming_connections", connections),
        *common_options(settings),
        ("grpc.max_receive_message_length", MAX_REQUEST),
        ("grpc.max_send_message_length", MAX_REPLY),
        ("grpc.server_handshake_timeout_ms", int(settings.connect_timeout * 1000)),
        ("grpc.so_reuseport", 0),  # two nodes on one port would take each other's calls
        ("grpc.max_concurrent_streams", settings.calls_per_peer + _HEALTH_PLACES),
        ("grpc.http2.min_ping_interval_without_data_ms", 500),
        ("grpc.http2.max_ping_strikes", 0),
    ]
