"""Flower's SuperLink in a process that ends when told to: ``superlink.py flower-superlink ...``.

Its server would wait without limit for calls in progress, and a run's log is a call that lasts as
long as the run: whoever stops a service waits 10 s and then kills it. Run as a file, as
`fedapp.provision.supernode` is.
"""

from __future__ import annotations

import functools
import sys

PATIENCE = 3  # seconds for calls in progress


def main() -> None:
    """Become ``flower-superlink`` with the arguments that follow its name."""
    import uvicorn
    from flwr.superlink.cli.flower_superlink import flower_superlink

    sys.argv = sys.argv[1:]
    uvicorn.run = functools.partial(uvicorn.run, timeout_graceful_shutdown=PATIENCE)
    flower_superlink()


if __name__ == "__main__":
    main()
