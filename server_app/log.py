"""One place for what the coordinator says while it works."""

from __future__ import annotations

import time


def log(message: str) -> None:
    """Say something on standard output, which Flower streams to whoever watches the run."""
    print(f"{time.strftime('%H:%M:%S')}  {message}", flush=True)


def names(sites: list[str], most: int = 8) -> str:
    """Name sites in one line, the first few of many."""
    more = len(sites) - most
    return ", ".join(sites) if more <= 0 else f"{', '.join(sites[:most])} and {more} more"


def warn(message: str) -> None:
    """Say something that deserves attention."""
    log(f"warning: {message}")
