"""The process of `fedapp peer` at a site that trains: rounds without any server.

Usage (by `fedapp peer`, which has checked the files and left the result in an open file):
    python -P -m client_app.peer FILE_DESCRIPTOR
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from client_app.peer_process import load_trainer
from fedapp.gossip.peer import Say, run_peer
from fedapp.gossip.process import run_process
from fedapp.gossip.start import Start


def work(start: Start, say: Say) -> None:
    """Train, and answer the peers, to the end of the last round."""
    with load_trainer(start, Path(start.settings_file), say) as trainer:
        asyncio.run(run_peer(start, trainer, say=say))


if __name__ == "__main__":
    code = run_process(sys.argv[1:], work)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a training that was told to end may still be in its step
