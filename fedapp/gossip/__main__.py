"""The process of `fedapp peer`: as little in memory as a node needs.

Usage (by `fedapp peer`, which has checked the files and left the result in an open file):
    python -P -m fedapp.gossip FILE_DESCRIPTOR
"""

from __future__ import annotations

import asyncio
import sys

from fedapp.gossip.peer import run_peer
from fedapp.gossip.process import run_process

if __name__ == "__main__":
    raise SystemExit(
        run_process(sys.argv[1:], lambda start, say: asyncio.run(run_peer(start, say=say)))
    )
