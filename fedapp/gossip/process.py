"""What the process of a peer does, whether it trains or not: read its start, end in a sentence."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from fedapp.errors import FedappError
from fedapp.gossip.peer import Say
from fedapp.gossip.start import Start


def run_process(arguments: Sequence[str], work: Callable[[Start, Say], None]) -> int:
    """Do the work of a peer, and return the exit code.

    Parameters
    ----------
    arguments : sequence of str
        The number of an open file that holds ``Start.to_json()``.
    work : callable
        Takes what was read, and what takes a line at a time.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stdout)
    try:
        with open(int(arguments[0]), encoding="utf-8") as stream:
            start = Start.from_json(stream.read())
        work(start, _say)
    except FedappError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}; mend this", file=sys.stderr)
        return 1
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
