"""A member of the consortium that does not keep to the protocol: its port, and its updates."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from consortium import LAYOUT, RUN
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from fedapp.gossip.calls import SERVICE
from fedapp.gossip.chunks import Grid, manifest, payload_digest
from fedapp.gossip.envelope import Envelope, new_nonce
from fedapp.gossip.identity import Identity
from fedapp.gossip.proto import gossip_pb2
from fedapp.gossip.signed import Signed, sign

CHUNK = 16 * 1024


def make_update(
    identity: Identity, payload: bytes, *, round: int = 1, **changes: Any
) -> tuple[Signed, bytes]:
    """Sign an update and return it with its manifest; fields of the envelope can be changed."""
    grid = Grid(len(payload), CHUNK)
    found = manifest(payload, grid)
    now = int(time.time() * 1000)
    fields = {
        "run": RUN, "round": round, "origin": identity.name, "layout_digest": LAYOUT,
        "payload_digest": payload_digest(found, grid), "size": len(payload), "chunk": CHUNK,
        "codec": "fp32", "nonce": new_nonce(), "created": now, "expiry": now + 60_000,
    }  # fmt: skip
    return sign(Envelope(**{**fields, **changes}), identity), found


class HostilePeer:
    """A gRPC server that offers ``entries`` and answers pulls as ``pull`` likes.

    Parameters
    ----------
    identity : Identity
    entries : list of SignedEnvelope
        Given in answer to every digest request that does not have them, asked for or not.
    pull : callable
        ``async (request, write)``; ``write`` takes bytes.
    """

    def __init__(
        self,
        identity: Identity,
        entries: list[gossip_pb2.SignedEnvelope],
        pull: Callable[[Any, Callable[[bytes], Awaitable[None]]], Awaitable[None]],
    ) -> None:
        self.identity, self.entries, self.pull = identity, entries, pull
        self.digests: list[gossip_pb2.DigestRequest] = []
        self.pulls: list[gossip_pb2.PullRequest] = []
        self.sent = 0
        self.clock = 0.0  # seconds by which its clock is ahead
        self.stubborn = False  # offers the same again, at once
        self.server: grpc.aio.Server | None = None

    async def start(self, credentials: grpc.ServerCredentials | None = None) -> str:
        """Open a port and return its address; ``credentials`` replace those of the identity."""
        self.server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        servicer = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(servicer, self.server)
        await servicer.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        methods = {
            "Digest": grpc.unary_unary_rpc_method_handler(self._digest),
            "Pull": grpc.unary_stream_rpc_method_handler(self._pull),
        }
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, methods),)
        )
        credentials = credentials or self.identity.server_credentials()
        port = self.server.add_secure_port("127.0.0.1:0", credentials)
        await self.server.start()
        return f"127.0.0.1:{port}"

    async def close(self) -> None:
        """End it."""
        if self.server is not None:
            await self.server.stop(0)

    async def _digest(self, data: bytes, _: Any) -> bytes:
        request = gossip_pb2.DigestRequest.FromString(data)
        self.digests.append(request)
        have = set() if self.stubborn else set(request.have)
        new = [e for e in self.entries if hashlib.sha256(e.envelope).digest() not in have]
        if not new and not self.stubborn:
            await asyncio.sleep(request.wait / 1000)
        reply = gossip_pb2.DigestReply(
            entries=[entry.SerializeToString() for entry in new],
            clock=int((time.time() + self.clock) * 1000),
        )
        return bytes(reply.SerializeToString())

    async def _pull(self, data: bytes, context: Any) -> None:
        request = gossip_pb2.PullRequest.FromString(data)
        self.pulls.append(request)

        async def write(piece: bytes) -> None:
            await context.write(piece)
            self.sent += len(piece)

        try:
            await self.pull(request, write)
        except grpc.aio.InternalError:
            return  # the node has hung up


def honest_pull(
    payload: bytes, found: bytes
) -> Callable[[Any, Callable[[bytes], Awaitable[None]]], Awaitable[None]]:
    """Return a ``pull`` that does what it should."""

    async def pull(request: Any, write: Callable[[bytes], Awaitable[None]]) -> None:
        await write(found)
        for offset in range(request.offset, len(payload), CHUNK):
            await write(payload[offset : offset + CHUNK])

    return pull
