"""Verified updates on disk, addressed by their content, within limits of size and age.

A payload is a file named by its digest, an envelope one named by its identity. Nothing is flushed
to the disk's surface: what a power cut tears is found by its digest at the next start, and dropped.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Collection, Iterator
from functools import partial as bound
from pathlib import Path

from fedapp.errors import StoreError
from fedapp.gossip import chunks
from fedapp.gossip.handover import Handover
from fedapp.gossip.partial import Partial
from fedapp.gossip.signed import Signed
from fedapp.gossip.store_files import (
    ENVELOPE,
    PART,
    PAYLOAD,
    Entry,
    Verify,
    broken,
    check_private,
    drop_odd,
    read_entry,
    write,
)


class Store:
    """A folder of updates that belongs to one node.

    What takes time (`open`, `begin`, `commit`, `add`, `read`) may be called from other threads.

    Parameters
    ----------
    folder : Path
    max_bytes : int
        Most bytes of all payloads together.
    max_age : float
        Seconds after which an update is dropped.
    keep_rounds : int
        Newest updates kept of every origin.
    memory : int
        Most bytes of what waits for a gathering, see `handover`.
    """

    def __init__(
        self, folder: Path, max_bytes: int, max_age: float, keep_rounds: int, memory: int = 0
    ) -> None:
        self.folder = folder
        self.handover = Handover(memory)
        self._max_bytes, self._max_age, self._keep = max_bytes, max_age, keep_rounds
        self._entries: dict[bytes, Entry] = {}
        self._partials: dict[bytes, Partial] = {}  # by the identity of the envelope
        self._left: dict[Path, int] = {}  # unfinished files of an earlier process, and their sizes
        self._reserved: dict[str, int] = {}  # payloads that are being written, and their sizes
        self._folder_lock: int | None = None
        self._index_lock = threading.RLock()

    def open(self, verify: Verify) -> None:
        """Take the folder for this node alone and read what an earlier process left.

        Parameters
        ----------
        verify : callable
            As for what comes from a peer; raises EnvelopeRefused. What fails is dropped.

        Raises
        ------
        StoreError
            If the folder cannot be used, or another node uses it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._folder_lock = os.open(self.folder, os.O_RDONLY)
            check_private(self.folder)
            fcntl.flock(self._folder_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read_folder(verify)
        except BlockingIOError:
            self.close()
            raise StoreError(
                f"the store {self.folder} belongs to another node that runs; give each its own"
            ) from None
        except StoreError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise broken(self.folder, error) from None

    def close(self) -> None:
        """Let the folder go; what is in it stays."""
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None
        for partial in self._partials.values():
            partial.close()

    @property
    def opened(self) -> bool:
        """Whether the folder is this node's at present."""
        return self._folder_lock is not None

    @property
    def used(self) -> int:
        """Bytes of all payloads, those that are still coming in with their final size."""
        with self._index_lock:
            sizes = {e.signed.envelope.payload_digest: e.signed.envelope.size for e in self}
            sizes |= self._reserved
            coming = (partial.grid.size for partial in self._partials.values())
            return sum(sizes.values()) + sum(coming) + sum(self._left.values())

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))  # other threads may add one meanwhile

    def get(self, identity: bytes) -> Entry | None:
        """Return the update whose envelope has this identity, if it is here."""
        return self._entries.get(identity)

    def find(self, round: int, origins: Collection[str]) -> list[Entry]:
        """Return the updates of ``round`` by these origins."""
        return [
            entry
            for entry in self
            if entry.signed.envelope.round == round and entry.signed.envelope.origin in origins
        ]

    def manifest(self, payload_digest: str) -> bytes | None:
        """Return the manifest of a payload that is here in full, whosever it is."""
        for entry in self:
            if entry.signed.envelope.payload_digest == payload_digest:
                return entry.manifest
        return None

    def unfinished(self, identity: bytes) -> Partial | None:
        """Return the transfer of an update that has begun and is not over."""
        return self._partials.get(identity)

    def left_over(self, identity: bytes) -> bool:
        """Whether an earlier process left the beginning of an update."""
        return self._part_path(identity) in self._left

    def begin(self, signed: Signed, manifest: bytes) -> Partial:
        """Return the place where the payload of a verified envelope can be received.

        What an interrupted transfer left is kept, as far as its chunks are right.

        Raises
        ------
        StoreError
            If there is no room, or the disk cannot be written.
        """
        envelope = signed.envelope
        with self._index_lock:
            partial = self._partials.get(signed.id)
            if partial is None:
                path = self._part_path(signed.id)
                self._left.pop(path, None)
                self._make_room(envelope.size, envelope.round)
                self.handover.begin(signed.id, envelope.size)
                keep = bound(self.handover.add, signed.id)
                partial = Partial(path, envelope.grid, manifest, keep)
                self._partials[signed.id] = partial
            return partial

    def commit(self, signed: Signed, manifest: bytes) -> Entry:
        """Make an update of a payload that is here in full: received since `begin`, or before.

        Raises
        ------
        StoreError
            If the disk cannot be written; what was received stays for another attempt.
        """
        envelope = signed.envelope
        path = self.folder / f"{envelope.payload_digest}{PAYLOAD}"
        entry = Entry(signed, manifest, path, time.time())
        with self._index_lock:
            write(self._envelope_path(entry), signed.to_bytes())
            partial = self._partials.get(signed.id)
            if partial is not None and (partial.whole or not path.exists()):
                partial.finish(path)
                del self._partials[signed.id]
                self.handover.finish(signed.id)
            elif partial is not None:
                self.abandon(signed.id)  # another site's update had the same bytes, all of them
            self._entries[signed.id] = entry
            self._forget_rounds(envelope.origin)
        return entry

    def abandon(self, identity: bytes) -> None:
        """Drop what came in of an update that nobody waits for any more."""
        with self._index_lock:
            partial = self._partials.pop(identity, None)
            if partial is not None:
                partial.discard()
                self.handover.drop(identity)

    def add(self, signed: Signed, payload: chunks.Buffer, manifest: bytes) -> Entry:
        """Keep an update of this site's own.

        Raises
        ------
        StoreError
            If there is no room, or the disk cannot be written.
        """
        envelope = signed.envelope
        with self._index_lock:
            self._make_room(envelope.size, envelope.round)
            self._reserved[envelope.payload_digest] = envelope.size
        try:
            write(self.folder / f"{envelope.payload_digest}{PAYLOAD}", payload)
            return self.commit(signed, manifest)
        finally:
            del self._reserved[envelope.payload_digest]

    def read(self, entry: Entry) -> bytes:
        """Return a payload from the disk, compared with its digest once more.

        Raises
        ------
        StoreError
            If the file has changed since it was received; it is dropped, see `sharing`.
        """
        envelope = entry.signed.envelope
        try:
            with entry.path.open("rb") as stream:
                payload = stream.read(envelope.size + 1)
        except OSError as error:
            finding = f"cannot be read: {error.strerror}"
        else:
            whole = len(payload) == envelope.size
            if whole and chunks.manifest(payload, envelope.grid) == entry.manifest:
                return payload
            finding = "is not what was received any more"
        for other in self.sharing(entry):
            self.drop(other)
        raise StoreError(
            f"the update in {entry.path} {finding}; it is dropped, check the disk",
            site=envelope.origin,
            round=envelope.round,
        )

    def sharing(self, entry: Entry) -> list[Entry]:
        """Return all updates with the same payload, ``entry`` among them."""
        return [other for other in self if other.path == entry.path]

    def drop(self, entry: Entry) -> None:
        """Remove an update; its payload too, unless another update has the same."""
        with self._index_lock:
            self._entries.pop(entry.signed.id, None)
            self._envelope_path(entry).unlink(missing_ok=True)
            if not self.sharing(entry):
                entry.path.unlink(missing_ok=True)

    def drop_old(self, now: float) -> None:
        """Remove what is older than the store keeps."""
        for entry in self:
            if now - entry.stored > self._max_age:
                self.drop(entry)

    def _make_room(self, size: int, round: int) -> None:
        for path in list(self._left):
            if self.used + size > self._max_bytes:
                path.unlink(missing_ok=True)
                del self._left[path]
        # Updates of the round in progress and of later ones stay.
        oldest = sorted(
            (e for e in self if e.signed.envelope.round < round),
            key=lambda e: (e.signed.envelope.round, e.stored),
        )
        for entry in oldest:
            if self.used + size <= self._max_bytes:
                break
            self.drop(entry)
        if self.used + size > self._max_bytes:
            raise StoreError(
                f"the store {self.folder} may hold {self._max_bytes} bytes, {self.used} are in "
                f"use, and an update of {size} bytes comes; raise gossip.store-mb",
                round=round,
            )

    def _forget_rounds(self, origin: str) -> None:
        theirs = sorted(
            (e for e in self if e.signed.envelope.origin == origin),
            key=lambda e: e.signed.envelope.round,
        )
        for entry in theirs[: -self._keep]:
            self.drop(entry)

    def _part_path(self, identity: bytes) -> Path:
        # Not by content: whoever signs another's bytes as its own would write into its file.
        return self.folder / f"{identity.hex()}{PART}"

    def _envelope_path(self, entry: Entry) -> Path:
        return self.folder / f"{entry.signed.id.hex()}{ENVELOPE}"

    def _read_folder(self, verify: Verify) -> None:
        drop_odd(self.folder)
        for path in sorted(self.folder.glob(f"*{ENVELOPE}")):
            entry = read_entry(path, verify)
            if entry is None:
                path.unlink()
            else:
                self._entries[entry.signed.id] = entry
        payloads = {entry.path for entry in self}
        for path in self.folder.glob(f"*{PAYLOAD}"):
            if path not in payloads:
                path.unlink()
        for path in self.folder.glob(".*.tmp"):
            path.unlink()
        for path in self.folder.glob(f"*{PART}"):
            found = path.stat()
            if time.time() - found.st_mtime > self._max_age:
                path.unlink()
            else:
                self._left[path] = found.st_size
