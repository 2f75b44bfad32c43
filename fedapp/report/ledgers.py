"""The ledgers of a run's hospitals, read leniently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedapp.errors import FedappError
from fedapp.gossip.ledger import LedgerEntry, newest, read_ledger

Ledgers = Mapping[str, Sequence[LedgerEntry]]
"""Node -> the newest entry of each of its rounds, in order."""


def read_ledgers(folder: Path, notes: list[str]) -> dict[str, list[LedgerEntry]]:
    """Return node -> its rounds, from the files of ``folder``; a damaged one is a note."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        try:
            entries = newest(read_ledger(path))
        except (FedappError, OSError) as error:
            notes.append(f"A ledger is left out: {error}.")
            continue
        if entries:
            found[entries[0].node] = entries
    return found
