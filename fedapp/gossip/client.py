"""The calls of this node to one peer, each with a deadline, each over mutual TLS.

The connection is to the name, not to the address: whoever answers there must have the certificate
of that very peer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from fedapp.errors import PeerError
from fedapp.gossip.calls import (
    DIGEST,
    HEALTH,
    MAX_ENTRIES,
    MAX_REPLY,
    PULL,
    SERVICE,
    Options,
    common_options,
)
from fedapp.gossip.counters import Counters
from fedapp.gossip.engine import hold_engine
from fedapp.gossip.identity import Identity
from fedapp.gossip.names import dns_name
from fedapp.gossip.proto import gossip_pb2
from fedapp.text import clean

if TYPE_CHECKING:
    from fedapp.config_gossip import GossipSection

_CLOSE_TIMEOUT = 2.0


@dataclass(frozen=True)
class Answer:
    """A peer's answer to what it has.

    Attributes
    ----------
    entries : list of bytes
        Signed envelopes, still unread.
    clock_offset : float
        How far the peer's clock is ahead, in seconds, to half the time that the answer took.
    """

    entries: list[bytes]
    clock_offset: float


class Client:
    """Calls to one peer.

    Parameters
    ----------
    identity : Identity
        This node's.
    name, address : str
        The peer's.
    settings : GossipSection
    counters : Counters
        Take what is sent and received.
    """

    def __init__(
        self,
        identity: Identity,
        name: str,
        address: str,
        settings: GossipSection,
        counters: Counters,
    ) -> None:
        hold_engine()
        self.name, self.address = name, address
        self.counters, self._settings = counters, settings
        self._channel = grpc.aio.secure_channel(
            address, identity.channel_credentials(), _options(name, settings)
        )
        # The messages stay bytes here, so that they are counted and parsed once.
        self._health = self._channel.unary_unary(f"/{HEALTH}/Check")
        self._digest = self._channel.unary_unary(DIGEST)
        self._pull = self._channel.unary_stream(PULL)

    async def close(self) -> None:
        """End all calls and the connection."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._channel.close()
        except TimeoutError:
            return  # nothing of this connection is used again

    async def check_health(self) -> None:
        """Return if the peer serves.

        Raises
        ------
        PeerError
        """
        request = health_pb2.HealthCheckRequest(service=SERVICE).SerializeToString()
        data = await self._call(self._health, request, self._settings.connect_timeout)
        try:
            status = health_pb2.HealthCheckResponse.FromString(data).status
        except Exception:
            raise self._odd("its health cannot be read") from None
        if status != health_pb2.HealthCheckResponse.SERVING:
            raise PeerError("the peer is up but does not serve yet", site=self.name)

    async def digest(
        self,
        run: str,
        round: int,
        origins: Collection[str],
        have: Collection[bytes],
        address: str,
        wait: float,
    ) -> Answer:
        """Ask what the peer has of ``round`` by ``origins`` besides ``have``.

        The peer may keep its answer back for ``wait`` seconds, until it has something.

        Raises
        ------
        PeerError
        """
        request = gossip_pb2.DigestRequest(
            run=run,
            round=round,
            origins=origins,
            have=have,
            wait=int(wait * 1000),
            address=address,
        ).SerializeToString()
        timeout = wait + self._settings.answer_timeout
        data = await self._call(self._digest, request, timeout)
        received = time.time()
        try:
            reply = gossip_pb2.DigestReply.FromString(data)
        except Exception:
            raise self._odd("what it has cannot be read") from None
        return Answer(list(reply.entries[:MAX_ENTRIES]), reply.clock / 1000 - received)

    async def pull(
        self,
        run: str,
        envelope: bytes,
        offset: int,
        count: int,
        patience: Callable[[], float] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the manifest and up to ``count`` chunks from ``offset`` on; close it to end it.

        ``patience`` tells how long to wait for the next chunk; by default ``chunk-timeout``.

        Raises
        ------
        PeerError
            If the peer is silent for too long, or the connection breaks.
        """
        request = gossip_pb2.PullRequest(
            run=run, envelope=envelope, offset=offset
        ).SerializeToString()
        self.counters.sent(len(request))
        longest = self._settings.chunk_timeout
        call = self._pull(request, timeout=longest * (count + 1))
        try:
            for number in range(count + 1):
                wait = patience() if patience else longest
                try:
                    async with asyncio.timeout(wait):
                        data = await call.read()
                except asyncio.CancelledError:
                    raise self._hung_up() from None
                except TimeoutError:
                    raise PeerError(
                        f"the peer sent nothing for {wait:g} s in the middle of an update",
                        site=self.name,
                    ) from None
                except grpc.aio.AioRpcError as error:
                    raise self._failed(error) from None
                if data is grpc.aio.EOF:
                    raise await self._ended(call)
                self.counters.received(len(data), len(data) if number else 0)
                yield data
        finally:
            call.cancel()

    async def _call(
        self, method: grpc.aio.UnaryUnaryMultiCallable, request: bytes, timeout: float
    ) -> bytes:
        self.counters.sent(len(request))
        try:
            data: bytes = await method(request, timeout=timeout)
        except asyncio.CancelledError:
            raise self._hung_up() from None
        except grpc.aio.AioRpcError as error:
            raise self._failed(error) from None
        self.counters.received(len(data))
        return data

    def _hung_up(self) -> BaseException:
        """Tell a connection that this node closed from a task that somebody cancelled."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return asyncio.CancelledError()
        return PeerError("the connection was closed, the peer may have moved", site=self.name)

    async def _ended(self, call: grpc.aio.UnaryStreamCall) -> PeerError:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                code, details = await call.code(), await call.details()
        except TimeoutError:
            code, details = grpc.StatusCode.UNKNOWN, ""
        if code is grpc.StatusCode.OK:
            return self._odd("the stream ended before the update did")
        return PeerError(
            f"the peer ended an update with {code.name}: {clean(details or '', 200)}",
            site=self.name,
        )

    def _failed(self, error: grpc.aio.AioRpcError) -> PeerError:
        code, details = error.code(), clean(error.details() or "", 200)
        if code is grpc.StatusCode.UNAVAILABLE:
            reason = details.rpartition(f"{self.address}: ")[2]  # gRPC repeats itself before
            sentence = f"no connection to the peer at {self.address}: {reason}"
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            sentence = f"no answer of the peer at {self.address} in time"
        else:
            sentence = f"the peer at {self.address} refused a call with {code.name}: {details}"
        return PeerError(sentence, site=self.name)

    def _odd(self, finding: str) -> PeerError:
        return PeerError(
            f"the peer does not keep to the protocol: {finding}; run the same fedapp version "
            "everywhere",
            site=self.name,
        )


def _options(name: str, settings: GossipSection) -> Options:
    first, longest = (int(1000 * s) for s in (settings.backoff_base, settings.backoff_cap))
    return [
        *common_options(settings),
        ("grpc.ssl_target_name_override", dns_name(name)),
        ("grpc.max_receive_message_length", MAX_REPLY),
        ("grpc.initial_reconnect_backoff_ms", max(100, first)),
        ("grpc.min_reconnect_backoff_ms", max(100, int(settings.connect_timeout * 1000))),
        ("grpc.max_reconnect_backoff_ms", max(100, longest)),
        ("grpc.enable_http_proxy", 0),  # what a proxy of the environment would see, nobody checked
        ("grpc.use_local_subchannel_pool", 1),  # nodes in one process share no connection
        ("grpc.enable_retries", 0),  # this layer waits and tries again by itself
    ]
