"""A payload in chunks: their digests (the manifest), and the digest of the whole.

The manifest is the SHA-256 of every chunk, one after the other; the digest of the payload is the
SHA-256 of its size, its chunks' size and the manifest. So one signed digest vouches for every
single chunk and its place, whoever passes it on, and every byte is hashed once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

DIGEST_BYTES = 32
MIN_CHUNK = 16 * 1024
MAX_CHUNK = 2048 * 1024

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Grid:
    """Where the chunks of a payload begin and end.

    Attributes
    ----------
    size : int
        Bytes of the payload.
    chunk : int
        Bytes of every chunk but the last.
    """

    size: int
    chunk: int

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk)

    @property
    def manifest_bytes(self) -> int:
        """Bytes of the manifest."""
        return self.count * DIGEST_BYTES

    def length(self, offset: int) -> int:
        """Bytes of the chunk that begins at ``offset``."""
        return min(self.chunk, self.size - offset)

    def digest(self, manifest: bytes, offset: int) -> bytes:
        """Return what ``manifest`` says of the chunk that begins at ``offset``."""
        place = offset // self.chunk * DIGEST_BYTES
        return manifest[place : place + DIGEST_BYTES]


def digest(data: Buffer) -> bytes:
    """Return the SHA-256 of ``data``."""
    return hashlib.sha256(data).digest()


def manifest(payload: Buffer, grid: Grid) -> bytes:
    """Return the digests of all chunks of ``payload``, 32 bytes each."""
    view = memoryview(payload)
    starts = range(0, grid.size, grid.chunk)
    return b"".join(digest(view[start : start + grid.chunk]) for start in starts)


def payload_digest(manifest: bytes, grid: Grid) -> str:
    """Return the digest of the payload with this manifest, in hexadecimal."""
    sizes = grid.size.to_bytes(8, "big") + grid.chunk.to_bytes(8, "big")
    return hashlib.sha256(sizes + manifest).hexdigest()
