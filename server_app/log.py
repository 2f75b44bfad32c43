"""One place for what the coordinator says while it works."""

from __future__ import annotations

import sys
import time

from fedapp.text import clean

LONGEST_LINE = 2000


def log(message: str) -> None:
    """Say something on standard output, which Flower streams to whoever watches the run.

    One line: a site's words within it can neither add a line nor steer the terminal. What the
    output's encoding lacks is written as an escape.
    """
    line = f"{time.strftime('%H:%M:%S')}  {clean(message, LONGEST_LINE)}"
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def names(sites: list[str], most: int = 8) -> str:
    """Name sites in one line, the first few of many."""
    more = len(sites) - most
    return ", ".join(sites) if more <= 0 else f"{', '.join(sites[:most])} and {more} more"


def warn(message: str) -> None:
    """Say something that deserves attention."""
    log(f"warning: {message}")
