"""Payloads as chunks: what is announced is checked before any memory is taken for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from client_app.service.calls import CHUNK
from client_app.service.proto import site_pb2
from fedapp.codec import Packed
from fedapp.errors import WireError
from fedapp.headers import MAX_PAYLOADS
from fedapp.text import clean

Bytes = NDArray[np.uint8]


def sizes(payloads: Mapping[str, Bytes]) -> list[site_pb2.Size]:
    """Return what is announced, in the order of `chunks`."""
    return [site_pb2.Size(name=name, bytes=array.nbytes) for name, array in payloads.items()]


def arrays(payloads: Mapping[str, Packed]) -> dict[str, Bytes]:
    """Return the flat arrays of packed adapters."""
    return {name: np.ascontiguousarray(packed.array) for name, packed in payloads.items()}


def chunks(payloads: Mapping[str, Bytes]) -> Iterator[bytes]:
    """Yield the payloads' bytes; no chunk holds bytes of two."""
    for array in payloads.values():
        for start in range(0, array.nbytes, CHUNK):
            yield array[start : start + CHUNK].tobytes()


class Inflow:
    """Takes the chunks of payloads that were announced.

    Parameters
    ----------
    announced : iterable of Size
    most : int
        Most bytes altogether.

    Raises
    ------
    WireError
        If more is announced than allowed, or a name twice.
    """

    def __init__(self, announced: Iterable[site_pb2.Size], most: int) -> None:
        self.sizes = {size.name: int(size.bytes) for size in announced}
        total = sum(self.sizes.values())
        if len(self.sizes) != len(list(announced)) or len(self.sizes) > MAX_PAYLOADS:
            raise WireError(f"a name is announced twice, or more than {MAX_PAYLOADS} payloads are")
        if total > most:
            raise WireError(
                f"payloads of {total} bytes are announced, at most {most} are taken; raise "
                "limits.max-payload-mb of the site, or lower lora.rank"
            )
        self._arrays: dict[str, Bytes] = {}
        self._waiting = list(self.sizes)
        self._offset = 0
        self._skip_empty()

    @property
    def full(self) -> bool:
        """Whether everything is there."""
        return not self._waiting

    def take(self, chunk: bytes) -> None:
        """Add the next chunk.

        Raises
        ------
        WireError
            If it is empty, or longer than what is missing of its payload.
        """
        if self.full or not chunk:
            raise WireError("a chunk is empty, or comes after the last one")
        name = self._waiting[0]
        size = self.sizes[name]
        if self._offset + len(chunk) > size:
            raise WireError(f"payload '{clean(name)}' is longer than the {size} bytes announced")
        if name not in self._arrays:
            self._arrays[name] = np.empty(size, np.uint8)
        self._arrays[name][self._offset : self._offset + len(chunk)] = np.frombuffer(
            chunk, np.uint8
        )
        self._offset += len(chunk)
        if self._offset == size:
            self._waiting.pop(0)
            self._offset = 0
            self._skip_empty()

    def fetch(self, name: str) -> Bytes:
        """Return a payload that is there."""
        return self._arrays[name]

    def _skip_empty(self) -> None:
        while self._waiting and not self.sizes[self._waiting[0]]:
            self._arrays[self._waiting.pop(0)] = np.empty(0, np.uint8)
