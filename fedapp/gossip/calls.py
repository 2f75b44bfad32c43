"""The calls between peers: names, and options that both sides set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedapp.gossip.chunks import MAX_CHUNK

if TYPE_CHECKING:
    from fedapp.config_gossip import GossipSection

SERVICE = "fedapp.gossip.v1.Gossip"
DIGEST = f"/{SERVICE}/Digest"
PULL = f"/{SERVICE}/Pull"
HEALTH = "grpc.health.v1.Health"

MAX_REQUEST = 512 * 1024
"""Most bytes of a request: 4096 identities and as many names are less."""
MAX_LIST = 4096
"""Most names or identities in a request."""
MAX_ENTRIES = 256
"""Most envelopes in an answer; the next answer has the rest."""
MAX_REPLY = MAX_CHUNK + 128 * 1024
"""Most bytes of an answer: a chunk, 256 envelopes, or the manifest of 17 GB in chunks of 1 MiB."""

Options = list[tuple[str, int | str]]


def common_options(settings: GossipSection) -> Options:
    """Return the options of both sides: signs of life, and no size that nobody asked for.

    A compressed message has the size that it is unpacked to, a thousand times more than was
    checked; this layer's own messages are not worth packing.
    """
    keepalive = int(settings.keepalive * 1000)
    return [
        ("grpc.keepalive_time_ms", keepalive),
        ("grpc.keepalive_timeout_ms", keepalive),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # none
        ("grpc.per_message_decompression", 0),
        ("grpc.max_metadata_size", 8192),
        ("grpc.absolute_max_metadata_size", 16384),
    ]
