"""Files with a private key or a shared secret: for their owner alone, never overwritten.

A file that others on the machine could read is not taken: its content may be anybody's by now.
"""

from __future__ import annotations

import stat
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedapp import atomic
from fedapp.errors import FedappError
from fedapp.small_file import read_small

PRIVATE = 0o600


def read_secret(path: Path, most: int, what: str, error: type[FedappError]) -> bytes:
    """Return the content of a file that nobody but its owner may read; see `read_small`.

    Raises
    ------
    FedappError
        Of type ``error``, if it is not there, too long, or open to others.
    """
    data = read_small(path, most, what, error)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise error(
            f"the {what} {path} can be read or written by others on this machine (mode "
            f"{mode:04o}, expected 0600); find out who could, then chmod 600 {path}, or make a "
            "new one"
        )
    return data


def create_secret(path: Path, data: bytes, what: str, error: type[FedappError]) -> None:
    """Write a new file with mode 0600, whole or not at all.

    Raises
    ------
    FedappError
        Of type ``error``, if there is a file already: it stays as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        atomic.create_bytes(path, data, PRIVATE)
    except FileExistsError:
        raise error(
            f"the {what} {path} is there already and is never overwritten; use it, or move it away"
        ) from None


def replace_secret(path: Path, data: bytes) -> None:
    """Write a file with mode 0600 in place of whatever is there."""
    atomic.write_bytes(path, data, PRIVATE)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM (PKCS 8), not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
