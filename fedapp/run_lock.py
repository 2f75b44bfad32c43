"""Whether a process works in a run folder: a lock on the folder, which dies with its holder.

A process number in a file would be wrong in a container, after a restart of the machine, and once
the system has given the number to another process.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from fedapp.errors import CheckpointError

_PATIENCE = 2.0  # seconds; whoever asks `is_held` has the lock for an instant
_STEP = 0.05


class RunLock:
    """Holds a run folder for this process, until `release` or the process's end.

    On a file system without locks nothing is held, and `is_held` cannot tell.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    CheckpointError
        If another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._handle = os.open(folder, os.O_RDONLY)
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_STEP)
                    continue
                self.release()
                raise still_running(folder) from None
            except OSError:
                return
            return

    def release(self) -> None:
        """Let it go."""
        os.close(self._handle)


def is_held(folder: Path) -> bool | None:
    """Whether a process works in ``folder``; None if that cannot be told."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False


def still_running(folder: Path) -> CheckpointError:
    """Return the refusal to work in ``folder`` beside another process."""
    return CheckpointError(
        f"the run {folder} is in progress in another process; wait for its end, or stop it there"
    )
