"""Updates on their way to a gathering that waits for them: verified once, and not read again.

What comes in while nobody gathers takes no memory; it is read from the disk when it is wanted.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from fedapp.gossip.chunks import Buffer


class Handover:
    """Copies of payloads, made of the very chunks that were compared with the manifest.

    Parameters
    ----------
    budget : int
        Most bytes of all copies together; a payload that does not fit comes from the disk.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._gatherings = 0
        self._coming: dict[bytes, io.BytesIO] = {}
        self._whole: dict[bytes, bytes] = {}
        self._sizes: dict[bytes, int] = {}

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Keep what comes in from now on; forget at the end what was not taken."""
        self._gatherings += 1
        try:
            yield
        finally:
            self._gatherings -= 1
            if not self._gatherings:
                for kept in (self._coming, self._whole, self._sizes):
                    kept.clear()

    def begin(self, identity: bytes, size: int) -> None:
        """A payload begins to come in: keep it if somebody waits and the budget allows it."""
        self.drop(identity)
        if self._gatherings and sum(list(self._sizes.values())) + size <= self._budget:
            self._sizes[identity] = size
            # Zeros that the system gives out page by page as they are written over; the buffer
            # takes the object as its own, since nobody else has it.
            self._coming[identity] = io.BytesIO(bytes(size))

    def add(self, identity: bytes, chunk: Buffer) -> None:
        """The next chunk has been verified and written to the disk."""
        buffer = self._coming.get(identity)
        if buffer is not None:
            buffer.write(chunk)

    def finish(self, identity: bytes) -> None:
        """All of the payload has come; nothing happens if its copy lacks something."""
        buffer = self._coming.pop(identity, None)
        if buffer is None:
            return
        if buffer.tell() == self._sizes.get(identity):
            self._whole[identity] = buffer.getvalue()  # the object itself, not a copy
        else:
            self.drop(identity)

    def take(self, identity: bytes) -> bytes | None:
        """Return a payload for good; None: it is to be read from the disk."""
        payload = self._whole.get(identity)
        if payload is not None:
            self.drop(identity)
        return payload

    def drop(self, identity: bytes) -> None:
        """Forget a payload."""
        for kept in (self._coming, self._whole, self._sizes):
            kept.pop(identity, None)
