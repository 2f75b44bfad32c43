"""The files of the store: written whole or not at all, and believed only after a look inside."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedapp.errors import EnvelopeRefused, StoreError
from fedapp.gossip import chunks
from fedapp.gossip.proto import gossip_pb2
from fedapp.gossip.signed import Signed, parse
from fedapp.text import clean

PAYLOAD, ENVELOPE, PART = ".payload", ".envelope", ".part"
_LONGEST_ENVELOPE = 16384

Verify = Callable[[gossip_pb2.SignedEnvelope], Signed]


@dataclass(frozen=True)
class Entry:
    """A verified update in the store."""

    signed: Signed
    manifest: bytes
    path: Path
    stored: float  # Unix seconds


def write(path: Path, data: chunks.Buffer) -> None:
    """Write a file for this user alone, atomically but not durably.

    Raises
    ------
    StoreError
        If the disk is full or broken; what was there before stays.
    """
    temporary = path.parent / f".{path.name}.tmp"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(temporary, flags, 0o600), "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise broken(path, error) from None


def read_entry(path: Path, verify: Verify) -> Entry | None:
    """Read an envelope and look at its payload; None unless both are what was received."""
    if path.stat().st_size > _LONGEST_ENVELOPE:
        return None
    try:
        signed = verify(parse(path.read_bytes()))
    except EnvelopeRefused:
        return None
    envelope = signed.envelope
    payload = path.parent / f"{envelope.payload_digest}{PAYLOAD}"
    if not payload.is_file() or payload.stat().st_size != envelope.size:
        return None
    with payload.open("rb") as stream:
        found = b"".join(
            chunks.digest(stream.read(envelope.chunk)) for _ in range(envelope.grid.count)
        )
    if chunks.payload_digest(found, envelope.grid) != envelope.payload_digest:
        return None
    return Entry(signed, found, payload, path.stat().st_mtime)


def check_private(folder: Path) -> None:
    """Refuse a folder in which anybody may put files.

    Raises
    ------
    StoreError
    """
    if folder.stat().st_mode & stat.S_IWOTH:
        raise StoreError(
            f"everybody may write into the store {folder}; make it this user's alone (chmod 700)"
        )


def drop_odd(folder: Path) -> None:
    """Remove links, pipes and sockets under the store's own names: none is from a node."""
    for path in folder.iterdir():
        mode = path.lstat().st_mode
        odd = not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
        if odd and path.suffix in (PAYLOAD, ENVELOPE, PART):
            path.unlink()


def broken(path: Path, error: OSError) -> StoreError:
    """Return what to say of a file or folder that cannot be used."""
    return StoreError(
        f"{path} cannot be used: {clean(error.strerror or str(error))}; make room on the disk, or "
        "give the node another store"
    )
