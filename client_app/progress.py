"""Progress events of a training site, appended to a file on the simulation's shared disk."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass, field

from fedapp.exchange import Instruction

log = logging.getLogger(__name__)

INTERVAL = 0.5  # seconds between two events of one site


@dataclass
class Progress:
    """Appends ``{"site", "round", "action", "step", "steps", "loss", "time", ...}`` lines.

    The process and how many base models it has loaded so far (one, unless the settings changed)
    stand there for whoever measures a simulation. The first and the last step always give a line,
    those between at most two a second. Several processes may append to one file: each line is one
    ``O_APPEND`` write. A file that cannot be written costs the progress display, never the
    training.
    """

    instruction: Instruction
    base_loads: int = 0
    _last: float = field(default=float("-inf"), init=False)
    _broken: bool = field(default=False, init=False)

    def __call__(self, step: int, steps: int, loss: float) -> None:
        """Report that ``step`` (from 1) of ``steps`` is done with ``loss``."""
        path, now = self.instruction.progress_file, time.monotonic()
        due = step in (1, steps) or now - self._last >= INTERVAL
        if not path or self._broken or not due:
            return
        self._last = now
        event = {
            "site": self.instruction.site,
            "round": self.instruction.round,
            "action": self.instruction.action.value,
            "step": step,
            "steps": steps,
            "loss": loss,
            "time": time.time(),
            "process": os.getpid(),
            "base_loads": self.base_loads,
        }
        try:
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(handle, json.dumps(event).encode() + b"\n")
            finally:
                os.close(handle)
        except OSError as error:
            self._broken = True
            log.warning("progress file %s cannot be written, no more progress: %s", path, error)
