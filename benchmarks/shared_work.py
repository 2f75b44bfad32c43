"""Runs that several processes share out among themselves.

Not a benchmark itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

POLL_SECONDS = 5.0


def work(folder: Path, pending: Callable[[], Sequence[str]], do: Callable[[str], None]) -> None:
    """Do what is pending until nothing is, never what another process is doing.

    Parameters
    ----------
    folder : Path
        Of the processes that share; a claim is a lock there, which ends with its process.
    pending : callable
        Names of what can be done now, the most urgent first. Doing may make more of it.
    do : callable
        Does the one of a name; it is not pending thereafter.
    """
    while names := pending():
        for name in names:
            with _claimed(folder, name) as mine:
                # Another process may have done it between the two.
                if mine and name in pending():
                    do(name)
                    break
        else:
            time.sleep(POLL_SECONDS)


@contextmanager
def _claimed(folder: Path, name: str) -> Iterator[bool]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
