"""One update from one peer: its manifest, then the chunks that an earlier attempt did not get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fedapp.errors import EnvelopeRefused
from fedapp.gossip import chunks
from fedapp.gossip.client import Client
from fedapp.gossip.partial import Partial
from fedapp.gossip.signed import Signed
from fedapp.gossip.store import Store
from fedapp.gossip.store_files import Entry
from fedapp.gossip.threads import in_thread

Patience = Callable[[], float]


async def pull(client: Client, store: Store, signed: Signed, patience: Patience) -> Entry:
    """Receive the payload of a verified envelope and return it as an update in the store.

    At most two chunks are in memory: one is written while the next one comes. Nothing is received
    beyond the size that the origin signed. What has come stays in the store if the peer fails, so
    that any peer can give the rest. One update is to be pulled once at a time.

    Raises
    ------
    PeerError
        If the peer fails; another one, or another attempt, may go on.
    EnvelopeRefused
        "wrong-manifest" or "wrong-chunk": what this peer sends is not what the origin signed.
    StoreError
        If the store is full or broken.
    """
    manifest = store.manifest(signed.envelope.payload_digest)
    if manifest is None:
        partial = store.unfinished(signed.id)
        if partial is None and store.left_over(signed.id):
            # Only the manifest tells how much of what an earlier process left is right.
            end = signed.envelope.size
            partial = await _receive(client, store, signed, end, patience)
        if partial is None or not partial.whole:
            start = partial.offset if partial else 0
            partial = await _receive(client, store, signed, start, patience)
        manifest = partial.manifest
    return await in_thread(store.commit, signed, manifest)


async def _receive(
    client: Client, store: Store, signed: Signed, offset: int, patience: Patience
) -> Partial:
    envelope = signed.envelope
    count = -(-(envelope.size - offset) // envelope.chunk)
    replies = client.pull(envelope.run, signed.id, offset, count, patience)
    writing: asyncio.Future[None] | None = None
    try:
        manifest = await anext(replies)
        _check_manifest(manifest, signed)
        partial = await in_thread(store.begin, signed, manifest)
        async for chunk in replies:
            if writing is not None:
                await writing
            writing = asyncio.ensure_future(in_thread(_append, client, signed, partial, chunk))
    finally:
        await replies.aclose()
        if writing is not None:
            await writing  # what is wrong with a chunk says more than how the stream ended
    return partial


def _append(client: Client, signed: Signed, partial: Partial, chunk: bytes) -> None:
    try:
        partial.append(chunk)
    except EnvelopeRefused as error:
        client.counters.now.resent += len(chunk)
        envelope = signed.envelope
        raise EnvelopeRefused(
            error.message, reason=error.reason, site=envelope.origin, round=envelope.round
        ) from None


def _check_manifest(manifest: bytes, signed: Signed) -> None:
    envelope = signed.envelope
    right = len(manifest) == envelope.grid.manifest_bytes
    if not right or chunks.payload_digest(manifest, envelope.grid) != envelope.payload_digest:
        raise EnvelopeRefused(
            "the digests of the chunks are not those that the origin signed",
            reason="wrong-manifest",
            site=envelope.origin,
            round=envelope.round,
        )
