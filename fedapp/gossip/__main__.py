"""The process of `fedapp peer`: as little in memory as a node needs.

Usage (by `fedapp peer`, which has checked the files and left the result in an open file):
    python -P -m fedapp.gossip FILE_DESCRIPTOR
"""

from __future__ import annotations

import asyncio
import logging
import sys

from fedapp.errors import FedappError
from fedapp.gossip.peer import run_peer
from fedapp.gossip.start import Start


def main(arguments: list[str]) -> int:
    """Run the node of a site; return the exit code."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stdout)
    try:
        with open(int(arguments[0]), encoding="utf-8") as stream:
            start = Start.from_json(stream.read())
        asyncio.run(run_peer(start, say=_say))
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


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
