"""An append-only log of what was asked, refused and sent, that can be verified later.

One line an event, each with the digest of the one before it, see `fedapp.hash_chain`. A line is on
the disk before what it tells of happens or leaves.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedapp.errors import LedgerError
from fedapp.hash_chain import GENESIS, HashChain, read_chain

FILE = "audit.jsonl"


class AuditLog:
    """Writes one log; any thread may.

    Parameters
    ----------
    path : Path

    Raises
    ------
    LedgerError
        If the file is damaged, or another process writes it.
    """

    def __init__(self, path: Path) -> None:
        self._chain, self._lock = HashChain(path), threading.Lock()

    @property
    def head(self) -> str:
        """Digest of the newest line: kept elsewhere, it vouches for all of them."""
        return self._chain.head

    def record(self, event: str, **what: Any) -> None:
        """Write one line durably.

        Raises
        ------
        LedgerError
            If it cannot be written; what it tells of must not happen then.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            with self._lock:
                self._chain.append({"time": now, "event": event, **what})
        except OSError as error:
            raise LedgerError(
                f"the audit log cannot be written ({error.strerror or type(error).__name__}), and "
                "nothing is done without it; make room on its disk"
            ) from None

    def close(self) -> None:
        """Let the file go."""
        self._chain.close()


@dataclass
class Verified:
    """What an unbroken log holds."""

    lines: int = 0
    head: str = GENESIS
    first: str = ""
    last: str = ""
    events: Mapping[str, int] = field(default_factory=dict)


def verify(path: Path, known_head: str = "") -> Verified:
    """Read a log and check every line.

    Parameters
    ----------
    path : Path
    known_head : str
        A digest that was noted earlier; it must be that of one of the lines.

    Raises
    ------
    LedgerError
        If a line was altered, removed, added or moved, or the known one is not there.
    """
    found, events, seen = Verified(), Counter[str](), not known_head or known_head == GENESIS
    for link in read_chain(path):
        found.lines, found.head = found.lines + 1, link.digest
        found.last = str(link.body.get("time", ""))
        found.first = found.first or found.last
        events[str(link.body.get("event", ""))] += 1
        seen = seen or link.digest == known_head
    if not seen:
        raise LedgerError(
            f"{path} is unbroken but has no line with the digest {known_head}: lines were cut off "
            "its end, or it was written anew; restore it from a backup"
        )
    found.events = dict(sorted(events.items()))
    return found
