"""An update of this site, described and signed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fedapp.gossip.chunks import Buffer, Grid, manifest, payload_digest
from fedapp.gossip.envelope import Envelope, new_nonce
from fedapp.gossip.identity import Identity
from fedapp.gossip.signed import Signed, sign

if TYPE_CHECKING:
    from fedapp.config_gossip import GossipSection


def publication(
    identity: Identity,
    run: str,
    round: int,
    payload: Buffer,
    layout_digest: str,
    codec: str,
    settings: GossipSection,
) -> tuple[Signed, bytes]:
    """Return the signed envelope of ``payload``, valid from now on, and its manifest.

    Raises
    ------
    EnvelopeRefused
        If a field is out of its bounds.
    """
    grid = Grid(memoryview(payload).nbytes, settings.chunk)
    digests = manifest(payload, grid)
    now = int(time.time() * 1000)
    envelope = Envelope(
        run=run,
        round=round,
        origin=identity.name,
        layout_digest=layout_digest,
        payload_digest=payload_digest(digests, grid),
        size=grid.size,
        chunk=grid.chunk,
        codec=codec,
        nonce=new_nonce(),
        created=now,
        expiry=now + int(settings.lifetime * 1000),
    )
    return sign(envelope, identity), digests
