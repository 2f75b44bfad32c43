"""The calls between a ClientApp and its site's service: names, limits, a task's identity."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

import grpc

from fedapp.errors import ConfigError
from fedapp.text import clean

SERVICE = "fedapp.site.v1.Site"
DESCRIBE = f"/{SERVICE}/Describe"
EXECUTE = f"/{SERVICE}/Execute"
CANCEL = f"/{SERVICE}/Cancel"
HEALTH = f"/{SERVICE}/Health"

VERSION = 1
CHUNK = 2**20
"""Bytes of every chunk but a payload's last."""
MAX_MESSAGE = 4 * 2**20 + 65536
"""Most bytes of one message: a header of `fedapp.headers.MAX_HEADER_BYTES` characters is less."""

OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_metadata_size", 8192),
    ("grpc.absolute_max_metadata_size", 16384),
]


def task_id(header: str) -> str:
    """Return the identity of a task: of all that it says, the payloads' digests among it.

    A message that the coordinator sends once more has the same.
    """
    return hashlib.sha256(header.encode()).hexdigest()


def target(path: Path) -> str:
    """Return a socket's path as gRPC takes it."""
    return f"unix:{quote(str(path))}"


def socket_path(address: str) -> Path:
    """Read ``site-address`` of a SuperNode's configuration: ``unix:/PATH``, or the path alone.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    path = Path(address.removeprefix("unix://").removeprefix("unix:"))
    if "\0" in address or not path.is_absolute():
        raise ConfigError(
            f"the node's site-address is '{clean(address)}', expected unix:/PATH of the socket of "
            "this hospital's site service; correct the SuperNode's --node-config"
        )
    return path


def why_away(code: grpc.StatusCode, details: str) -> str:
    """Say why a call cannot be answered now; gRPC's own words may hold paths of this machine."""
    if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.ABORTED):
        return f"cannot take the task ({details})"
    known = {
        "No such file": "is not running: its socket is not there",
        "Connection refused": "is not running: nobody listens on its socket",
        "Permission denied": "cannot be asked: the SuperNode's user may not open its socket",
    }
    return next((words for part, words in known.items() if part in details), "is away")
