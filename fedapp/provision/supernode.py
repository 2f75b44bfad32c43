"""Flower's SuperNode in a process that ends with its work: ``supernode.py flower-supernode ...``.

At an answer that it does not expect, Flower's own program ends its loop, or its heartbeat, and
stays: alive, offline, and never started again. Run as a file, so that nothing of fedapp is imported
beside Flower's own code.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from typing import NoReturn


def main() -> NoReturn:
    """Become ``flower-supernode`` with the arguments that follow its name; never returns."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    sys.argv = sys.argv[1:]
    threading.excepthook = _end_with_thread
    flower_supernode()
    _end("its loop has ended, see above")


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
