"""Flower's SuperNode in a process that ends with its work: ``supernode.py flower-supernode ...``.

At an answer that it does not expect, Flower's own program ends its loop, or its heartbeat, and
stays: alive, offline, and never started again. And when the SuperLink is restarted while a reply is
on its way, Flower asks once more, is told that the object is not waited for (it is there already),
and drops the whole reply. Its connections are given up after 5 s, so that every round pays for new
ones. Run as a file, so that nothing of fedapp is imported beside Flower's own code.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

KEPT = 60.0  # seconds without a call; the coordinator's gate closes them after 75
"""How long a connection is kept: a training may take longer, the next message rarely."""


def main() -> NoReturn:
    """Become ``flower-supernode`` with the arguments that follow its name; never returns."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    sys.argv = sys.argv[1:]
    threading.excepthook = _end_with_thread
    keep_connections()
    go_on_pushing()
    flower_supernode()
    _end("its loop has ended, see above")


def keep_connections() -> None:
    """Keep connections to the SuperLink, each of which costs a TLS handshake of some 4 kB."""
    import httpx

    class Client(httpx.Client):
        """Remains a class, for whoever asks what it is or derives from it."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**{"limits": limits, **options})

    # The numbers are httpx's own: of limits that are given, those left out are none at all.
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=KEPT)
    flower: Any = httpx
    flower.Client = Client


def go_on_pushing() -> None:
    """Push the other objects of a reply although the SuperLink does not wait for one of them.

    If it has that one, the reply is whole. If it has not, the coordinator asks again, as it would.
    """
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
    from flwr.supernode import fleet_http_connection as fleet

    flower: Any = fleet
    make = flower.make_push_object_fn_protobuf

    def make_patient(*arguments: Any) -> Callable[[str, bytes], None]:
        push = make(*arguments)

        def push_object(object_id: str, content: bytes) -> None:
            try:
                push(object_id, content)
            except ObjectPushError:
                print(f"object {object_id[:16]} is not waited for; going on with the others")

        return push_object

    flower.make_push_object_fn_protobuf = make_patient


def _end_with_thread(what: threading.ExceptHookArgs) -> None:
    if what.exc_type is SystemExit:
        return
    traceback.print_exception(what.exc_type, what.exc_value, what.exc_traceback)
    _end(f"its thread {what.thread.name if what.thread else ''} has ended, see above")


def _end(why: str) -> NoReturn:
    """End the process though other threads go on: the service manager starts it again."""
    print(f"error: the SuperNode is offline: {why}; it is to be started again", file=sys.stderr)
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
