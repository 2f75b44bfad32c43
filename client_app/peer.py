"""The process of `fedapp peer` at a site that trains: rounds without any server.

Usage (by `fedapp peer`, which has checked the files and left the result in an open file):
    python -P -m client_app.peer FILE_DESCRIPTOR
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from client_app.peer_process import load_trainer
from fedapp.errors import FedappError
from fedapp.gossip.peer import run_peer
from fedapp.gossip.start import Start


def main(arguments: list[str]) -> int:
    """Run a training site; return the exit code."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stdout)
    try:
        with open(int(arguments[0]), encoding="utf-8") as stream:
            start = Start.from_json(stream.read())
        with load_trainer(start, Path(start.settings_file), _say) as trainer:
            asyncio.run(run_peer(start, trainer, say=_say))
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
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a training that was told to end may still be in its step
