"""A payload that is still coming in: whole, verified chunks in a file, and where to go on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from fedapp.errors import EnvelopeRefused, StoreError
from fedapp.gossip import chunks

_NO_SUCH_CALL = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}  # some file systems


class Partial:
    """The first chunks of a payload, all of them compared with the manifest.

    Parameters
    ----------
    path : Path
        The file; chunks that an earlier process left there and that are right are kept.
    grid : Grid
    manifest : bytes
        The digests of all chunks, verified.
    keep : callable, optional
        Takes every right chunk as well, those that are on the disk already first.

    Raises
    ------
    StoreError
        If the disk cannot be written, or has no room for the whole payload.
    """

    def __init__(
        self,
        path: Path,
        grid: chunks.Grid,
        manifest: bytes,
        keep: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self.path, self.grid, self.manifest = path, grid, manifest
        self._keep = keep
        self.offset = 0
        self._handle = -1
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            self._keep_right_chunks()
            self._reserve()
        except OSError as error:
            self._give_back()
            raise self._broken(error) from None

    @property
    def whole(self) -> bool:
        """Whether nothing is missing."""
        return self.offset == self.grid.size

    def append(self, data: bytes) -> None:
        """Write the next chunk.

        Raises
        ------
        EnvelopeRefused
            "wrong-chunk", if it is not what the origin signed. The chunks before it stay.
        StoreError
            If the disk is full or broken. The chunks before it stay.
        """
        expected = self.grid.length(self.offset)
        if len(data) != expected or not expected:
            raise EnvelopeRefused(
                f"the chunk at byte {self.offset} must have {expected} bytes, got {len(data)}",
                reason="wrong-chunk",
            )
        if chunks.digest(data) != self.grid.digest(self.manifest, self.offset):
            raise EnvelopeRefused(
                f"the chunk at byte {self.offset} has another digest than its origin signed",
                reason="wrong-chunk",
            )
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(self._handle, view, self.offset + len(data) - len(view))
                view = view[written:]
        except OSError as error:
            # What was written of this chunk lies beyond the offset, and is written over.
            raise self._broken(error) from None
        self._keep(data)
        self.offset += len(data)

    def finish(self, target: Path) -> None:
        """Move the whole payload to ``target``.

        Raises
        ------
        StoreError
        """
        if not self.whole:
            raise StoreError(f"{self.path} lacks {self.grid.size - self.offset} bytes still")
        try:
            os.ftruncate(self._handle, self.grid.size)
            os.replace(self.path, target)
        except OSError as error:
            raise self._broken(error) from None
        self.close()

    def close(self) -> None:
        """Leave the file for later."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def discard(self) -> None:
        """Remove the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _reserve(self) -> None:
        # A disk without room says so before a byte is asked for, and the rest is written faster.
        try:
            os.posix_fallocate(self._handle, 0, self.grid.size)
        except OSError as error:
            if error.errno not in _NO_SUCH_CALL:
                raise

    def _keep_right_chunks(self) -> None:
        end = os.fstat(self._handle).st_size
        while self.offset < self.grid.size:
            length = self.grid.length(self.offset)
            if self.offset + length > end:
                break
            data = os.pread(self._handle, length, self.offset)
            if chunks.digest(data) != self.grid.digest(self.manifest, self.offset):
                break
            self._keep(data)
            self.offset += length

    def _give_back(self) -> None:
        # What was reserved in vain would keep a full disk full.
        if self._handle < 0:
            return
        try:
            os.ftruncate(self._handle, self.offset)
        except OSError:
            self.offset = 0
        self.close()
        if not self.offset:
            self.path.unlink(missing_ok=True)

    def _broken(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.path} cannot be written: {error.strerror}; make room on the disk, or give the "
            "node another store"
        )
