"""A port of this machine that passes everything on, and counts the bytes of both directions."""

from __future__ import annotations

import contextlib
import socket
import threading

_PIECE = 2**16


class WireMeter:
    """Between one client and ``target``, in threads of this process; `close` it in the end.

    Parameters
    ----------
    target : tuple of str and int

    Attributes
    ----------
    address : str
        HOST:PORT to call instead of the target's.
    up, down : int
        Bytes from the client, and to it: what TLS puts on the wire, without TCP's own headers.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.up = self.down = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more calls."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:  # closed
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:  # nobody is there: neither is this port
                client.close()
                continue
            for source, sink, up in ((client, far, True), (far, client, False)):
                threading.Thread(target=self._carry, args=(source, sink, up), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                with self._lock:
                    self.up += len(piece) if up else 0
                    self.down += 0 if up else len(piece)
                sink.sendall(piece)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
