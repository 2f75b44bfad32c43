"""Whether a container does its work, not only whether its process is there.

``python -m fedapp.provision.health supernode join.toml``, ``... superexec HOST:PORT``,
``... superlink HOST:PORT authority.pem`` and ``... peer peer.toml``, as a container's health check:
exit code 0, or 1 and a sentence.

A SuperNode stays alive, and listens on its own port, also while it cannot reach the coordinator.
What tells the two apart from inside is its connection, which one that works keeps; so it is with
the executor of runs, which asks every second. (One whose loop
has ended ends, see `fedapp.provision.supernode`.)
"""

from __future__ import annotations

import http.client
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedapp.config_join import read_join
from fedapp.errors import FedappError
from fedapp.gossip.names import dns_name

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"
_PATIENCE = 8.0  # seconds; a SuperNode calls every 3 s, over a connection that it keeps
_STEP = 0.25
_ANSWER = 5.0


def main(arguments: Sequence[str]) -> int:
    """Print a sentence and return the exit code of a health check."""
    match arguments:
        case ["supernode", join]:
            try:
                address = read_join(Path(join)).superlink
            except FedappError as error:
                return _tell(1, str(error))
            return _online(address)
        case ["superexec", address]:
            return _online(address)
        case ["superlink", address, authority]:
            problem = answers(address, Path(authority))
            return _tell(1 if problem else 0, problem or f"{address} answers")
        case ["peer", file]:
            problem = listens(Path(file))
            return _tell(1 if problem else 0, problem or "the peer answers")
        case _:
            return _tell(
                2, "expected: supernode JOIN.TOML, superexec HOST:PORT, superlink HOST:PORT "
                "AUTHORITY.PEM, or peer PEER.TOML",
            )  # fmt: skip


def connected(port: int, *, patience: float = _PATIENCE, tables: Sequence[Path] = _TABLES) -> bool:
    """Whether somebody in this container has a connection to ``port`` elsewhere.

    Parameters
    ----------
    port : int
    patience : float
        How long to look, in seconds.
    tables : sequence of Path
        As the kernel writes ``/proc/net/tcp``.
    """
    end = time.monotonic() + patience
    while True:
        for table in tables:
            if table.exists() and _has(table.read_text(encoding="ascii"), port):
                return True
        if time.monotonic() >= end:
            return False
        time.sleep(_STEP)


def answers(address: str, authority: Path) -> str:
    """Return why the SuperLink does not answer as the consortium's, empty if it does."""
    host, _, port = address.rpartition(":")
    connection = None
    try:
        context = ssl.create_default_context(cafile=str(authority))
        connection = http.client.HTTPSConnection(
            host.strip("[]"), int(port), timeout=_ANSWER, context=context
        )
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{address} does not answer: {error}"
    finally:
        if connection is not None:
            connection.close()
    return "" if status == http.client.OK else f"{address} answers with status {status}"


def listens(file: Path) -> str:
    """Return why a peer does not answer as the one that its file names, empty if it does.

    Its port is called with its own certificate, as far as the handshake: to calls it answers
    others alone.
    """
    from fedapp.config_peer import load_peer

    try:
        peer = load_peer(file)
    except FedappError as error:
        return str(error)
    host, _, port = peer.listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))  # noqa: S104
    try:
        context = ssl.create_default_context(cafile=peer.authority)
        context.load_cert_chain(peer.certificate, peer.key)
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), timeout=_ANSWER) as plain,
            context.wrap_socket(plain, server_hostname=dns_name(peer.name)),
        ):
            return ""
    except (OSError, ValueError) as error:
        return f"the peer does not answer on port {port}: {error}"


def _online(address: str) -> int:
    if connected(int(address.rpartition(":")[2])):
        return _tell(0, f"connected to {address}")
    return _tell(1, f"alive, but offline: no connection to {address}")


def _has(table: str, port: int) -> bool:
    rows = (line.split() for line in table.splitlines()[1:])
    return any(
        row[3] == _ESTABLISHED and int(row[2].rpartition(":")[2], 16) == port
        for row in rows
        if len(row) > 3
    )


def _tell(code: int, sentence: str) -> int:
    print(sentence)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
