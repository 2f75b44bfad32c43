"""The process of `fedapp peer`: as little in memory as a node needs.

Usage:
    python -P -m fedapp.gossip site.toml
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from fedapp.config_peer import load_peer
from fedapp.errors import FedappError
from fedapp.gossip.peer import run_peer


def main(arguments: list[str]) -> int:
    """Run the node of a site's file; return the exit code."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stdout)
    try:
        (path,) = arguments
        asyncio.run(run_peer(*load_peer(Path(path)), say=_say))
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
